"""What a deployment's processes have in common."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from pathlib import Path


def new_secret(folder: Path) -> Path:
    """A file with a fresh secret that only its owner reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    return path


def free_port() -> int:
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_parent() -> None:
    """End this process once the one that started it has ended, however that happened."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
