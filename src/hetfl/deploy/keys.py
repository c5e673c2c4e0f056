"""Keys of nodes, as OpenSSH writes them: of an elliptic curve, which is what Flower signs with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hetfl.errors import HetflError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

WANTED = "an OpenSSH key of an elliptic curve (ecdsa) without a password; hetfl certs makes one"


def check_private_key(where: str, path: Path) -> None:
    """Check a node's private key.

    Raises:
        HetflError: the file is none that Flower can use.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, EllipticCurvePrivateKey):
        raise HetflError(f"{where}: {path} should be {WANTED}")


def public_key(where: str, path: Path) -> EllipticCurvePublicKey:
    """A node's public key.

    Raises:
        HetflError: the file is none that Flower can use.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        found = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, EllipticCurvePublicKey):
        raise HetflError(f"{where}: {path} should be {WANTED}")
    return found
