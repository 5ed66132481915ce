"""A network namespace with only a loopback interface for each test process, and free ports in it.

A Docker engine creates and removes interfaces with every container, and each time a browser on the same network aborts
what it is loading. So each xdist worker has its own network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import socket
import struct
from contextlib import suppress
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_REQUEST: Final = struct.Struct("16sh22x")
"""``struct ifreq``: the interface's name, and its flags."""
_PORTS: Final = range(20_000, 32_000)
"""Below the ephemeral ports of the kernel, so that no connection takes a free port before its server listens."""


def leave() -> None:
    """Move this thread, and everything it starts from now on, to a new network namespace, which only root can.

    Users other than root have no Docker engine either, and stay where they are.

    Raises OSError if the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"no network of our own: {os.strerror(number)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _REQUEST.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _REQUEST.pack(name, flags | _IFF_UP))


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of ``address`` that no socket uses."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, port))
            return port
