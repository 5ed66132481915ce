"""Shells in the workspace: several, each known by a name, alive over every reload of a page.

What a shell says goes into its scrollback; whoever is attached reads from there. Where that one is
slow, the shell waits; where nobody is attached, the oldest output goes. All in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl import adoption
from executors_app.agentctl.bell import Bell
from executors_app.agentctl.child_environment import SHELL_MARKER
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace.scrollback import Scrollback
from executors_app.agentctl.workspace.terminal import LONGEST_SIDE, Terminal

MOST: Final = 8
"""Shells of one session."""
BEHIND: Final = 256 << 10
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
        self.bell = Bell()
        self.terminal = terminal
        self._reader: Reader | None = None
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
        wanted = self.running and lag < BEHIND
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

    def attach(self) -> Reader:
        """A reader from the beginning of the scrollback; the one before is told that it was overtaken."""
        if self._reader is not None:
            self._reader.overtaken = True
        self._reader = Reader(self, self.scrollback.beginning())
        self.bell.ring()
        return self._reader

    def detach(self, reader: Reader) -> None:
        """The reader has gone; the shell lives on."""
        if self._reader is reader:
            self._reader = None
            self.kept_up()

    def kept_up(self) -> None:
        """The reader has taken something: listen again, if it was too slow."""
        if self.running:
            self._listen()


class Reader:
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
        self.shell.kept_up()


class Shells:
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
            raise invalid("shell must be a name of letters, digits, - and _", field="shell")
        check_size(columns, rows)
        shell = self._shells.get(name)
        if shell is not None:
            shell.resize(columns, rows)
            return shell
        self._make_room()
        try:
            terminal = Terminal(self._root, self._marker, columns, rows)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Refused(Code.NOT_FOUND, "the workspace is not there") from error
        except OSError as error:
            raise Refused(Code.SPAWN_FAILED, f"the shell cannot be started: {error.strerror}") from error
        self._marks.append(terminal.mark)
        shell = self._shells[name] = Shell(name, terminal)
        return shell

    def forget(self, shell: Shell) -> None:
        """Its end was told: the name is free again."""
        if not shell.running and self._shells.get(shell.name) is shell:
            del self._shells[shell.name]

    def _make_room(self) -> None:
        if len(self._shells) < MOST:
            return
        ended = next((shell for shell in self._shells.values() if not shell.running), None)
        if ended is None:
            raise Refused(Code.CONFLICT, f"a session has {MOST} shells at most", shells=sorted(self._shells))
        self.forget(ended)

    async def close(self) -> None:
        """Hang up on all shells, then end whatever any of them has started."""
        live = [shell for shell in self._shells.values() if shell.running]
        for act in (Terminal.hang_up, Terminal.kill):
            for shell in live:
                if shell.running:
                    act(shell.terminal)
            await asyncio.gather(*(_ended(shell) for shell in live))
        for mark in self._marks:
            await adoption.end_leftovers(mark, name=SHELL_MARKER)
        self._marks.clear()


async def _ended(shell: Shell) -> None:
    """Wait for the end of a shell, not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await shell.bell.until(lambda: not shell.running)


def check_size(columns: Any, rows: Any) -> None:
    """Refuse what cannot be the size of a window."""
    if not all(type(side) is int and 0 < side <= LONGEST_SIDE for side in (columns, rows)):
        raise invalid(f"cols and rows must be between 1 and {LONGEST_SIDE}", field="cols")
