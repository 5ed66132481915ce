"""Each prepared query beside its plain queryset, to show what ``PreparedQuery`` gains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.orm import Key, PreparedQuery
from sessions_app.attention.services import inbox
from sessions_app.attention.services.inbox import overdue_limits
from sessions_app.board.services import session_needs
from sessions_app.kernel import transactions
from sessions_app.models import Message, MessagePart, TaskSession, Turn
from sessions_app.permissions import open_requests
from sessions_app.recovery.sweep import candidates
from sessions_app.stream import models as message
from sessions_app.turns import models as turns
from tests.bench.figures import Figure
from tests.bench.world import World
from tests.support.fake_agentctl import plan_fleet

LOOKUPS: Final = 200
"""Lookups in one measurement; a single one is too short for the clock."""
LOOKUPS_OF_A_TRIAL: Final = 10
"""As many where nobody judges the figures."""
LIMIT: Final = 0.5
"""Maximum, as a share of the plain queryset's time; a query that gains less should be a plain one."""


def of_ingest_and_sweep(world: World, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure every prepared query of ingest, of pages, and of a sweep of one session, and its queryset."""
    world.fill(plan_fleet(1, "127.4.0.1", 9))
    limit, lookups = (LIMIT, LOOKUPS) if limited else (None, LOOKUPS_OF_A_TRIAL)
    return [_figure(name, query, keys, rounds, lookups, limit) for name, (query, keys) in _queries().items()]


def _queries() -> dict[str, tuple[PreparedQuery[Any], tuple[Key, ...]]]:
    session = TaskSession.objects.get()
    execution = ExecutorRunning.objects.get(session=session)
    Turn.objects.create(session=session, message_id="bench", started_at=timezone.now())
    values = {"role": "agent", "complete": False, "seq": 1, "updated_seq": 1, "created_at": timezone.now()}
    text = Message.objects.create(session=session, **values)
    MessagePart.objects.create(message=text, number=0, text="bench")
    return {
        "session, locked": (transactions._SESSION, (session.id,)),
        "execution, locked": (transactions._EXECUTION, (execution.id,)),
        "open run": (transactions._OPEN_RUN, (session.id,)),
        "newest run": (turns._NEWEST_RUN, (session.id,)),
        "unfinished messages": (message._UNFINISHED.of_one, (session.id,)),
        "open tool calls": (message._OPEN_TOOLS, (session.id,)),
        "sizes of open tool calls": (message._OPEN_TOOL_SIZES, (session.id,)),
        "tool calls by key": (message._tools_by_keys(2), (session.id, 0, "one", "two")),
        "last part of a message": (message._LAST_PARTS.of_one, (text.id,)),
        "open permission requests": (open_requests.OPEN_REQUESTS, (session.id,)),
        "sweep: the execution": (candidates._OF_FEW.of_one, (session.id,)),
        "sweep: a missing execution": (candidates._DANGLING_OF_FEW.of_one, (session.id,)),
        "sweep: the agent profile": (candidates._PROFILES.of_one, (session.agent_profile_id,)),
        "sweep: an open start": (candidates._STARTS.of_one, (session.id,)),
        "sweep: a queued prompt": (candidates._QUEUED.of_one, (session.id,)),
        "sweep: the states of runs": (candidates._RUNS.of_one, (session.id,)),
        "sweep: the repository": (candidates._REPOSITORIES.of_one, (session.task.repository_id or session.id,)),
        "sweep: the teams of an owner": (candidates._MEMBERS.of_one, (session.owner_id or 0,)),
        "pages: what sessions need": (session_needs._NEEDS, ([session.id], session.owner_id or 0, *overdue_limits())),
        "pages: the number in the header": (inbox._UNSEEN_OF_MEMBER, (session.owner_id or 0, timezone.now())),
    }


def _figure(
    name: str, query: PreparedQuery[Any], keys: tuple[Key, ...], rounds: int, lookups: int, limit: float | None
) -> Figure:
    read = query.all if query._compile().columns else query.values

    def read_plain(*keys: Key) -> list[Any]:
        return list(query.query(*keys))

    prepared, plain = [], []
    for _ in range(rounds):
        prepared.append(_seconds(read, keys, lookups))
        plain.append(_seconds(read_plain, keys, lookups))
    return Figure(f"{lookups} x {name}", min(prepared), "the plain queryset", min(plain), limit=limit)


def _seconds(read: Callable[..., object], keys: tuple[Key, ...], lookups: int) -> float:
    with transaction.atomic():  # PostgreSQL locks rows only in a transaction
        began = time.perf_counter()
        for _ in range(lookups):
            read(*keys)
        return time.perf_counter() - began
