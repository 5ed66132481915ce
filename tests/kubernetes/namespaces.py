"""Namespaces of Linux that stand for machines: network, processes, mounts and host name of their own.

The kernel ends every process of such a namespace when its first process ends, so nothing outlives it.
Processes are found by their command lines, which name the cluster's own directory: a later command finds them too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from tests.kubernetes import namespace_init
from tests.waiting import eventually

ROOT: Final = Path(__file__).resolve().parents[2]
SEARCHED: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_STARTED: Final[list[subprocess.Popen[bytes]]] = []
"""What this process started; a cluster outlives the process whose command started it."""


class Namespace:
    """A machine of the cluster; its files are below ``directory``."""

    def __init__(self, name: str, directory: Path, volumes: Path):
        self.name, self.directory, self.volumes = name, directory, volumes

    def start(self, *, ends_with_us: bool) -> None:
        """Create the namespace with its first process, which ends with this process if ``ends_with_us``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # No option of unshare for the mounts: their default there is to pass nothing on.
        command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += [os.path.realpath(sys.executable), "-S", namespace_init.__file__]
        arguments = [self.name, str(self.directory), str(self.volumes)]
        first = launch([*command, *arguments], self.directory / "init.log", ends_with_us=ends_with_us, speaks=True)
        assert first.stdout is not None
        with first.stdout as output:
            assert output.readline() == b"ready\n", (self.directory / "init.log").read_text()

    def stop(self) -> None:
        """End every process of the namespace at once, as when a machine loses its power."""
        kill(self._first())
        eventually(lambda: not self._first(), describe=f"{self.name} has ended")

    def is_running(self) -> bool:
        """Return whether the namespace exists."""
        return bool(self._first())

    def pid(self) -> int:
        """Return the pid of its first process, as seen from outside. Raises AssertionError if there is none."""
        [found] = [one.pid for one in self._first() if words_of(one.pid)[0] != "unshare"]
        return found

    def run(self, *command: str) -> str:
        """Run a command in its network, where pids are ours, to its end, which must succeed; return its output."""
        enter = ["nsenter", f"--target={self.pid()}", "--net", "--"]
        done = subprocess.run(
            [*enter, *command], capture_output=True, text=True, check=False, env=environment(), timeout=60
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def spawn(self, program: str, arguments: Mapping[str, str], env: Mapping[str, str] | None = None) -> None:
        """Start a program inside; its output goes to ``<program>.log``. An option with an empty value has none."""
        options = [f"{name}={value}" if value else name for name, value in arguments.items()]
        enter = ["nsenter", f"--target={self.pid()}", "--net", "--uts", "--mount", "--pid", "--"]
        log = self.directory / f"{Path(program).name}.log"
        launch([*enter, program, *options], log, env=environment() | dict(env or {}))

    def processes(self, program: str) -> list[ProcessIdentity]:
        """Return the processes of a program that ``spawn`` started here."""

        def is_it(words: Sequence[str]) -> bool:
            return Path(words[0]).name == program and any(str(self.directory) in word for word in words[1:])

        return find(is_it)

    def signal(self, program: str, number: int) -> None:
        """Send a signal to a program that ``spawn`` started here. Raises AssertionError if there is none."""
        found = self.processes(program)
        assert found, f"{program} does not run on {self.name}"
        for one in found:
            identity.send_signal(one, number)

    def kill(self, program: str) -> None:
        """Kill a program with SIGKILL and wait for its end."""
        self.signal(program, signal.SIGKILL)
        eventually(lambda: not self.processes(program), describe=f"{program} on {self.name} has ended")

    def _first(self) -> list[ProcessIdentity]:
        """Return the first process, and the one outside that holds it."""
        tail = [self.name, str(self.directory), str(self.volumes)]

        def is_it(words: Sequence[str]) -> bool:
            # By the name of the file alone, so that another copy of this project finds the cluster too.
            program = words[-4] if len(words) > len(tail) else ""
            return list(words[-3:]) == tail and Path(program).name == Path(namespace_init.__file__).name

        return find(is_it)


def launch(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    ends_with_us: bool = False,
    speaks: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in the background that writes to ``log``, or to a pipe if it ``speaks``; return it."""
    with log.open("ab") as file:
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if speaks else file,
            stderr=file,
            start_new_session=True,
            preexec_fn=_end_with_us if ends_with_us else None,  # noqa: PLW1509 - one call of the kernel's
        )
    _STARTED[:] = [one for one in _STARTED if one.poll() is None]
    _STARTED.append(started)
    return started


def environment() -> dict[str, str]:
    """Return the environment of the programs: without variables of the tests, with a path that has all of them."""
    return {"PATH": SEARCHED, "HOME": "/root", "LANG": "C.UTF-8"}


def find(is_it: Callable[[Sequence[str]], bool]) -> list[ProcessIdentity]:
    """Return the processes whose command line ``is_it`` accepts."""
    pids = [pid for pid in identity.list_pids() if (words := words_of(pid)) and is_it(words)]
    return [found for pid in pids if (found := identity.identify(pid)) and identity.is_alive(found)]


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def kill(processes: Sequence[ProcessIdentity]) -> None:
    """Kill exactly these processes, and wait for their end."""
    left = identity.kill_all(processes, 20)
    assert not left, f"processes do not end: {left}"
    eventually(lambda: all(one.poll() is not None for one in _STARTED if one.pid in {who.pid for who in processes}))


def _end_with_us() -> None:
    """Ask the kernel, in a child process, to end it when the tests end for any reason."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
