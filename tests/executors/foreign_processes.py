"""Processes of another user: one that listens where an agentctl was, and one that looks like an agentctl."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
NOBODY = 65534
_LISTENS = """
import ast, socket, sys
family, address = ast.literal_eval(sys.argv[1])
listener = socket.socket(family)
if family == socket.AF_INET:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(address)
listener.listen()
print(listener.getsockname(), flush=True)
while True:
    connection, _ = listener.accept()
    got = b""
    while chunk := connection.recv(65536):
        got += chunk
    print(got, flush=True)
"""
_LAST = b"that was all"


def other_user(argv: Sequence[str]) -> list[str]:
    """Return the command line as another user if the tests are root, otherwise unchanged."""
    if os.geteuid() != 0:
        return list(argv)
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *argv]


@contextmanager
def process_of_another_user(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process of another user; kill it afterwards."""
    with subprocess.Popen(other_user(argv), env=env, cwd="/", stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Recorder:
    """A listener of another process that records every byte it receives."""

    def __init__(self, process: subprocess.Popen[str], family: int, address: str | tuple[str, int]):
        self._process, self._family, self._address = process, family, address

    def received(self) -> bytes:
        """Return all that was sent on connections that are closed by now."""
        with socket.socket(self._family) as last:
            last.connect(self._address)
            last.sendall(_LAST)
        assert self._process.stdout is not None
        found: list[str] = []
        for line in self._process.stdout:
            if line.strip() == repr(_LAST):
                return "".join(found).encode()
            found.append(line.strip().removeprefix("b''"))
        raise AssertionError("the listener ended")


@contextmanager
def recording(address: str | tuple[str, int]) -> Iterator[Recorder]:
    """Run a listener of another user at a path, or at host and port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    argv = [sys.executable, "-I", "-S", "-c", _LISTENS, repr((int(family), address))]
    with process_of_another_user(argv) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the listener is ready"
        yield Recorder(process, family, address)
