"""What is said of a turn whose agent process is gone: once, truly, and nothing sent again by itself (design 7)."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from django.conf import settings

from executors_app.prepared import Prepared
from sessions_app.domain import backoff, continuation, memory_check
from sessions_app.domain.recovery import Policy
from sessions_app.domain.recovery_facts import wants_now
from sessions_app.domain.states import (
    ENDED_STATES,
    SESSION,
    UNSETTLED_PROMPT_STATES,
    WORK,
    DesiredState,
    PromptState,
    WorkState,
)
from sessions_app.models import Draft, IntentKind, PermissionRequest, Prompt, Run, waits
from sessions_app.services import unfinished
from sessions_app.services.assessment import assess_session
from sessions_app.services.policies import policy_of
from sessions_app.supervisor.ingest.conversation import Conversation
from sessions_app.supervisor.start import receipts

AGENTCTL_GONE, OUT_OF_MEMORY = "agentctl_gone", "out_of_memory"
WITH_ITS_AGENTCTL = frozenset({AGENTCTL_GONE, OUT_OF_MEMORY})
"""Reasons of an interruption in which what stood in the agent's pipe is lost (rule 23)."""
_ASKED = Prepared(lambda key: PermissionRequest.objects.filter(session_id=key, state="pending"))
_UNSETTLED = Prepared(
    lambda key: Prompt.objects.filter(session_id=key, state__in=UNSETTLED_PROMPT_STATES).order_by("id")
)


def interrupt(draft: Draft, reason: str, conversation: Conversation | None = None) -> bool:
    """The agent of the open turn is gone: close the turn, its messages, permissions and prompts.

    Appends ``session.run.interrupted`` exactly once per run (unique in the database), and settles
    every prompt on its way. False where no turn was open. Moves the session to WAITING_FOR_INPUT,
    unless it has ended for good.
    """
    run = draft.open_turn
    talk = conversation or Conversation(draft)
    tools = talk.unfinished_tools()
    talk.finish(tool_status="interrupted")
    _expire_permissions(draft)
    if run is not None:
        draft.move_run("interrupt", reason=reason, once=f"run.interrupted:{run.id}", unfinished_tools=tools)
    interrupted = _settle_prompts(draft)
    if run is not None:
        _go_on(draft, run, interrupted, tools)
    if SESSION.allows(draft.session.state, "interrupt"):
        if WORK.allows(draft.session.work_state, "rest"):  # else its task is done
            draft.work("rest")
        if run is not None:
            draft.move("interrupt", reason="interrupted")
    if conversation is None:
        talk.seal()
    return run is not None


def agent_left(draft: Draft) -> None:
    """No agent is up any more, as somebody wanted."""
    forgive_if_steady(draft)
    receipts.unproven(draft)
    draft.set(launch_id="", ready_since=None)


def agent_died(draft: Draft) -> None:
    """No agent is up any more, and nobody wanted that: the next start waits the longer, the more have not helped.

    Only starts of our own wait; nothing is promised where the session's policy leaves them to a person.
    """
    was_up = bool(draft.session.launch_id)
    agent_left(draft)
    if was_up and _restarts_by_itself(draft):
        first = timedelta(seconds=settings.KANDEV_RESTART_DELAY)
        jitter = random.random()  # noqa: S311  (no secret)
        wait = backoff.after_death(draft.session.start_attempts, jitter, first)
        draft.set(next_restart_at=draft.at + wait if wait else None)


def _restarts_by_itself(draft: Draft) -> bool:
    session = draft.session
    if session.desired_state != DesiredState.RUNNING or session.state in ENDED_STATES or session.task.is_over:
        return False
    if backoff.gave_up(session.start_attempts, settings.KANDEV_MAX_RESTARTS):
        return False  # the next look gives it up
    queued = session.prompts.filter(state=PromptState.QUEUED).exists()
    return wants_now(policy_of(session).policy, session.work_state, queued, boot=False)


def forgive_if_steady(draft: Draft, until: datetime | None = None) -> None:
    """An agent that stayed alive for long enough has earned its starts back (rule 33).

    ``until`` is when it was alive last; None: when it was seen last.
    """
    since, execution = draft.session.ready_since, draft.execution
    seen = until or (execution.last_seen_at if execution else None)
    if since is not None and seen is not None and seen - since >= backoff.steady_after(draft.session.start_attempts):
        draft.set(start_attempts=0)


def _expire_permissions(draft: Draft) -> None:
    for asked in _ASKED.all(draft.session.id):
        asked.state, asked.settled_at = "expired", draft.at
        asked.save(update_fields=["state", "settled_at"])
        draft.say("session.permission.expired", permission_id=asked.id, reason="agent_gone")
        waits.revoke(draft, "agent_gone", wait_id=asked.id)


def _settle_prompts(draft: Draft) -> Prompt | None:
    """What is known to have reached the agent is interrupted, what is in doubt is held (rules 12, 13).

    A prompt in ``sending`` is left to the prompt lane: the same journal epoch may be asked again.
    """
    known = None
    for row in _UNSETTLED.all(draft.session.id):
        if row.state == PromptState.DELIVERED:
            draft.move_prompt(row, "interrupt")
            known = row
        elif row.state == PromptState.ACCEPTED:
            draft.move_prompt(row, "hold")
    return known


def _go_on(draft: Draft, run: Run, interrupted: Prompt | None, tools: list[str]) -> None:
    """What the next prompt tells of it, and the continue prompt where nobody else asks for more (rule 16)."""
    session = draft.session
    held = policy_of(session)
    facts = continuation.ContinueFacts(
        work_state=WorkState(session.work_state),
        policy=Policy(held.policy),
        setting=held.continues if held.continues_source else None,
        prompt_held=interrupted is None,
        cancelled_by_user=_was_cancelled(draft, run),
        stopped_by_user=session.stopped_by_user,
        user_prompt_queued=session.prompts.filter(state=PromptState.QUEUED, kind="user").exists(),
        agent_owns_turn=False,
        turn_finished=False,
    )
    if interrupted is not None and interrupted.kind == memory_check.KIND:
        draft.move_prompt(interrupted, "dismiss")  # the next start asks again
        return
    if not continuation.was_cut(facts) or interrupted is None:
        return
    unfinished.note(draft, run, tools)
    if continuation.should_continue(facts) and _comes_back(draft):
        told = continuation.Interruption(session.task.title, unfinished.request_of(interrupted), tools)
        _put_continue_prompt(draft, run, interrupted, continuation.continue_prompt(told))


def _comes_back(draft: Draft) -> bool:
    """Whether an agent is started again for this session unasked: else a prompt to continue would wait for nobody."""
    if backoff.gave_up(draft.session.start_attempts, settings.KANDEV_MAX_RESTARTS):
        return False
    execution = draft.execution  # the session carries it from now on
    return execution is not None and assess_session(draft.session).if_dead.needs_resume


def _was_cancelled(draft: Draft, run: Run) -> bool:
    """A user asked for the end of this turn, whether or not the agent lived to hear it."""
    return draft.session.intents.filter(kind=IntentKind.CANCEL, payload__message_id=run.message_id).exists()


def hold_unsent(draft: Draft) -> None:
    """No agent comes back to a session by itself: what was on its way is in doubt, and for its user to settle."""
    for row in draft.session.prompts.filter(state=PromptState.SENDING).order_by("id"):
        draft.move_prompt(row, "hold")


def withdraw_continuation(draft: Draft) -> None:
    """The agent cannot come back: what should have told it to go on is taken back, and its user settles the prompt.

    A prompt that a user has asked to continue stays, as every prompt of a user's does.
    """
    waiting = draft.session.prompts.filter(kind="continue", state=PromptState.QUEUED, by=None)
    for row in waiting.order_by("id"):
        draft.move_prompt(row, "withdraw")
        for cut in draft.session.prompts.filter(continued_by=row, state=PromptState.DISMISSED):
            draft.move_prompt(cut, "reopen", continued_by=None)


def _put_continue_prompt(draft: Draft, run: Run, interrupted: Prompt, text: str) -> None:
    row, made = Prompt.objects.get_or_create(
        session=draft.session, message_id=f"continue:{run.id}", defaults={"text": text, "kind": "continue"}
    )
    if made:
        draft.move_prompt(interrupted, "dismiss", continued_by=row)  # settled by it
        draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
