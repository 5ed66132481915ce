"""Which executors depend on a host, and the hosts that one can belong to."""

from __future__ import annotations

from typing import Final

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

from executors_app import capacity
from executors_app.models import Executor
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
    supervised = Q(processes__role="supervisor") | Q(pk=own)
    return Host.objects.filter(supervised).distinct()


def find_host(name: str) -> Host:
    """Return the host with this name. Raises ValidationError if there is none, or several."""
    found = list(Host.objects.filter(name=name)[:2])
    if not found:
        raise ValidationError({"host": "There is no host with this name. manage.py hosts lists them."})
    if len(found) > 1:
        raise ValidationError({"host": "Several hosts have this name. Choose one in Settings → Executors."})
    return found[0]
