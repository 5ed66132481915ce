"""Put idle sessions to sleep: end their executions, keep everything that a resume needs, and let a prompt wake them.

This saves machines that are paid for by the hour. A session stays awake while it works, has queued prompts or open
requests, whose answers only its agent's process can take, has a shell open, a script or (unless its policy ends them) a
process of an earlier turn running, or could not resume its own conversation. A wait for an external result keeps
nothing awake: its result wakes the session.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Max, Q
from django.utils import timezone

from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.protocol import AgentState
from sessions_app.agents.events import ProcessesReported
from sessions_app.background.rules.background_work import MAX_LISTED, BackgroundPolicy, shown_command
from sessions_app.background.services import policy_of
from sessions_app.events import names_of
from sessions_app.kernel.rules.states import (
    OPEN_PROMPT_STATES,
    OPEN_RUN_STATES,
    DesiredState,
    PermissionState,
    PromptState,
    RunState,
    SessionState,
    WorkState,
)
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import (
    IDLE_REASON,
    IntentKind,
    LeaseLost,
    Prompt,
    SessionTransaction,
    TaskSession,
    Turn,
    session_transaction,
)
from sessions_app.recovery.rules.resumability import Strategy
from sessions_app.recovery.services.assessment import assess_session, is_running
from sessions_app.starts.events import Asleep
from sessions_app.stream.events.conversation import MessageEvent
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.suspensions.models import agents_that_wait, suspensions_that_hold
from sessions_app.turns.interruptions import record_agent_stopped, record_ended_work

log = logging.getLogger(__name__)
MAX_CHECK_INTERVAL: Final = 60.0
_OUTPUT_EVENTS: Final = names_of(MessageEvent)
_ACTIVITY_EVENTS: Final = names_of(MessageEvent, ProcessesReported)


def check_interval() -> float:
    """Return the seconds between two checks: a tenth of the idle time, between 0.2 and 60 s."""
    return min(max(settings.KANDEV_IDLE_SLEEP / 10, 0.2), MAX_CHECK_INTERVAL)


async def sleep_idle_sessions(registry: ExecutionRegistry) -> int:
    """Put the idle sessions of this supervisor to sleep; return how many."""
    if not settings.KANDEV_IDLE_SLEEP:
        return 0
    idle = await registry.database(load_idle_sessions, registry.boot_id)
    return sum([await _try_to_sleep(registry, session_id) for session_id in idle])


def load_idle_sessions(boot_id: str) -> list[uuid.UUID]:
    """Return the sessions of ``boot_id`` that are idle by their rows; agentctl may know better."""
    limit = _idle_limit()
    rows = TaskSession.objects.filter(
        desired_state=DesiredState.RUNNING,
        state=SessionState.WAITING_FOR_INPUT,
        work_state=WorkState.IDLE,
        executions__owner=boot_id,
        executions__status=ExecutorStatus.READY,
    ).exclude(launch_id="")
    # Every change of the row sets ``updated_at``.
    quiet = rows.filter(Q(ready_since=None) | Q(ready_since__lt=limit), updated_at__lt=limit)
    quiet = quiet.annotate(worked_at=Max("runs__ended_at")).filter(Q(worked_at=None) | Q(worked_at__lt=limit))
    return list(quiet.order_by().values_list("id", flat=True))


def _idle_limit() -> datetime:
    return timezone.now() - timedelta(seconds=settings.KANDEV_IDLE_SLEEP)


async def _try_to_sleep(registry: ExecutionRegistry, session_id: uuid.UUID) -> bool:
    stream = registry.stream_of(session_id)
    if stream is None:
        return False
    policy = await registry.database(policy_of, session_id)
    left_running = await processes_if_quiet(stream)
    if left_running is None or (left_running and policy is BackgroundPolicy.KEEP):
        return False
    try:
        return await registry.database(write_asleep, stream, left_running)
    except LeaseLost:
        return False
    except Exception:  # one bad row never stops the others
        log.exception("session %s could not be put to sleep", session_id)
        return False


async def processes_if_quiet(stream: ExecutionStream, states: Collection[str] = (AgentState.IDLE,)) -> list[str] | None:
    """Return the command lines of processes that turns have left running, if nothing else works for the session.

    None if something does, or agentctl does not answer or cannot tell. ``states`` are those in which its agent counts
    as at rest.
    """
    try:
        report = await stream.client.status()
    except ExecutorError:
        return None
    agent, shells = report["agent"], report["workspace"].get("shells")
    at_rest = agent["state"] in states and not agent["active_turn"] and not report["pending_permissions"]
    if not at_rest or shells != 0 or report.get("jobs"):
        return None
    return [shown_command(command) for command in report.get("background") or ()][:MAX_LISTED]


def write_asleep(stream: ExecutionStream, left_running: Sequence[str] = ()) -> bool:
    """Record that the session sleeps and create the stop intent; return False if it has to stay awake.

    ``left_running`` are the command lines of processes that this ends.
    """
    # The rows were read without a lock, and agentctl was queried later: decide again under the lock, because a prompt
    # may have arrived meanwhile. State and stop commit together, so no crash leaves a sleeping session that runs on.
    with session_transaction(stream.session_id, stream.lease, related=("agent_profile", "task")) as transaction:
        since = idle_since(transaction)
        if not _may_sleep(transaction) or since is None or since > _idle_limit():
            return False
        if left_running and policy_of(stream.session_id) is BackgroundPolicy.KEEP:
            return False  # chosen while agentctl was queried
        record_ended_work(transaction, IDLE_REASON, left_running)
        record_agent_stopped(transaction)
        transaction.set_fields(next_restart_at=None)
        transaction.move_executor("stop", status_reason=IDLE_REASON)
        transaction.record_event(
            Asleep(reason=IDLE_REASON, idle_since=since.isoformat(), after=settings.KANDEV_IDLE_SLEEP)
        )
        create_intent(transaction.session, IntentKind.STOP, None, {"reason": IDLE_REASON})
    log.info("session %s was put to sleep: idle since %s", stream.session_id, since)
    return True


def idle_since(transaction: SessionTransaction) -> datetime | None:
    """Return since when the agent has been idle; None if it never came up.

    That is its start, the end of its last turn, the beginning of its wait for an external result, or its last output.
    Changes of the processes that its turns have left running count too if the policy keeps them.
    """
    activity = _ACTIVITY_EVENTS
    if policy_of(transaction.session.id) is BackgroundPolicy.END:
        activity = _OUTPUT_EVENTS
    newest, ended_seq, ended_at = transaction.newest_run, 0, None
    if newest is not None:
        ended_seq, ended_at = newest.last_seq or 0, newest.ended_at
    later = transaction.session.events.filter(seq__gt=ended_seq, name__in=activity).order_by("-seq")
    worked_at = later.values_list("at", flat=True).first()
    waits_since = newest.started_at if newest is not None and not newest.has_process else None
    moments = [transaction.session.ready_since, ended_at, worked_at, waits_since]
    return max((moment for moment in moments if moment is not None), default=None)


def _may_sleep(transaction: SessionTransaction) -> bool:
    session = transaction.session
    wanted = session.desired_state == DesiredState.RUNNING and session.state == SessionState.WAITING_FOR_INPUT
    if not wanted or session.work_state != WorkState.IDLE or not is_running(session, transaction.execution):
        return False
    if _has_open_requests(session):
        return False
    strategy = assess_session(session).without_live_agent.strategy
    # A session that was never prompted has no conversation to lose.
    return strategy is Strategy.NATIVE or (strategy is Strategy.FRESH and not _was_prompted(session))


def _was_prompted(session: TaskSession) -> bool:
    return Turn.objects.filter(session=session, has_process=True).exists()


def _has_open_requests(session: TaskSession) -> bool:
    """Whether the session has an open turn, intent or permission request, or a prompt that is not finished."""
    open_runs = Turn.objects.filter(session=session, state__in=OPEN_RUN_STATES)
    return (
        # What waits for an external result needs no agent until the result is there.
        open_runs.exclude(has_process=False, state=RunState.WAITING).exists()
        or _has_prompt_to_send(session)
        or session.intents.filter(done_at=None).exists()
        or session.permissions.filter(state=PermissionState.PENDING).exists()
        or agents_that_wait().filter(session=session).exists()
    )


def _has_prompt_to_send(session: TaskSession) -> bool:
    """Whether a prompt is not finished; while a usage limit holds back those that are queued, they need no agent."""
    states = set(Prompt.objects.filter(session=session, state__in=OPEN_PROMPT_STATES).values_list("state", flat=True))
    if states == {PromptState.QUEUED}:
        return not suspensions_that_hold().filter(session=session).exists()
    return bool(states)
