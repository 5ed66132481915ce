"""Lets this process's network reach the API server of a cluster, which is in a network of its own.

Usage: python -m tests.kubernetes.relay DIRECTORY PID ADDRESS PORT. It listens on the loopback interface of the network
in which it was started, enters the network of the process PID, and connects from there to ADDRESS:PORT.
DIRECTORY is that of the cluster, by which the process is found. It prints its own port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_CHUNK: Final = 65536


async def serve(listener: socket.socket, address: str, port: int) -> None:
    """Pass every connection on until killed."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            writer.transport.abort()  # as a server that is down
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(pass_on, sock=listener)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


def main(pid: int, address: str, port: int) -> None:
    """Listen here, and connect from the network of another process."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    with Path(f"/proc/{pid}/ns/net").open() as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    asyncio.run(serve(listener, address, port))


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
