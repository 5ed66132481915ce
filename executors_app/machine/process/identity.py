"""Identify processes by more than their pid, or by an execution's control group, and signal no other process.

Linux, standard library only. Nothing here signals a process unless its start time, kernel boot and pid namespace all
match the recorded identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from executors_app.wire.exhaustion import raise_if_exhausted
from executors_app.wire.protocol import EXECUTION_MARKER

_GROUP_PREFIX: Final = "kandev-"
_CGROUP_V2_PREFIX: Final = "0::"
"""Prefix of the version 2 line in ``/proc/PID/cgroup``."""

_MEMORY_EVENT_FILES: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""For cgroup version 2 and version 1; a container sees its own counters there."""

_EXEC_TIMEOUT: Final = 1.0
"""Seconds to wait for a process in the middle of ``execve``."""
_EXEC_POLL: Final = 0.001
_CHUNK: Final = 16 << 10
_MACHINE_ID_FILES: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")

ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ProcessLookupError, PermissionError)
"""What reading a file raises if there is none, or its process is gone or another user's.

Any other error, such as *too many open files*, says nothing about what is there. It is raised and not taken for
absence: a living agentctl would look dead, and this machine like another one.
"""


def enter_group(execution_id: str, child: int = 0) -> bool:
    """Move this process, and a child of it, into the execution's group; return False if no group can be created."""
    group = _group_named(execution_id)
    if group is None:
        return False
    try:
        group.mkdir(exist_ok=True)
        _move_to_group(group)
        if child:
            _move_to_group(group, child)
    except OSError:
        remove_group(execution_id)
        return False
    return True


def leave_group(execution_id: str) -> None:
    """Move this process out of the group, and remove the group if it is empty."""
    group = _group_of("self")
    if group is None or group.name != f"{_GROUP_PREFIX}{execution_id}":
        return
    with contextlib.suppress(OSError):
        _move_to_group(group.parent)
        group.rmdir()


def execution_of_process(pid: int) -> str:
    """Return the execution whose group a process is in; empty if it is in none."""
    name = _group_path(pid).removesuffix(" (deleted)").rpartition("/")[2]
    if name.startswith(_GROUP_PREFIX):
        return name.removeprefix(_GROUP_PREFIX)
    return ""


def kill_group(pid: int) -> bool:
    """Kill the whole group of ``pid`` at once; return False if it is in none of ours.

    agentctl must not call it, because it is in the group itself.
    """
    group = _group_of(str(pid))
    if group is None or not group.name.startswith(_GROUP_PREFIX):
        return False
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # an old kernel, or no permission: the caller kills one by one
        return False
    return True


def remove_group(execution_id: str) -> None:
    """Remove the execution's group if it is empty."""
    group = _group_named(execution_id)
    if group is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def _move_to_group(group: Path, pid: int = 0) -> None:
    """Move a process; 0 is this one."""
    (group / "cgroup.procs").write_text(str(pid))


def _group_named(execution_id: str) -> Path | None:
    """Return the group of an execution: a sibling of ours if we are in such a group, else a child of ours."""
    here = _group_of("self")
    if here is None or not execution_id.replace("-", "").isalnum():
        return None
    if here.name.startswith(_GROUP_PREFIX):
        here = here.parent
    return here / f"{_GROUP_PREFIX}{execution_id}"


def _group_of(pid: str) -> Path | None:
    """Return the directory of a process's group; None without cgroup v2, or if it is outside of our namespace."""
    mount, path = _cgroup_mount(), _group_path(pid)
    if mount is None or not path or ".." in path:
        return None
    return mount / path.strip("/")


def _group_path(pid: int | str) -> str:
    try:
        lines = _read_proc(pid, "cgroup").decode("utf-8", "replace").splitlines()
    except ABSENT:
        return ""
    return next((line.removeprefix(_CGROUP_V2_PREFIX) for line in lines if line.startswith(_CGROUP_V2_PREFIX)), "")


def _cgroup_mount() -> Path | None:
    with contextlib.suppress(*ABSENT):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, mount, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(mount)
    return None


def count_oom_kills(paths: tuple[Path, ...] = _MEMORY_EVENT_FILES) -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if there is no counter."""
    for path in paths:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError) as error:
            raise_if_exhausted(error)
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, unambiguously: a pid alone is reused."""

    pid: int
    start_time: int
    """Clock ticks since boot: field 22 of ``/proc/PID/stat``."""
    boot_id: str
    """The kernel's boot id."""
    pid_namespace: str
    """``pid:[...]``; empty if it cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessIdentity:
        """Parse the result of ``to_json``; raises ValueError for anything else."""
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
    """Some fields of ``/proc/PID/stat``."""

    state: str
    parent: int
    session: int
    start_time: int
    memory: int
    """Bytes of address space; 0 for a zombie or a kernel thread."""
    environment_end: int
    """Address of the environment's end; 0 before the kernel has set it up."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended; a zombie has."""
        return self.state in ("Z", "X", "x")

    @property
    def in_exec(self) -> bool:
        """Whether the process is in ``execve``: the old program is gone and the new one is not set up yet."""
        return self.memory > 0 and self.environment_end == 0


def _read_proc(pid: int | str, name: str) -> bytes:
    """Read ``/proc/PID/name``; raises OSError.

    Without pathlib: every start reads the files of all processes, and in a fork each object that is used costs memory.
    """
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = [os.read(descriptor, _CHUNK)]
        while chunks[-1]:
            chunks.append(os.read(descriptor, _CHUNK))
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def read_stat(pid: int) -> ProcessStat | None:
    """Read ``/proc/PID/stat``; return None if there is no such process."""
    try:
        text = _read_proc(pid, "stat").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the name in parentheses may itself hold spaces and parentheses
    fields = text[text.rindex(")") + 2 :].split()
    numbers = [int(fields[number]) for number in (1, 3, 19, 20, 48)]
    return ProcessStat(fields[0], *numbers)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process of our pid namespace; None if there is none."""
    found = read_stat(pid)
    if found is None:
        return None
    return ProcessIdentity(pid, found.start_time, kernel_boot_id(), _pid_namespace())


def identify_self() -> ProcessIdentity:
    """Return the identity of this process."""
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


def is_gone(identity: ProcessIdentity) -> bool:
    """Whether it is proven that this process of this place (``host_id``) has ended.

    Where ``/proc`` is mounted with ``hidepid``, processes of other users look dead there. The kernel still refuses to
    signal them, and whether such a pid has been reused is unknown.
    """
    return not is_alive(identity) and not _is_hidden(identity.pid)


def _is_hidden(pid: int) -> bool:
    if read_stat(pid) is not None:
        return False
    try:
        os.kill(pid, 0)  # sends nothing
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def send_signal(identity: ProcessIdentity, sig: int) -> bool:
    """Signal exactly this process; return False if it is dead. Raises PermissionError."""
    with _open_pidfd(identity) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, sig)
        except ProcessLookupError:
            return False
        return True


@cache
def kernel_boot_id() -> str:
    """Return the kernel's boot id, which changes with each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def host_id() -> str:
    """Return the id of this machine, kernel boot and pid namespace: only there do our pids have a meaning.

    Read once, when Django starts. Raises OSError: an id made of what could be read would be stored, and this
    machine would count as another one for ever.
    """
    parts = (machine_id(), kernel_boot_id(), _pid_namespace())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def find_marked(marker_value: str, name: str = EXECUTION_MARKER) -> list[ProcessIdentity]:
    """Return all live processes, except this one, that were started with ``name=marker_value``.

    For an execution's marker also the processes in its control group, which may have cleared their environment.
    """
    wanted = f"{name}={marker_value}".encode()
    has_group = name == EXECUTION_MARKER

    def is_marked(pid: int) -> bool:
        return wanted in read_environment(pid) or (has_group and execution_of_process(pid) == marker_value)

    found = (identify(pid) for pid in list_pids() if pid != os.getpid() and is_marked(pid))
    return [identity for identity in found if identity and is_alive(identity)]


def owner_of(pid: int) -> int | None:
    """Return the user of a process; None if its user ids differ (a set-user-ID program) or it is gone."""
    try:
        text = _read_proc(pid, "status").decode("utf-8", "replace")
    except ABSENT:
        return None
    users = {int(number) for number in text.partition("\nUid:")[2].partition("\n")[0].split()}
    if len(users) == 1:
        return users.pop()
    return None


def list_pids() -> list[int]:
    """Return the pids of all visible processes."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def read_environment(pid: int) -> frozenset[bytes]:
    """Return the ``NAME=VALUE`` entries that a process was started with; empty if it is gone or another user's.

    In the middle of ``execve`` the kernel shows none. Wait for its end then, or a process that has just started would
    look unmarked.
    """
    try:
        entries = _read_proc(pid, "environ") or _read_after_exec(pid)
    except ABSENT:
        return frozenset()
    return frozenset(entries.split(b"\0")) - {b""}


def _read_after_exec(pid: int) -> bytes:
    """Read the environment again once no ``execve`` is under way; a kernel thread has none."""
    until = time.monotonic() + _EXEC_TIMEOUT
    while (found := read_stat(pid)) and found.in_exec and time.monotonic() < until:
        time.sleep(_EXEC_POLL)
    if found and found.memory:
        return _read_proc(pid, "environ")
    return b""


def kill_all(identities: Iterable[ProcessIdentity], deadline: float) -> list[ProcessIdentity]:
    """Send SIGKILL to all, wait up to ``deadline`` seconds, and return those that still live. Blocks."""
    until = time.monotonic() + deadline
    with contextlib.ExitStack() as stack:
        opened = [(identity, stack.enter_context(_open_pidfd(identity))) for identity in identities]
        waiting = {fd: identity for identity, fd in opened if fd is not None}
        for descriptor in waiting:
            # a process that may not be signalled is returned as a survivor
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
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
    """Yield a pidfd of exactly this live process, or None.

    The descriptor is opened before the start time is checked: if the check then passes, the pid cannot have been
    reused in between, and the descriptor refers to the right process.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        if is_alive(identity):
            yield descriptor
        else:
            yield None
    finally:
        os.close(descriptor)


def is_on_this_host(identity: ProcessIdentity) -> bool:
    """Whether the identity is of this kernel boot and pid namespace, so that its pid has a meaning here."""
    return identity.boot_id == kernel_boot_id() and identity.pid_namespace == _pid_namespace()


@cache
def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except ABSENT:
        return ""


def machine_id() -> str:
    """Return the id that the machine was given when it was installed; empty if it has none, as in a container."""
    for name in _MACHINE_ID_FILES:
        with contextlib.suppress(*ABSENT):
            if text := Path(name).read_text().strip():
                return text
    return ""
