"""Files that a deployment makes for itself."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def new_secret(folder: Path) -> Path:
    """A file with a fresh secret that only its owner reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    return path
