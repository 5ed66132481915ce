"""Who a process is, known by more than its pid, and how it is signalled without hitting a stranger.

Linux, standard library alone. Nothing here signals a process whose start time, kernel boot and
pid namespace do not all fit (design 5).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal as signals
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process import control_group
from executors_app.agentctl.protocol import EXECUTION_MARKER

_EXEC_TIMEOUT: Final = 1.0
"""Seconds that a process may be in the middle of ``execve``, at most."""
_EXEC_POLL: Final = 0.001
_MACHINE_ID_FILES: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for ever: a pid alone comes back soon."""

    pid: int
    start_time: int
    """Clock ticks after the kernel's boot: field 22 of ``/proc/PID/stat``."""
    boot_id: str
    """The kernel's."""
    pid_namespace: str
    """``pid:[...]``; empty where it cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessIdentity:
        """Back from ``to_json``; ValueError for anything else."""
        try:
            found = cls(data["pid"], data["start_time"], data["boot_id"], data["pid_namespace"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a process identity: {data!r}") from error
        texts = isinstance(found.boot_id, str) and isinstance(found.pid_namespace, str)
        if not texts or type(found.pid) is not int or type(found.start_time) is not int or found.pid < 1:
            raise ValueError(f"not a process identity: {data!r}")
        return found


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of ``/proc/PID/stat`` that matter here."""

    state: str
    parent: int
    session: int
    start_time: int
    memory: int
    """Bytes of address space; none for a corpse, and for what belongs to the kernel."""
    environment_end: int
    """Its address; 0 before the kernel has laid an environment down."""

    @property
    def ended(self) -> bool:
        """Whether only the corpse is left: a zombie runs no more."""
        return self.state in ("Z", "X", "x")

    @property
    def in_exec(self) -> bool:
        """Whether its old program is gone and its new one is not there yet: longer where it is busy."""
        return self.memory > 0 and self.environment_end == 0


def read_stat(pid: int) -> ProcessStat | None:
    """Read ``/proc/PID/stat``; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the name in parentheses may itself hold spaces and parentheses
    fields = text[text.rindex(")") + 2 :].split()
    numbers = [int(fields[number]) for number in (1, 3, 19, 20, 48)]
    return ProcessStat(fields[0], *numbers)


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a process of our own pid namespace; None if there is none."""
    found = read_stat(pid)
    if found is None:
        return None
    return ProcessIdentity(pid, found.start_time, kernel_boot_id(), _pid_namespace())


def identify_self() -> ProcessIdentity:
    """The identity of this process."""
    found = identify(os.getpid())
    if found is None:
        raise OSError("/proc does not show this process")
    return found


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs; a zombie is dead."""
    if not is_on_this_host(identity):
        return False
    found = read_stat(identity.pid)
    return found is not None and found.start_time == identity.start_time and not found.ended


def send_signal(identity: ProcessIdentity, sig: int) -> bool:
    """Signal exactly this process; False if it is dead. PermissionError if it may not be signalled."""
    with _open_pidfd(identity) as descriptor:
        if descriptor is None:
            return False
        try:
            signals.pidfd_send_signal(descriptor, sig)
        except ProcessLookupError:
            return False
        return True


@cache
def kernel_boot_id() -> str:
    """The kernel's boot id: another one after each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def host_id() -> str:
    """The place where pids mean what they mean here: machine, kernel boot and pid namespace (rule 2)."""
    parts = (_machine_id(), kernel_boot_id(), _pid_namespace())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def find_marked(marker_value: str, name: str = EXECUTION_MARKER) -> list[ProcessIdentity]:
    """All live processes but this one whose environment began with ``name=marker_value``.

    For an execution's marker also those in its control group, which may have emptied theirs.
    """
    wanted = f"{name}={marker_value}".encode()
    group = marker_value if name == EXECUTION_MARKER else None

    def is_marked(pid: int) -> bool:
        return wanted in read_environment(pid) or (
            group is not None and control_group.execution_of_process(pid) == group
        )

    found = (identify(pid) for pid in list_pids() if pid != os.getpid() and is_marked(pid))
    return [identity for identity in found if identity and is_alive(identity)]


def owner_of(pid: int) -> int | None:
    """The user that a process is wholly of; None where its ids differ (a set-user-ID program) or it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    users = {int(number) for number in text.partition("\nUid:")[2].partition("\n")[0].split()}
    return users.pop() if len(users) == 1 else None


def list_pids() -> list[int]:
    """The pids of all processes that can be seen."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def read_environment(pid: int) -> frozenset[bytes]:
    """The ``NAME=VALUE`` entries a process was started with; none if they cannot be read.

    In the middle of ``execve`` the kernel shows none: that is waited for, else a process that was only just started
    would be nobody's.
    """
    path = Path(f"/proc/{pid}/environ")
    try:
        entries = path.read_bytes() or _read_after_exec(pid, path)
    except OSError:
        return frozenset()
    return frozenset(entries.split(b"\0")) - {b""}


def _read_after_exec(pid: int, path: Path) -> bytes:
    """What is there when no ``execve`` is under way; it may have come just now."""
    until = time.monotonic() + _EXEC_TIMEOUT
    while (found := read_stat(pid)) and found.in_exec and time.monotonic() < until:
        time.sleep(_EXEC_POLL)
    return path.read_bytes()


def kill_all(identities: Iterable[ProcessIdentity], deadline: float) -> list[ProcessIdentity]:
    """SIGKILL all of them, wait at most ``deadline`` seconds, return those that still live. Blocks."""
    until = time.monotonic() + deadline
    with contextlib.ExitStack() as stack:
        opened = [(identity, stack.enter_context(_open_pidfd(identity))) for identity in identities]
        waiting = {fd: identity for identity, fd in opened if fd is not None}
        for descriptor in waiting:
            # one that may not be signalled is among the survivors
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signals.pidfd_send_signal(descriptor, signals.SIGKILL)
        _wait_for_ends(waiting, until)
        return list(waiting.values())


def _wait_for_ends(waiting: dict[int, ProcessIdentity], until: float) -> None:
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        left = until - time.monotonic()
        for descriptor, _ in poll.poll(max(0.0, left) * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
        if left <= 0:
            return


@contextlib.contextmanager
def _open_pidfd(identity: ProcessIdentity) -> Iterator[int | None]:
    """A pidfd of exactly this live process, or None.

    First the descriptor, then the look at the start time: if that fits, the descriptor is right.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if is_alive(identity) else None
    finally:
        os.close(descriptor)


def is_on_this_host(identity: ProcessIdentity) -> bool:
    """Whether it is of this kernel boot and pid namespace, so that its pid means something here."""
    return identity.boot_id == kernel_boot_id() and identity.pid_namespace == _pid_namespace()


@cache
def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _machine_id() -> str:
    for name in _MACHINE_ID_FILES:
        with contextlib.suppress(OSError):
            if text := Path(name).read_text().strip():
                return text
    return ""
