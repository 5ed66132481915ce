"""Python processes of Kandev that start without importing the libraries, which takes two seconds of CPU time each.

``PreloadedProcess`` is for long-lived processes, ``run`` for commands. They are real processes with their own pid,
memory and files, forked from one that has imported the libraries, and of Kandev what does not depend on the
environment; a program with its own copy of Kandev imports that. What identifies a process by its command line or
initial environment needs ``subprocess``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
Stream: TypeAlias = IO[Any] | int | None
"""An open file, ``subprocess.PIPE``, ``subprocess.DEVNULL``, or None to share the tests' own."""


class PreloadedProcess:
    """A process that runs ``arguments`` as ``python`` would; the methods are those of ``subprocess.Popen``.

    ``keeps`` are descriptors to inherit under the same numbers. Pipes are binary, or text if ``text`` is set. It is a
    fork of ``server``, by default of the one of this test run.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = ROOT,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        keeps: Sequence[int] = (),
        text: bool = False,
        start_new_session: bool = False,
        server: Server | None = None,
    ):
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        streams, theirs = [], []
        for number, (name, stream) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
            if stream == subprocess.PIPE:
                reading, writing = os.pipe()
                child, ours = (reading, writing) if number == 0 else (writing, reading)
                setattr(self, name, open(ours, ("w" if number == 0 else "r") + ("" if text else "b")))  # noqa: SIM115, PTH123
                theirs.append(child)
            elif stream == subprocess.DEVNULL:
                child = os.open(os.devnull, os.O_RDWR)
                theirs.append(child)
            elif stream is None:
                child = number
            else:
                child = stream if isinstance(stream, int) else stream.fileno()
            streams.append(child)
        self._status, writer = os.pipe()
        theirs.append(writer)
        request = {
            "arguments": self.args,
            "env": dict(env),
            "cwd": str(cwd),
            "numbers": [0, 1, 2, *keeps],
            "start_new_session": start_new_session,
        }
        self.pid = (server or _server()).start(request, [*streams, *keeps, writer])
        for descriptor in theirs:
            os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise TimeoutExpired if the process still runs after ``timeout`` seconds."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                return None
            status = os.read(self._status, 4)
            os.close(self._status)
            if not status:
                raise RuntimeError("the server of preloaded processes died")
            self.returncode = struct.unpack("i", status)[0]
        return self.returncode

    def communicate(self) -> Any:
        """Close stdin, read stdout to its end, wait for the process, and return what was read."""
        with self:
            if self.stdin is not None:
                self.stdin.close()
            return None if self.stdout is None else self.stdout.read()

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM unless the process has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its status and output; kill it after ``timeout`` seconds and raise."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = PreloadedProcess(arguments, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, status, stdout.read(), stderr.read())


class Server:
    """Client of the process that forks the others; ``command`` is put before its own, as for another namespace."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "tests.preloaded_server", str(other.fileno())],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a process; return its pid."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return int(self._socket.recv(64))

    def close(self) -> None:
        """End the server; the processes that it started continue."""
        self._socket.close()
        self.process.wait(60)


@cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server
