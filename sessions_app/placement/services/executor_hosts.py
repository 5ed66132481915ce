"""Which executors depend on a host, and the hosts that one can belong to."""

from __future__ import annotations

from typing import Final

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

from executors_app import capacity
from executors_app.models import Executor
from sessions_app.hosts.models import Role
from sessions_app.models import Host
from sessions_app.supervisor import leases

READ_HERE: Final = ("kubernetes", "remote_docker", "sprites")
"""Runtimes that run elsewhere and get the repository from the disk of their supervisor."""


def depends_on_host(runtime: str) -> bool:
    """Whether it matters which host starts sessions of the runtime."""
    return runtime in READ_HERE or capacity.shares_memory(runtime)


def hosts_to_choose(executor: Executor | None) -> QuerySet[Host]:
    """Return the hosts that an executor can belong to; none where there is nothing to choose.

    An embedded database has one host. The others that it knows are its earlier names, as of a container.
    """
    own = None if executor is None else executor.host_id
    if own is None and (not leases.is_shared_database() or Host.objects.count() < 2):
        return Host.objects.none()
    supervised = Q(processes__role=Role.SUPERVISOR) | Q(pk=own)
    return Host.objects.filter(supervised).distinct()


def find_host(name: str, runtime: str) -> Host | None:
    """Return the host with this name, for an executor of a runtime; None for an empty name.

    Raises ValidationError if there is no such host, or several, or one that could not start sessions there.
    """
    if not name:
        return None
    if not depends_on_host(runtime):
        raise _wrong_host(f"Executors of {runtime} do not depend on a host: any supervisor can reach them.")
    found = list(Host.objects.filter(name=name)[:2])
    if not found:
        raise _wrong_host("There is no host with this name. manage.py hosts lists them.")
    if len(found) > 1:
        raise _wrong_host("Several hosts have this name. Choose one in Settings → Executors.")
    host = found[0]
    if not host.processes.filter(role=Role.SUPERVISOR).exists() and not host.executors.exists():
        raise _wrong_host("No supervisor has run on this host, so nothing could start there. Start one first.")
    return host


def _wrong_host(message: str) -> ValidationError:
    return ValidationError({"host": message})
