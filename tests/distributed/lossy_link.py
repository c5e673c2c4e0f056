"""A link between two network namespaces that loses and delays packets, as netem does where the kernel has it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Self

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_UP = 0x400454CA, 0x1, 0x1000, 0x1
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
HERE, THERE, MASK = "10.203.0.1", "10.203.0.2", "255.255.255.0"
LIBC = ctypes.CDLL(None, use_errno=True)


class LossyLink:
    """A network namespace whose only way to this one is a link of which every packet passes through this process.

    Attributes:
        address: of this end; there, processes reach by it what listens on it here.
        loss: the share of packets that are dropped, in both directions.
        delay: seconds that a packet takes.
        packets: how many there were since the start, lost ones included.
        lost: how many of them were dropped.

    Raises:
        PermissionError: this process is not root's.
    """

    address = HERE

    def __init__(self) -> None:
        self.loss, self.delay, self.packets, self.lost = 0.0, 0.0, 0, 0
        try:
            ends = [_interface(HERE)]
            maker = threading.Thread(target=self._other_end, args=(ends,))  # a namespace is its thread's
            maker.start()
            maker.join()
            here, there = ends
        except (OSError, ValueError) as error:
            raise PermissionError("only root can make a network namespace with a link to it") from error
        self._ends = {here: there, there: here}
        self._stop, self._stopped = os.pipe()
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._stopped)
        self._carrier.join()
        for file in (*self._ends, self._stop, self._namespace):
            os.close(file)

    def enter(self) -> None:
        """Move this process to the other end; for ``preexec_fn``."""
        _call(LIBC.setns, self._namespace, CLONE_NEWNET)

    def _other_end(self, ends: list[int]) -> None:
        _call(LIBC.unshare, CLONE_NEWNET)
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _set_up("lo")
        ends.append(_interface(THERE))

    def _carry(self) -> None:
        draws = random.Random(0)
        late: deque[tuple[float, int, bytes]] = deque()
        while True:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else None
            ready = select.select([self._stop, *self._ends], [], [], wait)[0]
            if self._stop in ready:
                return
            for end in ready:
                packet = os.read(end, 65536)
                self.packets += 1
                if draws.random() < self.loss:
                    self.lost += 1
                else:
                    late.append((time.monotonic() + self.delay, self._ends[end], packet))
            while late and late[0][0] <= time.monotonic():
                _, end, packet = late.popleft()
                os.write(end, packet)


def _interface(address: str) -> int:
    """A network interface of this thread's namespace whose packets are read and written by the file returned."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    request = struct.pack("16sH22x", b"", IFF_TUN | IFF_NO_PI)
    name = fcntl.ioctl(file, TUNSETIFF, request)[:16].rstrip(b"\0").decode()
    for what, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, MASK)):
        _configure(what, name, struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value)))
    _set_up(name)
    return file


def _set_up(name: str) -> None:
    _configure(SIOCSIFFLAGS, name, struct.pack("H14x", IFF_UP))


def _configure(what: int, name: str, value: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, what, struct.pack("16s16s", name.encode(), value))


def _call(function: ctypes._NamedFuncPointer, *arguments: int) -> None:  # type: ignore[name-defined]
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
