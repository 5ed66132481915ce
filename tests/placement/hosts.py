"""Supervisors on two hosts, as which a test can act in turn."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.utils import timezone

from executors_app.machine.process import identity
from sessions_app.hosts.models import Host
from sessions_app.models import Supervisor, TaskSession
from sessions_app.placement import sightings, start_claims
from sessions_app.supervisor import leases
from tests.hosts.processes import reported


def add_supervisor(name: str) -> Host:
    """Return a host on which a supervisor has just reported; its place is its name."""
    now = timezone.now()
    Supervisor.objects.create(boot_id=name, host_id=name, started_at=now, beat_at=now)
    return reported("supervisor", 0, name=name, place=name).host


def act_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let this process take itself for one of the host called ``name``, which shares its database with others."""
    monkeypatch.setattr(identity, "host_id", lambda: name)
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)


def open_start(session: TaskSession) -> Any:
    """Return the open start of a session."""
    return session.intents.get(kind="start", done_at=None)


def asks(monkeypatch: pytest.MonkeyPatch, name: str, session: TaskSession, *, has_repository: bool | None) -> bool:
    """Let the supervisor of a host ask for the session's start; return whether it may claim it."""
    act_on(monkeypatch, name)
    monkeypatch.setattr(sightings, "is_on_disk", lambda path: has_repository)
    intent_id: uuid.UUID = open_start(session).id
    return start_claims.is_ours(session.id, intent_id)
