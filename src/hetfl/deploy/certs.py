"""A test authority, a server's certificate and nodes' keys: P-384, files that only their owner reads."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetfl.errors import HetflError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 365


def make_certificates(folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int = DAYS) -> list[Path]:
    """Write what a deployment needs; what a folder has already stays, so that nodes can be added.

    ``authority.crt`` and ``authority.key``, ``server.crt`` and ``server.key`` for all ``hosts``, and ``<node>.key``
    and ``<node>.pub`` for each node, as OpenSSH writes them.

    Args:
        folder: where to.
        hosts: names and addresses by which nodes reach the server: the certificate's subjectAltName.
        nodes: names of nodes.
        days: how long certificates are valid.

    Returns:
        The files that were written.

    Raises:
        HetflError: cryptography is not installed, or the authority's key is of another kind.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise HetflError("hetfl certs needs cryptography; pip install 'hetfl[flower]'") from error

    written: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()

    def write(name: str, content: bytes, mode: int) -> None:
        path = folder / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        written.append(path)

    def certificate(
        subject: str, key: EllipticCurvePrivateKey, issuer: x509.Name, signer: EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def usage(signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)

    def private(key: EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)

    from cryptography.hazmat.primitives.hashes import SHA384

    if (folder / "authority.key").exists():
        found = serialization.load_pem_private_key((folder / "authority.key").read_bytes(), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise HetflError(f"{folder / 'authority.key'}: is no key of an elliptic curve; use another folder")
        authority, issuer = found, x509.load_pem_x509_certificate((folder / "authority.crt").read_bytes()).subject
    else:
        authority, issuer = ec.generate_private_key(ec.SECP384R1()), name("hetfl test authority")
        root = certificate("hetfl test authority", authority, issuer, authority)
        root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signed = root.add_extension(usage(signs=True), critical=True).sign(authority, SHA384())
        write("authority.key", private(authority), 0o600)
        write("authority.crt", signed.public_bytes(pem), 0o644)
    if not (folder / "server.key").exists():
        key = ec.generate_private_key(ec.SECP384R1())
        leaf = certificate(hosts[0], key, issuer, authority)
        leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        leaf = leaf.add_extension(usage(signs=False), critical=True)
        leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        signed = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(authority, SHA384())
        write("server.key", private(key), 0o600)
        write("server.crt", signed.public_bytes(pem), 0o644)
    ssh, openssh = serialization.PrivateFormat.OpenSSH, serialization.Encoding.OpenSSH
    for node in nodes:
        if (folder / f"{node}.key").exists():
            continue
        key = ec.generate_private_key(ec.SECP384R1())
        write(f"{node}.key", key.private_bytes(pem, ssh, plain), 0o600)
        public = key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
        write(f"{node}.pub", public + b" " + node.encode() + b"\n", 0o644)
    return written
