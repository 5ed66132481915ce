"""The signs of life of this process: recorded when they are due, from its loop or from a thread of its own."""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.db import Error, close_old_connections, connection, transaction
from django.db.models.functions import Coalesce, Now

from executors_app import __version__
from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.secret_key import is_secret_key_wrong
from sessions_app.hosts.intervals import beat_every
from sessions_app.hosts.models import Host, HostProcess, Role
from sessions_app.hosts.rules.life_signs import RUNS_FOR
from sessions_app.supervisor import leases

log = logging.getLogger(__name__)

MAX_NAME: Final = 100
RETRY_AFTER: Final = 2.0
"""Maximum seconds until a sign of life that failed is tried again, so that none is silent after a short outage."""
END_WITHIN: Final = 5.0
"""Seconds that the end of a process may wait for its last report."""
MEASURE_WITHIN: Final = 2.0
"""Seconds that a sign of life waits for a disk."""
UNSTABLE_NAME: Final = (
    "this machine has no id and KANDEV_HOST_NAME is not set: if “%s” is another name after each restart, as in a "
    "container, each one adds a host, and agents and decisions stay with the host before; set KANDEV_HOST_NAME to a "
    "name that stays"
)
MAX_EARLIER: Final = 100
"""Earlier processes of this place that a start looks at."""


class Heartbeat:
    """The signs of life of this process in one role. Not for several threads at once."""

    def __init__(self, role: Role):
        self.role = role
        self._id = uuid.uuid4()
        self._process = identity.identify_self()
        self._disk = DiskGauge()
        self._next_at = 0.0
        self._is_failing = self._has_reported = self._is_stopping = False

    def beat_if_due(self) -> None:
        """Record a sign of life if one is due; a failure is logged once, and tried again soon."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + beat_every()
        try:
            self.beat()
        except (Error, OSError) as error:  # also one of a machine that has no descriptors left
            if not self._is_failing:
                log.warning("no sign of life can be recorded: %s", error)
            self._is_failing = True
            self._next_at = now + min(RETRY_AFTER, beat_every())
        else:
            self._is_failing = False

    @property
    def due_in(self) -> float:
        """Seconds until the next sign of life is due."""
        return max(0.0, self._next_at - time.monotonic())

    def announce_stop(self) -> None:
        """Have the next sign of life, which is due at once, say that this process ends when its work is done."""
        self._is_stopping, self._next_at = True, 0.0

    def measure(self) -> dict[str, Any]:
        """Return what the machine and this process have left. Blocks for ``MEASURE_WITHIN`` seconds at most."""
        return measure(self._disk)

    def beat(self, measured: Mapping[str, Any] | None = None) -> None:
        """Record a sign of life with what was ``measured``, else with what is measured now. Raises django.db.Error."""
        if measured is None:
            measured = self.measure()
        values: dict[str, Any] = {"beat_at": Now(), "ended_at": None, "process": self._describe(), **measured}
        if self._is_stopping:
            values["stopping_at"] = Coalesce("stopping_at", Now())
        # The row is made when it is missing, at the start and also after a restore or a clean-up.
        if not HostProcess.objects.filter(id=self._id).update(**values):
            self._register(values)
        self._has_reported = True
        # Only a process of the same place can prove that another one is gone: without it, that would be silent first.
        end_gone_processes(identity.host_id())

    def end(self) -> None:
        """Record that this process ends as it should, if it has reported. Raises django.db.Error."""
        if not self._has_reported:
            return
        HostProcess.objects.filter(id=self._id).update(ended_at=Now(), stopping_at=Coalesce("stopping_at", Now()))

    def end_quietly(self) -> None:
        """Do the same; a failure is logged, and the process then counts as silent until its host reports again."""
        try:
            self.end()
        except Error as error:
            log.warning("the end of this process cannot be recorded: %s", error)

    def _describe(self) -> dict[str, Any]:
        described = {**self._process.to_json(), "backup_max_age": settings.KANDEV_BACKUP_MAX_AGE}
        if is_secret_key_wrong():
            described["has_wrong_key"] = True
        return described

    def _register(self, values: dict[str, Any]) -> None:
        place = identity.host_id()
        name, machine = own_host_key()
        if not is_own_host_lasting():
            log.warning(UNSTABLE_NAME, name)
        with transaction.atomic():
            host, _ = Host.objects.get_or_create(name=name, machine=machine, defaults={"first_seen_at": Now()})
            HostProcess.objects.create(
                id=self._id,
                host=host,
                place=place,
                role=self.role,
                release=__version__,
                started_at=Now(),
                **{**values, "stopping_at": Now() if self._is_stopping else None},
            )
        if machine:
            end_processes_of_earlier_boots(host)


def end_gone_processes(place: str) -> None:
    """Record the end of processes of this place that are proven gone: killed ones cannot do it themselves."""
    open_rows = HostProcess.objects.filter(place=place, ended_at=None).order_by("beat_at")[:MAX_EARLIER]
    gone = [row.id for row in open_rows if _is_gone(row)]
    HostProcess.objects.filter(id__in=gone, ended_at=None).update(ended_at=Now())


def end_processes_of_earlier_boots(host: Host) -> None:
    """Record the end of processes of this machine's earlier boots: the boot of this process proves that they are gone.

    ``host`` has the id of its machine: a name alone may be that of another one.
    """
    open_rows = HostProcess.objects.filter(host=host, ended_at=None).order_by("beat_at")[:MAX_EARLIER]
    gone = [row.id for row in open_rows if row.process.get("boot_id") not in (None, identity.kernel_boot_id())]
    HostProcess.objects.filter(id__in=gone, ended_at=None).update(ended_at=Now())


def _is_gone(row: HostProcess) -> bool:
    try:
        return identity.is_gone(ProcessIdentity.from_json(row.process))
    except ValueError:
        return True


def describe_living() -> list[str]:
    """Return the processes that have reported lately and are not proven gone: role, host and pid of each."""
    rows = HostProcess.objects.filter(ended_at=None, beat_at__gte=Now() - RUNS_FOR).select_related("host")
    own_place = identity.host_id()
    living = [row for row in rows.order_by("host__name", "role") if row.place != own_place or not _is_gone(row)]
    return [f"{row.get_role_display().lower()} on {row.host} (pid {row.process.get('pid', '?')})" for row in living]


def host_name() -> str:
    """Return the name of this host, as its operator set it, else the one of the machine."""
    return (settings.KANDEV_HOST_NAME or socket.gethostname())[:MAX_NAME]


def own_host_key() -> tuple[str, str]:
    """Return name and machine of the host of this process, as its row has them."""
    return host_name(), _digest(identity.machine_id())


def is_own_host_lasting() -> bool:
    """Whether this host is the same one after a restart: by its machine's id, or by the name that it was given.

    Otherwise it is known by its own name alone, which is random in most containers. With an embedded database that
    matters little: there is only one host.
    """
    return bool(identity.machine_id() or settings.KANDEV_HOST_NAME) or not leases.is_shared_database()


class DiskGauge:
    """Measures a disk in a thread of its own: a file system that hangs holds this thread, and nothing else."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._free: int | None = None

    def free_bytes(self) -> int | None:
        """Return what the data directory's disk has left; None if it does not say so within ``MEASURE_WITHIN``."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._measure, name="disk", daemon=True)
            self._thread.start()
        self._thread.join(MEASURE_WITHIN)
        if self._thread.is_alive():
            return None
        self._thread = None
        return self._free

    def _measure(self) -> None:
        self._free = _free_bytes()


def measure(disk: DiskGauge) -> dict[str, Any]:
    """Return what this machine and process have left; None for what cannot be read."""
    return {
        "free_bytes": disk.free_bytes(),
        "load": os.getloadavg()[0],
        "open_files": _open_files(),
        "max_open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def _free_bytes() -> int | None:
    try:
        return shutil.disk_usage(settings.KANDEV_DATA_DIR).free
    except OSError:
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (only the number is needed)
    except OSError:
        return None


def _digest(machine_id: str) -> str:
    if not machine_id:
        return ""
    return hashlib.sha256(machine_id.encode()).hexdigest()[:32]


def beat_in_thread(role: Role, look: Callable[[], None]) -> Callable[[], None]:
    """Record signs of life of this process from a thread; return what records its end, to be called at the end.

    ``look`` is called after each of them.
    """
    heartbeat = Heartbeat(role)
    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            close_old_connections()
            heartbeat.beat_if_due()
            look()
            ended.wait(heartbeat.due_in)
        heartbeat.end_quietly()
        connection.close()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(END_WITHIN)

    return end
