"""Time to write what an agent said while no control plane was running into the database.

Compared with a bare ``bulk_create`` of one event for each update, in as many transactions, and with one of the rows
that are stored.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from executors_app.machine.process import identity
from executors_app.machine.storage import state_directory
from executors_app.models import AgentProfile
from executors_app.wire.journal_files import journal_directory
from sessions_app.board.services import tasks
from sessions_app.models import Message, MessagePart, SessionEvent, TaskSession
from sessions_app.stream.ingest.batches import MAX_LINES
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.figures import Figure
from tests.bench.latencies import supervising
from tests.bench.world import World
from tests.drills import chatty_agent
from tests.services import ROOT
from tests.waiting import eventually

PATIENCE = 300.0
TEXTS: Mapping[float, float] = {0.5: 2.0, 0.95: 0.4}
"""Limit by the share of pieces of text among the updates: a multiple of the time for one event per update.

In the measurements of the design, one update of twenty was a tool call. If every second one is, most updates become one
or two rows.
"""


def of_updates(world: World, count: int, *, limited: bool) -> list[Figure]:
    """Measure the seconds from the take-over until the log has all of ``count`` updates."""
    return [row for texts in TEXTS for row in _of_a_mix(world, count, texts, limited=limited)]


def _of_a_mix(world: World, count: int, texts: float, *, limited: bool) -> list[Figure]:
    world.empty()
    home = world.home / f"chatter-{count}-{texts}"
    profile = AgentProfile.objects.create(
        name="chatter",
        agent_type="custom_acp",
        command=chatty_agent.command(),
        env={"KANDEV_DEMO_AGENT_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )
    task = world.task("Chatter")
    task.save()
    session = tasks.create_session(world.user, task, profile, world.executor, prompt=f"chatter {count} {texts}")
    try:
        with supervising(signal.SIGKILL):
            eventually(session.runs.exists, timeout=60, describe="the agent has its prompt")
        (home / chatty_agent.GO).touch()
        journal = _journal_of(session)
        eventually(
            lambda: chatty_agent.journal_ends(journal),
            timeout=PATIENCE,
            describe="the agent has written its whole answer",
        )
        seconds = asyncio.run(_catch_up(session))
        _check(session, list(chatty_agent.updates(count, texts)))
    finally:
        identity.kill_all(identity.find_marked(str(session.agent_execution_id)), 10)
    row, limit = f"catching up {count:,}, {texts:.0%} text, {connection.vendor}", TEXTS[texts] if limited else None
    stored, each = _create_stored_rows(session), _create_events(session, chatty_agent.updates(count, texts))
    return [
        Figure(row, seconds, "bare bulk_create of an event each", each, "updates/s", count, limit),
        Figure(row, seconds, "bare bulk_create of the stored rows", stored, "updates/s", count),
    ]


def _journal_of(session: TaskSession) -> Path:
    session.refresh_from_db()
    kept = state_directory(Path(settings.KANDEV_DATA_DIR), str(session.agent_execution_id))
    return journal_directory(kept.path)


async def _catch_up(session: TaskSession) -> float:
    registry = ExecutionRegistry()
    gc.collect()
    gc.freeze()  # as ``supervise`` does
    began = time.perf_counter()
    try:
        stream = await registry.open_stream(session.id)
        assert stream is not None
        report = await stream.client.status()
        assert await stream.wait_until_logged(stream.journal_epoch, report["journal"]["last_seq"], PATIENCE)
        return time.perf_counter() - began
    finally:
        await registry.release_all()
        await registry.close()


def _check(session: TaskSession, events: Iterable[Mapping[str, Any]]) -> None:
    logged = session.events.order_by("seq").values_list("name", "payload")
    assert chatty_agent.messages_from_events(logged) == chatty_agent.messages_from_updates(events)


def _create_events(session: TaskSession, reported: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds to create one event for each update, in transactions of as many updates as ours."""
    SessionEvent._base_manager.all().delete()
    updates, now = list(enumerate(reported)), timezone.now()
    began = time.perf_counter()
    for start in range(0, len(updates), MAX_LINES):
        events = [
            SessionEvent(session=session, seq=seq, name="bench", payload=update, at=now)
            for seq, update in updates[start : start + MAX_LINES]
        ]
        with transaction.atomic():
            SessionEvent.objects.bulk_create(events, batch_size=500)
    return time.perf_counter() - began


def _create_stored_rows(session: TaskSession) -> float:
    """Return the seconds to create the same rows in the same tables in one transaction."""
    events = list(SessionEvent.objects.filter(session=session))
    messages = list(Message.objects.filter(session=session))
    parts = list(MessagePart.objects.filter(message__session=session))
    for model in (MessagePart, Message, SessionEvent):
        model._base_manager.all().delete()
    began = time.perf_counter()
    with transaction.atomic():
        SessionEvent.objects.bulk_create(events, batch_size=500)
        Message.objects.bulk_create(messages, batch_size=500)
        MessagePart.objects.bulk_create(parts, batch_size=500)
    return time.perf_counter() - began
