"""Machines of a deployment: each has its own processes, network, name, boot and files, like a host of its own.

A machine is a set of Linux namespaces. Its processes see only each other, a loopback interface and a cable to the
network of the tests; a directory of its own is where the others have theirs. Cutting the cable, and with that the
power, leaves to the others what a real failure leaves them: connections that nobody closes.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from executors_app.machine.process import identity
from tests.preloaded import PreloadedProcess, Server
from tests.waiting import eventually

NETWORK: Final = f"198.18.{random.randrange(256)}"
"""Part of a network that is reserved for tests of networks; another run at the same time has another one."""
_PREFIX: Final = os.urandom(3).hex()
"""Of the names of interfaces, which are at most 15 characters long."""
_SCRIPT: Final = """
set -e
hostname {name}
mount --bind {directory} {here}
mount --bind {directory}/machine-id {machine_id}
mount --bind {directory}/boot-id /proc/sys/kernel/random/boot_id
mount --bind {directory}/hosts /etc/hosts
ip link set lo up
until ip link set {interface} up 2>/dev/null; do sleep 0.02; done
ip address add {address}/30 dev {interface}
exec {init} -- "$@"
"""
_MACHINE_ID: Final = Path("/etc/machine-id")


def missing() -> str:
    """Return why machines cannot be made here, or an empty string."""
    lacking = [name for name in ("unshare", "ip", "mount", "tini") if shutil.which(name, path=_search_path()) is None]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    if not _MACHINE_ID.exists():
        return f"{_MACHINE_ID} is missing"
    attempt = ("unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--mount-proc")
    peer = ("ip", "link", "add", "one", "type", "veth", "peer", "name", "other")
    done = subprocess.run((*attempt, *peer), check=False, capture_output=True, text=True, env={"PATH": _search_path()})
    return f"namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


class Machine:
    """One machine. ``start`` starts processes on it, once it has booted."""

    def __init__(self, name: str, number: int, home: Path):
        self.name = name
        self.directory = home / "machines" / name
        """Its files, as the tests see them."""
        self.here = home / "here"
        """Where the machine itself has them, like every other one."""
        self.address = f"{NETWORK}.{4 * number + 2}"
        self.gateway = f"{NETWORK}.{4 * number + 1}"
        """The address of the tests, and so of database and proxy, as the machine sees it."""
        self._cable = f"k{_PREFIX}{number}"
        self._server: _MachineServer | None = None
        self.directory.mkdir(parents=True)
        self.here.mkdir(exist_ok=True)
        (self.directory / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost {name}\n")

    @property
    def is_on(self) -> bool:
        """Whether it has booted, and still has power."""
        return self._server is not None

    def boot(self) -> None:
        """Give it power and a cable; nothing runs on it yet."""
        (self.directory / "boot-id").write_text(f"{uuid.uuid4()}\n")
        script = _SCRIPT.format(
            name=self.name,
            directory=shlex.quote(str(self.directory)),
            here=shlex.quote(str(self.here)),
            machine_id=_MACHINE_ID,
            interface=f"{self._cable}m",
            address=self.address,
            init=_program("tini"),
        )
        flags = ("--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
        self._server = _MachineServer((_program("unshare"), *flags, "--", "sh", "-c", script, "sh"))
        own = self._server.process.pid
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", f"{self._cable}m")
        _ip("link", "set", f"{self._cable}m", "netns", str(own))
        _ip("address", "add", f"{self.gateway}/30", "dev", self._cable)
        self.mend()

    def start(self, arguments: Sequence[str], env: Mapping[str, str], log: str) -> PreloadedProcess:
        """Start a Python process on it; ``log`` is the file in its directory that it appends to."""
        assert self._server is not None, f"{self.name} has no power"
        with (self.directory / log).open("ab") as output:
            return PreloadedProcess(
                arguments, env=env, stdout=output, stderr=output, start_new_session=True, server=self._server
            )

    def cut(self) -> None:
        """Cut its cable: nothing arrives any more, in either direction, and no connection is closed."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Mend its cable."""
        _ip("link", "set", self._cable, "up")

    def lose_power(self) -> None:
        """End all its processes at once. It says goodbye to nobody, because its cable is cut before."""
        server, self._server = self._server, None
        if server is None:
            return
        self.cut()
        server.process.kill()
        server.process.wait(60)
        eventually(lambda: not server.members(), describe=f"nothing runs on {self.name} any more")
        server.close()
        subprocess.run((_program("ip"), "link", "delete", self._cable), check=False, capture_output=True)


class _MachineServer(Server):
    """Forks processes on a machine, and knows them by the pids that the tests see."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self._namespace = eventually(self._read_namespace, describe="the namespaces are made")

    def start(self, request: Mapping[str, object], descriptors: Sequence[int]) -> int:
        inner = super().start(request, descriptors)
        return next(pid for pid in self.members() if _pids_of(pid)[-1] == str(inner))

    def members(self) -> list[int]:
        """Return the pids of all processes on the machine."""
        return [pid for pid in identity.list_pids() if _namespace_of(pid) == self._namespace]

    def _read_namespace(self) -> str:
        # It has a name once a process is in it; until then, that of children is still the one of the tests.
        found = _namespace_of(self.process.pid, "pid_for_children")
        return "" if found == _namespace_of(os.getpid()) else found


def _namespace_of(pid: int, kind: str = "pid") -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def _pids_of(pid: int) -> list[str]:
    """Return the pid of a process in each namespace that it is in, the innermost last."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return [""]
    return next(line.split() for line in lines if line.startswith("NSpid:"))


def _ip(*words: str) -> None:
    subprocess.run((_program("ip"), *words), check=True, capture_output=True)


def _program(name: str) -> str:
    found = shutil.which(name, path=_search_path())
    assert found is not None, name
    return found


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
