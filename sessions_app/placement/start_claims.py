"""Decide before a start is claimed whether it is for this supervisor, and note on it why it is for none."""

from __future__ import annotations

import contextlib
import uuid

from django.db import IntegrityError, transaction

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.hosts.models import HostProcess
from sessions_app.hosts.supervision import place_of
from sessions_app.models import PLACEMENT_WAIT, Intent, IntentKind, Supervisor, TaskSession
from sessions_app.placement import sightings
from sessions_app.placement.models import RepositorySighting
from sessions_app.placement.pools import needs_place
from sessions_app.placement.rules.claims import (
    NO_SUPERVISOR_OF_WORKTREE,
    OF_OTHERS,
    OURS,
    ClaimDecision,
    HostFacts,
    StartFacts,
    decide_claim,
)
from sessions_app.placement.services.executor_hosts import depends_on_host
from sessions_app.recovery.services.assessment import execution_of
from sessions_app.supervisor import leases


def is_ours(session_id: uuid.UUID, intent_id: uuid.UUID) -> bool:
    """Return whether this supervisor may claim a start; if none may, note why on it. Not for transactions."""
    decision = decide_start(session_id)
    if decision.waits_for:
        note_wait(intent_id, decision.waits_for)
    return decision.is_ours


def decide_start(session_id: uuid.UUID) -> ClaimDecision:
    """Look for the session's repository here, and decide. One query more where only one place has a supervisor."""
    if not leases.is_shared_database():
        return OURS  # nobody else could carry it out
    places = set(Supervisor.objects.alive().values_list("host_id", flat=True)) - {identity.host_id()}
    related = ("executor", "task__repository")
    session = TaskSession.objects.select_related(*related).filter(id=session_id).first()
    if session is None or not depends_on_host(session.executor.runtime):
        return OURS
    execution = execution_of(session)
    if execution is not None and place_of(execution):
        # What was launched once stays there, also if its executor belongs to another host by now, or the repository
        # has moved: nobody else has its worktree, and that host says what is wrong with it.
        return OURS if leases.is_local_execution(execution) else OF_OTHERS
    if not places and session.executor.host_id is None:
        return OURS
    if needs_place(session, execution):
        _look_here(session)
        return OURS  # ``pools`` decides it under a lock
    if session.shares_worktree_of_id is not None:
        shared = _decide_by_worktree(session.shares_worktree_of_id, places)
        if shared is not OURS:
            return shared
    return decide_claim(_load_facts(session, places))


def _decide_by_worktree(owner_id: uuid.UUID, places: set[str]) -> ClaimDecision:
    """Decide by where the worktree is that a session shares: nobody else finds it."""
    execution = ExecutorRunning.objects.filter(session_id=owner_id).order_by("-created_at").first()
    if execution is None or not execution.worktree_path or leases.is_local_execution(execution):
        return OURS
    if execution.host_id in places:
        return OF_OTHERS
    return ClaimDecision(is_ours=False, waits_for=NO_SUPERVISOR_OF_WORKTREE)


def _load_facts(session: TaskSession, places: set[str]) -> StartFacts:
    repository = session.task.repository
    own_host = sightings.find_own_host()
    own_has, path, known = _look_here(session), "", {}
    if repository is not None:
        path = repository.path
        rows = RepositorySighting.objects.filter(repository=repository)
        known = dict(rows.values_list("host_id", "is_present"))
    hosts = set(HostProcess.objects.filter(place__in=places).order_by().values_list("host_id", flat=True).distinct())
    return StartFacts(
        own_host=own_host,
        own_has_repository=own_has,
        executor_host=session.executor.host_id,
        hosts=[HostFacts(host, known.get(host)) for host in sorted(hosts - {own_host})],
        repository_path=path,
    )


def _look_here(session: TaskSession) -> bool | None:
    """Return whether the session's repository is on this disk, and record it; None if that is not known."""
    repository, host = session.task.repository, sightings.find_own_host()
    if repository is None:
        return None
    found = sightings.is_on_disk(repository.path)
    if host is not None and found is not None:
        _record(repository.pk, host, is_present=found)
    return found


def _record(repository_id: uuid.UUID, host_id: int, *, is_present: bool) -> None:
    with contextlib.suppress(IntegrityError):  # repository or host were deleted meanwhile
        sightings.record_sighting(repository_id, host_id, is_present=is_present)


def note_wait(intent_id: uuid.UUID, text: str) -> None:
    """Note on a start that nobody has claimed why it waits; writes only what has changed."""
    with transaction.atomic():
        waiting = Intent.objects.select_for_update().filter(id=intent_id, done_at=None, claimed_generation=None)
        intent = waiting.first()
        if intent is None or intent.payload.get(PLACEMENT_WAIT) == text:
            return
        intent.payload = {**intent.payload, PLACEMENT_WAIT: text}
        intent.save(update_fields=["payload"])


def has_waiting_starts() -> bool:
    """Whether a start waits for a host or a repository."""
    waiting = Intent.objects.filter(kind=IntentKind.START, done_at=None, claimed_generation=None)
    return waiting.filter(payload__has_key=PLACEMENT_WAIT).exists()
