"""Shells in the workspace: each has a name, its own terminal and a scrollback, and survives page reloads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process import subreaper
from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.workspace.scrollback import Scrollback
from executors_app.agentctl.workspace.terminal import Terminal
from executors_app.machine.process.spawning import SHELL_MARKER
from executors_app.wire.protocol import ApiError, Code, validation_error

MAX_SIDE: Final = 1000

MAX_SHELLS: Final = 8
"""Maximum shells of one session."""
MAX_UNREAD_BYTES: Final = 256 << 10
"""Bytes that an attached reader may lag behind before the shell is paused."""
INPUT_LIMIT: Final = 1 << 20
_CHUNK: Final = 64 << 10
_GRACE: Final = 1.0
"""Seconds to wait after the hang-up, and again after the kill."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Shell:
    """One shell with at most one attached reader."""

    def __init__(self, name: str, terminal: Terminal):
        self.name = name
        self.exit_code: int | None = None
        self.scrollback = Scrollback()
        self.changes = StateNotifier()
        self.terminal = terminal
        self._reader: ShellReader | None = None
        self._had_reader = False
        self._input = bytearray()
        self._loop = asyncio.get_running_loop()
        self._is_reading = False
        self._update_reading()
        self._loop.add_reader(terminal.pidfd, self._handle_exit)

    @property
    def is_running(self) -> bool:
        """Whether the shell process is running."""
        return self.exit_code is None

    # -- out ---------------------------------------------------------------------------------

    def _update_reading(self) -> None:
        """Read from the terminal only while the shell lives and the reader keeps up."""
        wanted = self.is_running and self._lag() < MAX_UNREAD_BYTES
        if wanted and not self._is_reading:
            self._loop.add_reader(self.terminal.fd, self._read_output)
        elif self._is_reading and not wanted:
            self._loop.remove_reader(self.terminal.fd)
        self._is_reading = wanted

    def _lag(self) -> int:
        """Return how many bytes of output the reader has not been given yet."""
        if self._reader is None:
            return 0
        return self.scrollback.end - self._reader.position

    def _read_output(self) -> bool:
        """Read available output; return False if there is none."""
        try:
            data = os.read(self.terminal.fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process has the other end open
            self._loop.remove_reader(self.terminal.fd)
            self._is_reading = False
            return False
        self.scrollback.append(data)
        self._update_reading()
        self.changes.notify()
        return bool(data)

    def _handle_exit(self) -> None:
        self._loop.remove_reader(self.terminal.pidfd)
        self._loop.remove_writer(self.terminal.fd)
        most = self.scrollback.end + self.scrollback.limit
        while self.scrollback.end < most and self._read_output():
            pass  # bounded, because a background job may write forever
        self.exit_code = self.terminal.reap()
        self._update_reading()
        self.terminal.close()
        self.changes.notify()

    # -- in ----------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Write input; waits while the shell reads none."""
        await self.changes.wait_for(lambda: len(self._input) < INPUT_LIMIT or not self.is_running)
        if self.is_running:
            self._input += data
            self._write_pending()

    def _write_pending(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self.terminal.fd, self._input[:_CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self.terminal.fd, self._write_pending)
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._input.clear()
        self._loop.remove_writer(self.terminal.fd)
        self.changes.notify()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        if self.is_running:
            self.terminal.resize(columns, rows)

    def request_redraw(self) -> None:
        """Tell the program of a full screen that its size has changed, twice, so that it draws everything again."""
        if self.is_running:
            self.terminal.request_redraw()

    # -- readers -----------------------------------------------------------------------------

    def attach_reader(self) -> ShellReader:
        """Attach a new reader at the start of the scrollback, in place of an earlier one."""
        if self._reader is not None:
            self._reader.overtaken = True
        self._reader = ShellReader(self, is_first=not self._had_reader)
        self._had_reader = True
        self.changes.notify()
        return self._reader

    def detach_reader(self, reader: ShellReader) -> None:
        """Detach a reader; the shell keeps running."""
        if self._reader is reader:
            self._reader = None
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read again if a slow reader had paused the shell."""
        if self.is_running:
            self._update_reading()


class ShellReader:
    """A client that follows a shell, from the start of its scrollback.

    What it is given first was written before it came: a *replay*. A terminal must not answer the questions in it, which
    were answered when they were asked, or whose program may have ended: the answers would be typed into the shell.
    """

    def __init__(self, shell: Shell, *, is_first: bool):
        self.shell = shell
        self.position = shell.scrollback.replay_start()
        self.is_first = is_first
        """Whether nobody has followed the shell before."""
        self.overtaken = False
        modes = shell.scrollback.modes_before(self.position)
        self._prefix = modes.restoring_sequences()
        self._needs_redraw = modes.on_alternate_screen

    @property
    def replay_bytes(self) -> int:
        """Bytes of the next output that are a replay; none for the first reader, whose answers are the first ones."""
        if self.is_first:
            return 0
        return len(self._prefix) + self.shell.scrollback.end - self.position

    def request_redraw(self) -> None:
        """Let a full-screen program draw again if the beginning of its screen is no longer in the scrollback."""
        if self._needs_redraw:
            self.shell.request_redraw()

    async def read(self) -> bytes:
        """Return more output, all that there is up to ``MAX_UNREAD_BYTES``.

        It is empty at the end of the shell, or after another reader was attached.
        """
        shell = self.shell
        await shell.changes.wait_for(
            lambda: self.overtaken or shell.scrollback.end > self.position or not shell.is_running
        )
        if self.overtaken:
            return b""
        data = shell.scrollback.read(self.position, MAX_UNREAD_BYTES)
        self.position = max(self.position, shell.scrollback.start) + len(data)
        prefix, self._prefix = self._prefix, b""
        return prefix + data

    def mark_sent(self) -> None:
        """Report that the output was sent."""
        self.shell.resume_reading()


class ShellManager:
    """The shells of one session."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self._root, self._marker = root, marker
        self._shells: dict[str, Shell] = {}
        self._marks: list[str] = []

    @property
    def running_count(self) -> int:
        """Number of running shells."""
        return sum(shell.is_running for shell in self._shells.values())

    def open(self, name: str, columns: int, rows: int) -> Shell:
        """Return the shell of that name, or start one; raises ApiError.

        A shell that has ended is returned, too, until a client has seen its end.
        """
        if not _NAME.fullmatch(name):
            raise validation_error("shell must consist of letters, digits, - and _", field="shell")
        check_size(columns, rows)
        shell = self._shells.get(name)
        if shell is not None:
            shell.resize(columns, rows)
            return shell
        self._make_room()
        try:
            terminal = Terminal(self._root, self._marker, columns, rows)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ApiError(Code.NOT_FOUND, "the workspace does not exist") from error
        except OSError as error:
            raise ApiError(Code.SPAWN_FAILED, f"the shell cannot be started: {error.strerror}") from error
        self._marks.append(terminal.marker)
        shell = self._shells[name] = Shell(name, terminal)
        return shell

    def forget(self, shell: Shell) -> None:
        """Free the name of a shell whose end was reported."""
        if not shell.is_running and self._shells.get(shell.name) is shell:
            del self._shells[shell.name]

    def _make_room(self) -> None:
        if len(self._shells) < MAX_SHELLS:
            return
        ended = next((shell for shell in self._shells.values() if not shell.is_running), None)
        if ended is None:
            raise ApiError(
                Code.CONFLICT, f"a session may have at most {MAX_SHELLS} shells", shells=sorted(self._shells)
            )
        self.forget(ended)

    async def close(self) -> None:
        """End all shells, then everything that they have started."""
        live = [shell for shell in self._shells.values() if shell.is_running]
        for act in (Terminal.hang_up, Terminal.kill):
            for shell in live:
                if shell.is_running:
                    act(shell.terminal)
            await asyncio.gather(*(_wait_for_end(shell) for shell in live))
        for mark in self._marks:
            await subreaper.end_marked_processes(mark, name=SHELL_MARKER)
        self._marks.clear()


async def _wait_for_end(shell: Shell) -> None:
    """Wait up to ``_GRACE`` seconds for the end of a shell."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await shell.changes.wait_for(lambda: not shell.is_running)


def check_size(columns: Any, rows: Any) -> None:
    """Reject an invalid terminal size; raises ApiError."""
    if not all(type(side) is int and 0 < side <= MAX_SIDE for side in (columns, rows)):
        raise validation_error(f"cols and rows must be between 1 and {MAX_SIDE}", field="cols")
