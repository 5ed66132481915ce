"""Writing down what somebody asks of a session; the lease holder carries it out (design 2).

Each call is one transaction, after which the supervisors are woken. Nothing here waits for an agent.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from executors_app import crash_points
from executors_app.prepared import Prepared
from sessions_app.domain.recovery import FUTURE
from sessions_app.domain.resumability import Assessment, Mode, assess_mode
from sessions_app.domain.states import ENDED_STATES, DesiredState, PromptState, RunState, SessionState
from sessions_app.models import Draft, Intent, IntentKind, Prompt, Run, TaskSession, waits, wakeups, writing
from sessions_app.models.bulk import insert
from sessions_app.services.assessment import assess_session
from sessions_app.services.errors import (
    BY_CODE,
    Conflict,
    Invalid,
    NoAgent,
    PermissionPending,
    PromptInDoubt,
    TerminalState,
)
from sessions_app.services.lost_worktrees import refuse_lost_worktree
from sessions_app.services.retries import take_back

MODES = tuple(mode.value for mode in Mode)
RUNNING_ROW = 1
GIVEN_UP = "This session was given up. Choose “Try again” first, then send your prompt."
TEXT_LIMIT = 1024 * 1024
"""Characters of a prompt."""
NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What no database stores: U+0000 and halves of characters."""

_OPEN_START = Prepared(lambda key: Intent.objects.filter(session_id=key, kind=IntentKind.START, done_at=None)[:1])


def due() -> Q:
    """Orders of sessions whose next try is due; one that a wrong clock has put off for ever is."""
    return due_between(*now_and_beyond())


def now_and_beyond() -> tuple[datetime, datetime]:
    """What ``due_between`` takes: now, and after which no next try is believed."""
    now = timezone.now()
    return now, now + FUTURE


def due_between(now: datetime, beyond: datetime) -> Q:
    """As ``due`` at such a time."""
    at = "session__next_restart_at"
    return Q(**{at: None}) | Q(**{f"{at}__lte": now}) | Q(**{f"{at}__gt": beyond})


def order(session: TaskSession, kind: str, by: Any, payload: dict[str, Any] | None = None) -> Intent:
    """Write one order, in the caller's transaction."""
    intent = Intent(session=session, kind=kind, by=by, payload=payload or {})
    insert(intent)
    crash_points.reached("request.order_written", session.id)
    transaction.on_commit(lambda: crash_points.reached("request.order_committed", session.id))
    wakeups.ring_on_commit()
    return intent


def open_start(session: TaskSession) -> Intent | None:
    """The session's open start order; there is never more than one."""
    return _OPEN_START.first(session.id)


def order_start(session: TaskSession, by: Any, mode: str) -> Intent:
    """The session's open start order: the one there is, or a new one (never two).

    What a user chose counts as long as nobody has begun the start.
    """
    earlier = open_start(session)
    if earlier is None:
        return order(session, IntentKind.START, by, {"mode": mode})
    if by is not None and mode != Mode.AUTO and earlier.claimed_generation is None:
        earlier.by, earlier.payload = by, {"mode": mode}
        earlier.save(update_fields=["by", "payload"])
    return earlier


def resume(session_id: uuid.UUID, by: Any, mode: str = "auto") -> None:
    """Ask for a session to run again; raises the error of the assessment's refusal."""
    if mode not in MODES:
        raise Invalid(f"mode is one of {', '.join(MODES)}.", field="mode")
    refuse_lost_worktree(session_id)
    with writing(session_id, beside=("agent_profile", "task")) as draft:
        assessment = _opinion(draft)
        if mode == Mode.AUTO and assessment.row == RUNNING_ROW:
            return
        verdict = assess_mode(assessment, mode)
        if not verdict.allowed:
            raise BY_CODE.get(verdict.refusal, Conflict)
        _want(draft, by)
        draft.set(start_attempts=0, next_restart_at=None)
        order_start(draft.session, by, mode)


def _opinion(draft: Draft) -> Assessment:
    """What a start would meet; an agent that is to be stopped is as good as gone."""
    assessment = assess_session(draft.session)
    return assessment if draft.session.desired_state == DesiredState.RUNNING else assessment.if_dead


def _want(draft: Draft, by: Any) -> None:
    """The user wants the session to run."""
    draft.set(desired_state=DesiredState.RUNNING, stopped_by_user=False, start_rank=None)
    if draft.session.owner_id is None and by is not None:
        draft.set(owner_id=by.id)


def prompt(
    session_id: uuid.UUID, message_id: str, text: str, by: Any, *, ends_permission: bool = True
) -> tuple[Prompt, bool]:
    """Put a user's prompt into the ledger; (prompt, whether it is new). Wakes or resumes the session.

    The same ``message_id`` again gives the first row. ``ends_permission``: whether the prompt may end the turn of an
    agent that waits for a permission. Raises Invalid, TerminalState, NotResumable, NoAgent, MissingResumeToken,
    WorktreeMissing, PromptInDoubt, PermissionPending.
    """
    _check_prompt(message_id, text)
    with writing(session_id) as draft:
        earlier = draft.session.prompts.filter(message_id=message_id).first()
        if earlier is not None:
            return _given_again(earlier, text), False
        if draft.session.task.end:
            raise TerminalState.of_task(draft.session.task.end)
        if draft.session.state == SessionState.FAILED:
            raise TerminalState(GIVEN_UP)
        if draft.session.state in ENDED_STATES:
            raise TerminalState("The session has ended. Start a new one.")
        wake(draft, by, ends_permission=ends_permission)
        row = Prompt.objects.create(session=draft.session, message_id=message_id, text=text, by=by)
        draft.say("session.prompt.queued", message_id=message_id, kind=row.kind, state=row.state)
        crash_points.reached("request.prompt_written", session_id)
    crash_points.reached("request.prompt_committed", session_id)
    return row, True


def _check_prompt(message_id: str, text: str) -> None:
    if not message_id or len(message_id) > 128 or not message_id.isprintable():
        raise Invalid("message_id is 1 to 128 printable characters.", field="message_id")
    if message_id.startswith(("continue:", "wait:", "check:")):
        raise Invalid("message_id begins with a word that the system keeps for itself.", field="message_id")
    check_text(text)


def check_text(text: str, *, field: str = "text") -> None:
    """Whether a text can be a prompt; Invalid, naming the request's ``field``, if not."""
    if not text.strip():
        raise Invalid("The prompt is empty.", field=field)
    if NO_TEXT.search(text):
        raise Invalid("The prompt holds characters that are no text.", field=field)
    if len(text) > TEXT_LIMIT:
        raise Invalid(f"The prompt is longer than {TEXT_LIMIT} characters.", field=field)


def _given_again(earlier: Prompt, text: str) -> Prompt:
    if earlier.state == PromptState.HELD:
        raise PromptInDoubt
    if earlier.text != text:
        raise Conflict("Another prompt has this message_id.", message_id=earlier.message_id)
    return earlier


def wake(draft: Draft, by: Any, *, ends_permission: bool = True) -> None:
    """Make way for a prompt: order a start where nothing runs, end the turn of an agent that waits.

    Refuses where no start can be had. A user's prompt does not wait for the time of the loop's next try.
    """
    if not draft.session.has_agent:
        raise NoAgent
    waits.end_external(draft, "new_message")
    assessment = _opinion(draft)
    if assessment.row == RUNNING_ROW:
        _end_wait(draft, by, allowed=ends_permission)
        return
    verdict = assess_mode(assessment, Mode.AUTO)
    if not verdict.allowed:
        raise BY_CODE.get(verdict.refusal, Conflict)
    _want(draft, by)
    draft.set(next_restart_at=None)
    order_start(draft.session, by, Mode.AUTO)


def _end_wait(draft: Draft, by: Any, *, allowed: bool) -> None:
    """A fresh message to an agent that waits for a permission cancels the question and its turn (rule 30).

    What has been answered is waited for no more: that turn goes on, and the message comes behind it.
    PermissionPending, and nothing is changed, where that is not ``allowed``.
    """
    run = draft.open_turn
    if run is not None and run.state == RunState.WAITING and waits.revoke(draft, "new_message", run=run):
        if not allowed:
            raise PermissionPending
        order(draft.session, IntentKind.CANCEL, by, {"message_id": run.message_id})


def cancel(session_id: uuid.UUID, by: Any) -> bool:
    """Ask for the active turn to end, or to be tried no more; False where there is none."""
    with writing(session_id) as draft:
        run = draft.open_run
        if run is None:
            return take_back(draft)
        if not run.has_process and _cancel_wait(draft, run):
            return True
        order(draft.session, IntentKind.CANCEL, by, {"message_id": run.message_id})
    return True


def _cancel_wait(draft: Draft, run: Run) -> bool:
    """End a wait for the outside, with what came of it where no agent was told of it; False where one may have it."""
    if waits.end_external(draft, "cancelled"):
        return True
    row = draft.session.prompts.filter(message_id=run.message_id, state=PromptState.QUEUED).first()
    if row is not None:
        draft.move_prompt(row, "withdraw")  # and its run ends with it
    return row is not None


def stop(session_id: uuid.UUID, by: Any) -> None:
    """Ask for the execution to end; the session can be resumed later. A start in flight loses."""
    with writing(session_id) as draft:
        _refuse_start(draft)
        waits.end_external(draft, "stopped")
        take_back(draft)
        draft.set(desired_state=DesiredState.STOPPED, stopped_by_user=by is not None, start_rank=None)
        if not draft.session.intents.filter(kind=IntentKind.STOP, done_at=None).exists():
            order(draft.session, IntentKind.STOP, by)


def close(session_id: uuid.UUID, by: Any, outcome: str) -> None:
    """End a session for good, as ``completed`` or ``cancelled``; its execution ends too."""
    if outcome not in ("completed", "cancelled"):
        raise Invalid("as is one of completed, cancelled.", field="as")
    with writing(session_id) as draft:
        if draft.session.state in (SessionState.COMPLETED, SessionState.CANCELLED):
            raise TerminalState
        earlier = draft.session.intents.filter(kind=IntentKind.CLOSE, done_at=None).first()
        if earlier is not None and earlier.payload["as"] != outcome:
            raise Conflict(f"The session is being closed as {earlier.payload['as']}.")
        _refuse_start(draft)
        waits.end_external(draft, "closed")
        draft.set(desired_state=DesiredState.STOPPED, stopped_by_user=True, start_rank=None)
        if earlier is None:
            order(draft.session, IntentKind.CLOSE, by, {"as": outcome})


def _refuse_start(draft: Draft) -> None:
    """Take back a start that nobody has begun; one in flight sees ``desired_state`` at its last write."""
    waiting = draft.session.intents.filter(kind=IntentKind.START, done_at=None, claimed_generation=None)
    waiting.update(done_at=timezone.now(), outcome="stopped")
