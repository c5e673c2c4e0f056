"""A test authority, a server's certificate and nodes' keys: P-384, files that only their owner reads."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetfl.deploy.settings import NODE_NAME
from hetfl.errors import HetflError
from hetfl.files import write_new

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 365
"""How long certificates are valid."""

AUTHORITY, SERVER = "authority", "server"
"""Names of the pairs of files that are no node's."""

REMEDIES = {
    AUTHORITY: "remove it and server.crt to have both made anew, and give the new authority.crt to all nodes",
    SERVER: "remove it to have one made",
}
"""What to do where a certificate has expired. Keys stay."""

LOCAL = "localhost", "127.0.0.1"
"""Hosts of a certificate for which none are given."""

_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_*-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


def make_certificates(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> list[Path]:
    """Write what a deployment needs; what a folder has already stays, so that nodes can be added.

    ``authority.crt`` and ``authority.key``, ``server.crt`` and ``server.key`` for all ``hosts``, and ``<node>.key``
    and ``<node>.pub`` for each node, as OpenSSH writes them. Where only the key of a pair is there, the
    other file is made from it.

    Args:
        folder: where to.
        hosts: names and addresses by which nodes reach the server: the certificate's subjectAltName. Without any,
            a certificate that is there names what it names, and a new one :data:`LOCAL`.
        nodes: names of nodes.

    Returns:
        The files that were written.

    Raises:
        HetflError: a host or node cannot have such a name, a certificate that is there does not name a host or has
            expired, a key is missing or of another kind, or cryptography is not installed.
    """
    for node in nodes:
        if not re.fullmatch(NODE_NAME, node) or node in (AUTHORITY, SERVER):
            raise HetflError(
                f"{node[:80]!r} is no name of a node; use up to 40 small letters, digits and hyphens, but not "
                f"{AUTHORITY!r} or {SERVER!r}"
            )
    try:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise HetflError("hetfl certs needs cryptography; pip install 'hetfl[flower]'") from error

    names = [*_names(hosts or LOCAL)]
    there = {path.name for path in folder.glob("*")}
    known = {name: _valid(folder / f"{name}.crt") for name in REMEDIES if f"{name}.crt" in there}
    if hosts and SERVER in known:
        _check_names(folder / f"{SERVER}.crt", known[SERVER], names)
    signing = not {f"{AUTHORITY}.crt", f"{SERVER}.crt", f"{SERVER}.key"} <= there
    pairs = {SERVER: "crt", **dict.fromkeys(nodes, "pub"), **({AUTHORITY: "crt"} if signing else {})}
    for name, kind in pairs.items():
        if f"{name}.{kind}" in there and f"{name}.key" not in there:
            raise HetflError(
                f"{folder / name}.{kind}: its key {name}.key is missing; put it there, or remove {name}.{kind} "
                "to make both anew"
            )

    written: list[Path] = []
    if not folder.exists():  # one that was there stays as open as its owner made it
        folder.mkdir(parents=True)
        folder.chmod(0o700)
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    pem, openssh, plain = serialization.Encoding.PEM, serialization.Encoding.OpenSSH, serialization.NoEncryption()
    pkcs8, ssh = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH

    def write(name: str, content: bytes, mode: int) -> None:
        path = folder / name
        write_new(path, content, mode)
        written.append(path)

    def key_of(name: str, form: serialization.PrivateFormat) -> EllipticCurvePrivateKey:
        path = folder / f"{name}.key"
        if path.name not in there:
            made = ec.generate_private_key(ec.SECP384R1())
            write(path.name, made.private_bytes(pem, form, plain), 0o600)
            return made
        load = serialization.load_ssh_private_key if form == ssh else serialization.load_pem_private_key
        try:
            found = load(path.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise HetflError(
                f"{path}: is no key of an elliptic curve without a password; remove it, or use another folder"
            )
        return found

    def certificate(
        subject: str, key: EllipticCurvePrivateKey, issuer: x509.Name, signer: EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )

    def named(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def usage(signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)

    from cryptography.hazmat.primitives.hashes import SHA384

    if signing:
        authority, issuer = key_of(AUTHORITY, pkcs8), named("hetfl test authority")
        if AUTHORITY in known:
            issuer = known[AUTHORITY].subject
        else:
            root = certificate("hetfl test authority", authority, issuer, authority)
            root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            signed = root.add_extension(usage(signs=True), critical=True).sign(authority, SHA384())
            write(f"{AUTHORITY}.crt", signed.public_bytes(pem), 0o644)
        if f"{SERVER}.crt" not in there:
            # Names of hosts can be longer than a common name, and nobody compares that.
            leaf = certificate("hetfl server", key_of(SERVER, pkcs8), issuer, authority)
            leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            leaf = leaf.add_extension(usage(signs=False), critical=True)
            leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
            write(f"{SERVER}.crt", leaf.sign(authority, SHA384()).public_bytes(pem), 0o644)
    for node in dict.fromkeys(nodes):
        if f"{node}.pub" not in there:
            public = key_of(node, ssh).public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
            write(f"{node}.pub", public + b" " + node.encode() + b"\n", 0o644)
    return written


def _names(hosts: Sequence[str]) -> Iterator[x509.GeneralName]:
    """Hosts as a certificate names them.

    Raises:
        HetflError: one is neither an address nor a name.
    """
    from cryptography import x509

    for host in hosts:
        try:
            yield x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            if not _HOST.fullmatch(host):
                told = "write its address, or its name in ASCII letters, digits, dots and hyphens"
                raise HetflError(f"{host[:80]!r} is no host; {told}") from None
            yield x509.DNSName(host)


def _valid(file: Path) -> x509.Certificate:
    """A certificate that is there.

    Raises:
        HetflError: it has expired, or is no certificate.
    """
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise HetflError(f"{file}: is no certificate; remove it to have one made") from error
    if (until := found.not_valid_after_utc) < datetime.datetime.now(datetime.UTC):
        raise HetflError(f"{file}: has expired ({until:%Y-%m-%d}); {REMEDIES[file.stem]}")
    return found


def _check_names(file: Path, certificate: x509.Certificate, wanted: Sequence[x509.GeneralName]) -> None:
    """Check that a certificate names some hosts.

    Raises:
        HetflError: it does not name one, or is damaged.
    """
    from cryptography import x509

    try:
        named = [*certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    except x509.ExtensionNotFound:
        named = []
    except ValueError as error:
        raise HetflError(f"{file}: is no certificate; remove it to have one made") from error
    if missing := [str(name.value) for name in wanted if name not in named]:
        known = ", ".join(str(name.value) for name in named) or "no host"
        remedy = "remove it to have one made for them, or leave --host out to keep it"
        raise HetflError(f"{file}: names {known}, and not {', '.join(missing)}; {remedy}")
