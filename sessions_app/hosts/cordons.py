"""Hosts out of service: a cordoned host takes no new sessions, and one that drains lets its sessions come to rest.

A host is named as its operator calls it. Several machines may have one name, as after the replacement of one: what is
decided about the name is decided about all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.audit import record_change
from sessions_app.hosts import heartbeats
from sessions_app.hosts.cluster_nodes import WHY_FORCE, drain_command, list_cluster_nodes
from sessions_app.hosts.models import BeforeShutdown, Host, HostMaintenance, HostProcess
from sessions_app.hosts.rules.maintenance import Orders, takes_start
from sessions_app.kernel import wakeups
from sessions_app.kernel.models.intent import DRAINED_REASON
from sessions_app.kernel.services.errors import NotFound


def find_hosts(name: str) -> list[Host]:
    """Return the hosts with this name; raises NotFound if there is none, also for the node of a cluster."""
    found = list(Host.objects.filter(name=name).order_by("id"))
    if found:
        return found
    if list_cluster_nodes(name):
        raise NotFound(f"{name} is a node of a cluster. {WHY_FORCE} Use “{drain_command(name)}”.")
    raise NotFound(f"No host is called “{name}”. “manage.py hosts” lists the names.")


def cordon(name: str, by: User | None) -> None:
    """Let a host take no new sessions; what runs there goes on. Repeating it changes nothing. Raises NotFound.

    ``by`` is None for somebody at the command line.
    """
    _decide(name, by, "takes no new sessions (cordoned)", _set_cordoned)


def drain(name: str, by: User | None) -> None:
    """Cordon a host and let its supervisor stop each session there that is at rest. Raises NotFound.

    It returns at once. Repeating it changes nothing, and ``uncordon`` resumes what was stopped.
    """
    _decide(name, by, "is drained", _set_draining)


def drain_for_shutdown(name: str) -> None:
    """Drain a host because its machine goes down, until ``return_after_shutdown``. Raises NotFound.

    One that somebody drains already goes on doing that afterwards.
    """
    _decide(name, None, "is drained, because its machine goes down", _set_draining_for_shutdown)


def return_after_shutdown(name: str) -> None:
    """Undo what ``drain_for_shutdown`` has decided, and nothing that a person has. Raises NotFound."""
    _decide(name, None, "no longer drains, because its machine is back", _set_as_before_shutdown)


def uncordon(name: str, by: User | None) -> None:
    """Put a host back into service; its supervisor resumes the sessions that a drain has stopped. Raises NotFound.

    A host that was declared lost stays so until it returns.
    """
    _decide(name, by, "is in service again (uncordoned)", _set_in_service)


def _decide(name: str, by: User | None, what: str, change: Callable[[HostMaintenance], bool]) -> None:
    hosts = find_hosts(name)
    with transaction.atomic():
        for host in hosts:
            HostMaintenance.objects.get_or_create(host=host)
            row = HostMaintenance.objects.select_for_update().get(host=host)
            if not change(row):
                continue
            row.by = by
            row.save()
            record_change(by, host, what)
        HostMaintenance.objects.filter(cordoned_at=None, draining_at=None, lost_at=None).delete()
        wakeups.notify_on_commit()


def _set_cordoned(row: HostMaintenance) -> bool:
    if row.before_shutdown == BeforeShutdown.IN_SERVICE:
        row.before_shutdown = BeforeShutdown.CORDONED  # it drains, and stays cordoned when its machine is back
        return True
    if row.cordoned_at is not None:
        return False
    row.cordoned_at = timezone.now()
    return True


def _set_draining(row: HostMaintenance) -> bool:
    if row.draining_at is not None:
        was_for_shutdown = bool(row.before_shutdown)
        row.before_shutdown = ""
        return was_for_shutdown
    _set_cordoned(row)
    row.draining_at = timezone.now()
    return True


def _set_draining_for_shutdown(row: HostMaintenance) -> bool:
    if row.draining_at is not None:
        return False
    before = BeforeShutdown.CORDONED
    if row.cordoned_at is None:
        before = BeforeShutdown.IN_SERVICE
    _set_draining(row)
    row.before_shutdown = before
    return True


def _set_as_before_shutdown(row: HostMaintenance) -> bool:
    if not row.before_shutdown:
        return False
    if row.before_shutdown == BeforeShutdown.IN_SERVICE:
        row.cordoned_at = None
    row.draining_at, row.before_shutdown = None, ""
    return True


def _set_in_service(row: HostMaintenance) -> bool:
    if row.cordoned_at is None:
        return False
    row.cordoned_at = row.draining_at = None
    row.before_shutdown = ""
    return True


def is_in_service(name: str) -> bool:
    """Whether nothing was decided about the hosts with this name."""
    return not HostMaintenance.objects.filter(host__name=name).exists()


def maintenance_here() -> HostMaintenance | None:
    """Return what was decided about the host of this process; one query."""
    name, machine = heartbeats.own_host_key()
    rows = HostMaintenance.objects.select_related("host")
    return rows.filter(host__name=name, host__machine=machine).first()


@dataclass(frozen=True, slots=True)
class StandingOrders:
    """What people have decided about this host and the others."""

    here: Orders
    is_another_lost: bool


def load_standing_orders() -> StandingOrders:
    """Return what was decided about the hosts; one query, because a supervisor asks after every change."""
    rows = list(HostMaintenance.objects.select_related("host"))
    key = heartbeats.own_host_key()
    own = next((row for row in rows if (row.host.name, row.host.machine) == key), None)
    return StandingOrders(orders_of(own), any(row.lost_at is not None for row in rows if row is not own))


def is_draining_here() -> bool:
    """Whether the host of this process drains, so that no queued prompt begins a turn; one query."""
    row = maintenance_here()
    return row is not None and row.draining_at is not None


def is_drained(execution: ExecutorRunning | None) -> bool:
    """Whether an execution was stopped for its host, and is resumed when that is back in service."""
    if execution is None:
        return False
    return (execution.status, execution.status_reason) == (ExecutorStatus.STOPPED, DRAINED_REASON)


def name_of_place(place: str) -> str:
    """Return the name of the host of a place (``ExecutorRunning.host_id``), empty if unknown; one query."""
    names = HostProcess.objects.filter(place=place).order_by("-beat_at").values_list("host__name", flat=True)
    return names.first() or ""


def orders_of(row: HostMaintenance | None) -> Orders:
    """Return what was decided, for the rules."""
    if row is None:
        return Orders()
    return Orders(
        cordoned=row.cordoned_at is not None, draining=row.draining_at is not None, lost=row.lost_at is not None
    )


def refusing_host(execution: ExecutorRunning) -> str:
    """Return the name of this host if it may not start this execution now, else an empty text; one query."""
    row = maintenance_here()
    if row is None or takes_start(orders_of(row), is_new=not execution.host_id):
        return ""
    return row.host.name
