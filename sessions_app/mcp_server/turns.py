"""The state of a prompt's turn, and waiting until it is finished or needs attention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final
from uuid import UUID

from django.contrib.auth.models import User

from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    OPEN_PROMPT_STATES,
    DesiredState,
    PromptKind,
    PromptState,
    RunState,
    SessionState,
)
from sessions_app.kernel.services.errors import NotFound, Throttled
from sessions_app.kernel.transactions import open_start_intent
from sessions_app.mcp_server import arguments, results
from sessions_app.mcp_server.endpoint import Caller
from sessions_app.mcp_server.reading import cut, pending_permissions, view_session, visible_session
from sessions_app.mcp_server.results import Outcome
from sessions_app.models import Prompt, TaskSession, Turn, answers_of, newest_turn_of, texts_of
from sessions_app.stream.live.authentication import CloseCode, Subscription
from sessions_app.stream.live.hub import LogLine, SessionLog, Subscriber, TooManySubscriptions, get_hub
from sessions_app.waits.rules.wait_keys import WaitKind

ReportProgress = Callable[[float, float, str], Awaitable[None]]
"""Report (progress, total, message) to the client, if it requested progress."""
ANSWER_LIMIT: Final = 20_000
"""Maximum number of characters of an answer; ``read_conversation`` has the rest."""
CHECK_EVERY: Final = 5.0
"""Seconds after which a waiting call checks again and reports progress, if nothing has woken it before."""
MAX_FOLLOWED: Final = 100
"""Maximum number of replacements of one prompt that are followed."""

_OUTCOME_BY_RUN: Final = {
    RunState.RUNNING: Outcome.RUNNING,
    RunState.WAITING: Outcome.NEEDS_ANSWER,
    RunState.COMPLETED: Outcome.ENDED,
    RunState.FAILED: Outcome.FAILED,
    RunState.CANCELLED: Outcome.CANCELLED,
    RunState.INTERRUPTED: Outcome.INTERRUPTED,
}
_OUTCOME_BY_PROMPT: Final = {
    PromptState.SENDING: Outcome.RUNNING,
    PromptState.HELD: Outcome.IN_DOUBT,
    PromptState.INTERRUPTED: Outcome.INTERRUPTED,
    PromptState.DISMISSED: Outcome.DISMISSED,
    PromptState.WITHDRAWN: Outcome.WITHDRAWN,
}
UNFINISHED: Final = frozenset({Outcome.QUEUED, Outcome.RUNNING})
"""Outcomes for which waiting longer makes sense."""


def turn_outcome(prompt: str, run: str | None, *, is_held_up: bool, is_answered: bool = False) -> Outcome:
    """Return the outcome of a turn from the states of its prompt and its run (None: it has none).

    ``is_held_up``: a queued prompt is not sent until someone acts. ``is_answered``: all requests of a waiting turn have
    answers, which are on their way to the agent.
    """
    state = PromptState(prompt)
    if state == PromptState.QUEUED:
        if is_held_up:
            return Outcome.BLOCKED
        return Outcome.QUEUED
    if state in _OUTCOME_BY_PROMPT:
        return _OUTCOME_BY_PROMPT[state]
    if run is None:
        if state == PromptState.DONE:
            return Outcome.IN_DOUBT
        return Outcome.RUNNING
    if run == RunState.WAITING and is_answered:
        return Outcome.RUNNING
    return _OUTCOME_BY_RUN[RunState(run)]


def read_turn(user: User, session_id: UUID, message_id: str | None) -> results.Turn:
    """Return the state of a prompt's turn; without a ``message_id``, of the newest prompt that was not withdrawn.

    A prompt that was sent again, retried or continued is followed to the one that replaced it. One that the agent has
    taken into a running turn has the outcome of that turn. Raises NotFound.
    """
    session = visible_session(user, session_id)
    prompt = _follow(_find_prompt(session, message_id))
    run = newest_turn_of(session.id, prompt.steered_into or prompt.message_id)
    permissions = pending_permissions(session)
    run_state, reason, is_answered = None, "", False
    if run is not None:
        run_state, reason = run.state, run.reason
        is_answered = run.wait_kind == WaitKind.PERMISSION and not permissions
    outcome = turn_outcome(prompt.state, run_state, is_held_up=_is_held_up(session), is_answered=is_answered)
    situation = view_session(session, user).situation
    turn = results.Turn(
        session_id=session.id,
        message_id=prompt.message_id,
        outcome=outcome,
        finished=outcome not in UNFINISHED,
        answer=None,
        answer_length=0,
        started_at_seq=None,
        reason=reason,
        status_sentence=situation.text,
        next_step=situation.next_step,
        permissions=permissions,
    )
    if run is not None and outcome == Outcome.ENDED:
        turn.started_at_seq = run.first_seq
        answer = _answer(run)
        if answer is not None:
            turn.answer, turn.answer_length = cut(answer, ANSWER_LIMIT), len(answer)
    return turn


def _is_held_up(session: TaskSession) -> bool:
    """Return whether the session has ended, was stopped, or has an agent that is not installed or not logged in."""
    if session.state in ENDED_STATES or session.desired_state == DesiredState.STOPPED:
        return True
    needs_person = session.state == SessionState.ERROR and session.error_code in NEEDS_PERSON_CODES
    return needs_person and open_start_intent(session) is None


def _find_prompt(session: TaskSession, message_id: str | None) -> Prompt:
    rows = session.prompts.select_related("resent_as", "continued_by").order_by("id")
    if message_id is not None:
        row = rows.filter(message_id=message_id).first()
        if row is None:
            raise NotFound("The session has no such prompt.")
    else:
        candidates = rows.exclude(state=PromptState.WITHDRAWN).exclude(kind=PromptKind.CHECK)
        row = candidates.filter(state__in=OPEN_PROMPT_STATES).last() or candidates.last()
        if row is None:
            raise NotFound("The session has no prompt to wait for.")
    return row


def _follow(row: Prompt) -> Prompt:
    """Return the prompt that replaced ``row``, unless that one was withdrawn."""
    for _ in range(MAX_FOLLOWED):
        successor = row.resent_as or row.continued_by
        if successor is None or successor.state == PromptState.WITHDRAWN:
            break
        row = successor
    return row


def _answer(turn: Turn) -> str | None:
    """Return the last message of the agent in a turn."""
    row = answers_of(turn).last()
    if row is None:
        return None
    return texts_of([row])[row.id]


class TurnWatcher(Subscriber):
    """A subscriber that is only notified when something other than the text of messages has changed."""

    def __init__(self, subscription: Subscription, log: SessionLog, seq: int):
        super().__init__(subscription, {log: seq})
        self._changed = asyncio.Event()
        self._closed_with: CloseCode | None = None

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Note whether one of the lines may concern the turn."""
        self.window.ack(lines[-1].log.session_id, lines[-1].seq)
        # Each chunk of text is a line: they would make every waiting call query the database all the time.
        if not all('"event":"session.message.' in line.text[:80] for line in lines):
            self._changed.set()

    async def close(self, code: CloseCode) -> None:
        """Wake the waiting call, which then finds the reason itself."""
        self._closed_with = code
        self._changed.set()

    async def wait(self, timeout: float) -> None:
        """Wait for a change, at most ``timeout`` seconds. Raises NotFound if the caller has lost access."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()
        if self._closed_with in (CloseCode.NOT_AUTHENTICATED, CloseCode.NOT_FOUND):
            raise NotFound("You no longer have access to this session.")


async def wait_for_turn(
    caller: Caller, values: arguments.WaitForTurnArguments, report_progress: ReportProgress
) -> results.Turn:
    """Wait until a turn is finished or needs attention, at most ``timeout_seconds``, and return its state.

    Raises NotFound, and Throttled if the caller has as many waits and streams open as they may have.
    """
    started = monotonic()
    session = await run_in_database(visible_session, caller.user, values.session_id)
    log = SessionLog.of(session)
    watcher = TurnWatcher(Subscription(caller.principal, session.task_id, session.id), log, session.last_seq)
    hub = get_hub()
    try:
        hub.join(watcher, {log: session.last_seq})
        hub.start_feeding(watcher)
        # Read after joining: a change before that is read here, and a later one wakes us.
        turn = await run_in_database(read_turn, caller.user, values.session_id, values.message_id)
        # A connection that ends, as when the web process restarts, gets the present state: the caller waits again.
        while (
            not (turn.finished or watcher.is_closed) and (left := values.timeout_seconds - (monotonic() - started)) > 0
        ):
            await report_progress(monotonic() - started, values.timeout_seconds, turn.status_sentence)
            await watcher.wait(min(left, CHECK_EVERY))
            # By the same message_id: what replaced the prompt may be withdrawn in turn.
            turn = await run_in_database(
                read_turn, caller.user, values.session_id, values.message_id or turn.message_id
            )
    except TooManySubscriptions:
        raise Throttled(1, "You have too many streams and waiting calls open. End one, then try again.") from None
    finally:
        hub.leave(watcher)
    return turn
