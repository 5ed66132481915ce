"""Shells in the workspace, each on a terminal of its own, known by a name, with a scrollback.

They survive every reload of a page.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process import child_environment, privilege_drop, subreaper
from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.process.child_environment import SHELL_MARKER
from executors_app.agentctl.protocol import ApiError, Code, validation_error

SCROLLBACK_BYTES: Final = 1 << 20
"""Bytes that are kept."""
_MAX_LINE_BYTES: Final = 4096
"""How far a replay looks for a line to begin with."""


class Scrollback:
    """Bytes from ``start`` to ``end``; the oldest go when there are more than ``limit``."""

    def __init__(self, limit: int = SCROLLBACK_BYTES):
        self.limit = limit
        self._chunks: deque[bytes] = deque()
        self.start = self.end = 0

    def append(self, data: bytes) -> None:
        """Take output in."""
        self._chunks.append(data)
        self.end += len(data)
        while self.end - self.start - len(self._chunks[0]) >= self.limit:
            self.start += len(self._chunks.popleft())

    def read(self, position: int, most: int) -> bytes:
        """Up to ``most`` bytes from ``position`` on, or from ``start`` where that has gone."""
        skip, found, size = max(0, position - self.start), [], 0
        for chunk in self._chunks:
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            piece = chunk[skip : skip + most - size]
            skip, size = 0, size + len(piece)
            found.append(piece)
            if size >= most:
                break
        return b"".join(found)

    def beginning(self) -> int:
        """Where a replay begins: at a line, if the oldest output has gone, lest it begins within an escape sequence."""
        if self.start == 0:
            return 0
        line_end = self.read(self.start, _MAX_LINE_BYTES).find(b"\n")
        return self.start + line_end + 1


MAX_SIDE: Final = 1000
_SHELLS: Final = ("/bin/bash", "/bin/sh")
_STARTER: Final = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.umask(0o022)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Takes the terminal for its own, and forgets what agentctl ignores; a child without a fork in between."""


class Terminal:
    """One shell and our end of its terminal, ``fd``, which never blocks; OSError where it cannot be started."""

    def __init__(self, cwd: Path, marker: Mapping[str, str], columns: int, rows: int):
        self.mark = uuid.uuid4().hex
        """Marks all that the shell starts."""
        environment = child_environment.build_environment({"TERM": "xterm-256color", "PWD": str(cwd)}, marker)
        argv = [sys.executable, "-I", "-S", "-c", _STARTER, _shell_program(environment)]
        self.fd, far_end = os.openpty()
        try:
            os.set_blocking(self.fd, False)
            self.resize(columns, rows)
            self._process = subprocess.Popen(
                argv,
                env={**environment, SHELL_MARKER: self.mark},
                cwd=cwd,
                stdin=far_end,
                stdout=far_end,
                stderr=far_end,
                start_new_session=True,
                **privilege_drop.child_user_arguments(),
            )
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(far_end)
        self.pid = self._process.pid
        self.death = os.pidfd_open(self.pid)
        """Readable once the shell has ended."""

    def resize(self, columns: int, rows: int) -> None:
        """Tell the shell how large its window is."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Tell the shell, and through it its jobs, that nobody is there any more."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """End the shell, whatever it does."""
        self._process.kill()

    def take_in(self) -> int:
        """The exit code of a shell that has ended; negative for a signal."""
        return self._process.wait()

    def close(self) -> None:
        """Give the terminal back."""
        os.close(self.death)
        os.close(self.fd)


def _shell_program(environment: Mapping[str, str]) -> str:
    """The user's own shell, or one that every machine has."""
    wanted = (environment.get("SHELL", ""), *_SHELLS)
    return next((path for path in wanted if path.startswith("/") and shutil.which(path)), _SHELLS[-1])


MAX_SHELLS: Final = 8
"""Shells of one session."""
MAX_UNREAD_BYTES: Final = 256 << 10
"""Bytes that an attached reader may lag behind before the shell waits."""
INPUT_LIMIT: Final = 1 << 20
_CHUNK: Final = 64 << 10
_GRACE: Final = 1.0
"""Seconds from the hang-up to the kill, and behind it."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Shell:
    """One shell, and at most one reader attached to it."""

    def __init__(self, name: str, terminal: Terminal):
        self.name = name
        self.exit_code: int | None = None
        self.scrollback = Scrollback()
        self.bell = StateNotifier()
        self.terminal = terminal
        self._reader: ShellReader | None = None
        self._input = bytearray()
        self._loop = asyncio.get_running_loop()
        self._listening = False
        self._listen()
        self._loop.add_reader(terminal.death, self._died)

    @property
    def running(self) -> bool:
        """The shell itself lives."""
        return self.exit_code is None

    # -- out ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Listen exactly as long as there is something to hear and the reader keeps up."""
        lag = self.scrollback.end - self._reader.position if self._reader else 0
        wanted = self.running and lag < MAX_UNREAD_BYTES
        if wanted and not self._listening:
            self._loop.add_reader(self.terminal.fd, self._hear)
        elif self._listening and not wanted:
            self._loop.remove_reader(self.terminal.fd)
        self._listening = wanted

    def _hear(self) -> bool:
        """Take in what is there; False where nothing is."""
        try:
            data = os.read(self.terminal.fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the other end open
            self._loop.remove_reader(self.terminal.fd)
            self._listening = False
            return False
        self.scrollback.append(data)
        self._listen()
        self.bell.ring()
        return bool(data)

    def _died(self) -> None:
        self._loop.remove_reader(self.terminal.death)
        self._loop.remove_writer(self.terminal.fd)
        most = self.scrollback.end + self.scrollback.limit
        while self.scrollback.end < most and self._hear():
            pass  # its last words; a job that it left behind may talk for ever
        self.exit_code = self.terminal.take_in()
        self._listen()
        self.terminal.close()
        self.bell.ring()

    # -- in ----------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Type; waits while the shell takes nothing in."""
        await self.bell.until(lambda: len(self._input) < INPUT_LIMIT or not self.running)
        if self.running:
            self._input += data
            self._type()

    def _type(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self.terminal.fd, self._input[:_CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self.terminal.fd, self._type)
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._input.clear()
        self._loop.remove_writer(self.terminal.fd)
        self.bell.ring()

    def resize(self, columns: int, rows: int) -> None:
        """Tell the shell how large its window is."""
        if self.running:
            self.terminal.resize(columns, rows)

    # -- readers -----------------------------------------------------------------------------

    def attach(self) -> ShellReader:
        """A reader from the beginning of the scrollback; the one before is told that it was overtaken."""
        if self._reader is not None:
            self._reader.overtaken = True
        self._reader = ShellReader(self, self.scrollback.beginning())
        self.bell.ring()
        return self._reader

    def detach(self, reader: ShellReader) -> None:
        """The reader has gone; the shell lives on."""
        if self._reader is reader:
            self._reader = None
            self.resume_listening()

    def resume_listening(self) -> None:
        """The reader has taken something: listen again, if it was too slow."""
        if self.running:
            self._listen()


class ShellReader:
    """Somebody who follows a shell."""

    def __init__(self, shell: Shell, position: int):
        self.shell, self.position = shell, position
        self.overtaken = False

    async def next(self) -> bytes:
        """More output; empty once the shell has ended and all was read, or when another reader came."""
        shell = self.shell
        await shell.bell.until(lambda: self.overtaken or shell.scrollback.end > self.position or not shell.running)
        if self.overtaken:
            return b""
        data = shell.scrollback.read(self.position, _CHUNK)
        self.position = max(self.position, shell.scrollback.start) + len(data)
        return data

    def done(self) -> None:
        """What was read is on its way."""
        self.shell.resume_listening()


class ShellManager:
    """The shells of one session."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self._root, self._marker = root, marker
        self._shells: dict[str, Shell] = {}
        self._marks: list[str] = []

    @property
    def running(self) -> int:
        """How many live."""
        return sum(shell.running for shell in self._shells.values())

    def open(self, name: str, columns: int, rows: int) -> Shell:
        """The shell of that name, one that has ended too until that was told; else a new one. Refused."""
        if not _NAME.fullmatch(name):
            raise validation_error("shell must be a name of letters, digits, - and _", field="shell")
        check_size(columns, rows)
        shell = self._shells.get(name)
        if shell is not None:
            shell.resize(columns, rows)
            return shell
        self._make_room()
        try:
            terminal = Terminal(self._root, self._marker, columns, rows)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ApiError(Code.NOT_FOUND, "the workspace is not there") from error
        except OSError as error:
            raise ApiError(Code.SPAWN_FAILED, f"the shell cannot be started: {error.strerror}") from error
        self._marks.append(terminal.mark)
        shell = self._shells[name] = Shell(name, terminal)
        return shell

    def forget(self, shell: Shell) -> None:
        """Its end was told: the name is free again."""
        if not shell.running and self._shells.get(shell.name) is shell:
            del self._shells[shell.name]

    def _make_room(self) -> None:
        if len(self._shells) < MAX_SHELLS:
            return
        ended = next((shell for shell in self._shells.values() if not shell.running), None)
        if ended is None:
            raise ApiError(Code.CONFLICT, f"a session has {MAX_SHELLS} shells at most", shells=sorted(self._shells))
        self.forget(ended)

    async def close(self) -> None:
        """Hang up on all shells, then end whatever any of them has started."""
        live = [shell for shell in self._shells.values() if shell.running]
        for act in (Terminal.hang_up, Terminal.kill):
            for shell in live:
                if shell.running:
                    act(shell.terminal)
            await asyncio.gather(*(_wait_for_end(shell) for shell in live))
        for mark in self._marks:
            await subreaper.end_marked_processes(mark, name=SHELL_MARKER)
        self._marks.clear()


async def _wait_for_end(shell: Shell) -> None:
    """Wait for the end of a shell, not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await shell.bell.until(lambda: not shell.running)


def check_size(columns: Any, rows: Any) -> None:
    """Refuse what cannot be the size of a window."""
    if not all(type(side) is int and 0 < side <= MAX_SIDE for side in (columns, rows)):
        raise validation_error(f"cols and rows must be between 1 and {MAX_SIDE}", field="cols")
