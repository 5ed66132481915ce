"""Lets one network reach what is in another: the API server of a cluster from here, or a server of ours from its Pods.

Usage: python -m tests.kubernetes.relay DIRECTORY FROM LISTEN TO ADDRESS PORT. It listens on LISTEN, with any free port,
in the network of the process FROM, and connects from the network of the process TO to ADDRESS:PORT. A process is given
by its pid, or as *self* for whoever starts this. DIRECTORY is that of the cluster, by which the relay is found. It
prints its own port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
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


def main(listens_in: str, listens_on: str, connects_in: str, address: str, *, port: int) -> None:
    """Listen in the network of one process, and connect from that of another one."""
    networks = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in (listens_in, connects_in)]
    _enter(networks[0])
    listener = socket.create_server((listens_on, 0), backlog=100)
    _enter(networks[1])
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    asyncio.run(serve(listener, address, port))


def _enter(network: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(network, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(*sys.argv[2:6], port=int(sys.argv[6]))
