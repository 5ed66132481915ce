"""Turns that an agent's death interrupted, and whether the agent is restarted and asked to continue."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from sessions_app.attention.rules.quotations import shorten
from sessions_app.background.rules.background_work import MAX_LISTED
from sessions_app.background.services import process_commands, process_count
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    OPEN_PROMPT_STATES,
    SESSION,
    UNSETTLED_PROMPT_STATES,
    USER_STOP_REASONS,
    WORK,
    DesiredState,
    PermissionState,
    PromptKind,
    PromptState,
    RequestKind,
    RunState,
    WorkState,
)
from sessions_app.kernel.rules.wording import describe_exit
from sessions_app.models import (
    IntentKind,
    Lease,
    PermissionRequest,
    Prompt,
    SessionTransaction,
    Turn,
    session_transaction,
)
from sessions_app.permissions.events import PermissionExpired
from sessions_app.permissions.journal import add_question_message
from sessions_app.prompts import services as prompts
from sessions_app.recovery import continuity
from sessions_app.recovery.rules.resumability import Policy, policy_wants_agent
from sessions_app.recovery.services.assessment import assess_session, effective_policy_of
from sessions_app.starts.events import AgentExited
from sessions_app.starts.rules import restart_rules
from sessions_app.stream.conversation import ConversationUpdate, schedule_writes
from sessions_app.suspensions.models import forget_own_wait
from sessions_app.turns import agent_turns
from sessions_app.turns.agent_turns import is_agent_turn
from sessions_app.turns.events import OutsideWorkInterrupted
from sessions_app.turns.models import was_cancelled
from sessions_app.turns.rules import continuation
from sessions_app.turns.rules.continuation import Interruption
from sessions_app.waits.models import revoke_wait_keys

AGENTCTL_GONE, OUT_OF_MEMORY = "agentctl_gone", "out_of_memory"
PIPE_LOST_REASONS = frozenset({AGENTCTL_GONE, OUT_OF_MEMORY})
"""Reasons of interruptions in which output was lost that was still in the agent's pipe (rule 23)."""
LAST_OUTPUT = 3
"""Lines of the agent's log that the explanation quotes; the item in the inbox has more."""


def interrupt_turn(
    transaction: SessionTransaction,
    reason: str,
    update: ConversationUpdate | None = None,
    *,
    is_present: bool = True,
    may_continue: bool = True,
) -> bool:
    """Interrupt the open turn, because its agent is gone: close its messages, permission requests and prompts.

    Returns False if no turn was open. Then it is recorded what else ended with the agent, if it is the present one, as
    for a turn that the agent began itself: nobody prompted it, so it is never continued.
    ``session.run.interrupted`` is recorded once per run: a unique key in the database enforces it. The session moves to
    WAITING_FOR_INPUT, unless it has ended for good. ``update`` is the conversation of a batch that is being applied;
    without one, the changes are scheduled here. Without ``may_continue``, nothing asks an agent to continue the turn.
    """
    run = transaction.open_turn
    conversation = update or ConversationUpdate(transaction)
    tools = conversation.unfinished_tools()
    is_own = is_agent_turn(run)
    if is_own or (run is None and is_present):
        _record_outside_work(transaction, conversation, reason, tools, was_working=_works(transaction, tools))
    if run is not None and reason not in USER_STOP_REASONS and _is_being_stopped(transaction):
        reason = "stopped"
    conversation.finish(tool_status="interrupted")
    _expire_permissions(transaction, conversation, "agent_gone")
    if run is not None:
        transaction.move_run("interrupt", reason=reason, once=f"run.interrupted:{run.id}", unfinished_tools=tools)
    interrupted = _settle_prompts(transaction)
    if run is not None and not is_own:
        _plan_continuation(transaction, run, interrupted, tools, may_continue=may_continue)
        if is_present:  # of earlier turns
            _record_outside_work(transaction, conversation, reason, (), was_working=False)
    if SESSION.allows(transaction.session.state, "interrupt"):
        if WORK.allows(transaction.session.work_state, "rest"):  # not if its task is done
            transaction.move_work("rest")
        if run is not None:
            transaction.move_session("interrupt", reason="interrupted")
    if update is None:
        schedule_writes([conversation])
    return run is not None


def end_cancelled_work(session_id: uuid.UUID, lease: Lease, message_id: str) -> bool:
    """End a turn that the agent began, after its cancel was passed on; return False if it is not open any more.

    No answer of the agent follows such a cancel, as nobody has prompted it. If it works on, its output begins another
    turn. Its requests are closed here, because an agentctl of release 1.0 leaves them open.
    """
    with session_transaction(session_id, lease) as transaction:
        turn = transaction.open_turn
        if turn is None or not is_agent_turn(turn) or turn.message_id != message_id:
            return False
        conversation = ConversationUpdate(transaction)
        _expire_permissions(transaction, conversation, "turn_cancelled")
        agent_turns.end(transaction, conversation, "cancel", "cancelled")
        schedule_writes([conversation])
    return True


def record_ended_work(transaction: SessionTransaction, reason: str, left_running: Sequence[str]) -> None:
    """Say what ends with an agent that has no turn open, before it is ended.

    ``left_running`` are the command lines that agentctl has just reported; those reported before may have ended.
    """
    conversation = ConversationUpdate(transaction)
    _record_outside_work(transaction, conversation, reason, (), was_working=False, left_running=left_running)
    schedule_writes([conversation])


def _record_outside_work(
    transaction: SessionTransaction,
    conversation: ConversationUpdate,
    reason: str,
    tools: Sequence[str],
    *,
    was_working: bool,
    left_running: Sequence[str] | None = None,
) -> None:
    """Say what ended with an agent outside its turns: its own work, and processes that its turns had left."""
    session = transaction.session
    if left_running is None:
        processes, count = process_commands(session, is_running=True), process_count(session, is_running=True)
    else:
        processes, count = list(left_running), len(left_running)
        if count >= MAX_LISTED:  # there may be more than agentctl lists; its last report counts them
            count = max(count, process_count(session, is_running=True))
    if not was_working and not count:
        return
    facts = Interruption(
        session.task.title, "", tools, dead_processes=processes, outside_turn=True, was_working=was_working
    )
    sentence = continuation.cut_off_sentence(facts, count)
    if _is_being_stopped(transaction):
        reason = "stopped"
    prompts.note_outside_work(transaction, tools, processes, count, was_working=was_working, sentence=sentence)
    transaction.record_event(
        OutsideWorkInterrupted(
            reason=reason,
            was_working=was_working,
            unfinished_tools=list(tools),
            processes=processes,
            process_count=count,
        )
    )
    conversation.add_message("status", sentence, level="warning")


def _works(transaction: SessionTransaction, tools: Sequence[str]) -> bool:
    return bool(tools) or _works_outside_turn(transaction)


def _works_outside_turn(transaction: SessionTransaction) -> bool:
    """Whether the agent works without a prompt; a turn that is retried keeps its session working, too."""
    session, newest = transaction.session, transaction.newest_run
    if is_agent_turn(newest) and newest is not None and newest.ended_at is None:
        return True
    if session.work_state != WorkState.WORKING or newest is None or newest.ended_at is None:
        return False
    retries = session.prompts.filter(kind=PromptKind.RETRY, state__in=OPEN_PROMPT_STATES)
    return not retries.exists()


def _is_being_stopped(transaction: SessionTransaction) -> bool:
    """Whether a user's stop is being carried out: it ends the agent, whose journal may report that end first."""
    session = transaction.session
    if not session.stopped_by_user:
        return False
    stops = session.intents.filter(kind__in=(IntentKind.STOP, IntentKind.CLOSE), done_at=None)
    return bool(stops.exists())


def record_agent_stopped(transaction: SessionTransaction) -> None:
    """Write that no agent is running, because a stop was requested."""
    _write_agent_gone(transaction)
    transaction.set_fields(died_at=None)


def _write_agent_gone(transaction: SessionTransaction) -> None:
    reset_attempts_if_stable(transaction)
    continuity.mark_receipt_unproven(transaction)
    forget_own_wait(transaction.session)
    transaction.set_fields(launch_id="", ready_since=None)


def record_agent_death(transaction: SessionTransaction) -> None:
    """Write that the agent has died, and schedule the restart: the more restarts have failed, the later.

    No restart is scheduled if the session's policy leaves it to a person.
    """
    was_up = bool(transaction.session.launch_id)
    _write_agent_gone(transaction)
    # A death is reported more than once, by the journal and by sweeps: only the first report says when it was.
    if was_up and _restarts_by_itself(transaction):
        first = timedelta(seconds=settings.KANDEV_RESTART_DELAY)
        jitter = random.random()  # noqa: S311  (no secret)
        wait = restart_rules.restart_delay_after_death(transaction.session.start_attempts, jitter, first)
        next_restart_at = None
        if wait:
            next_restart_at = transaction.at + wait
        transaction.set_fields(next_restart_at=next_restart_at, died_at=transaction.at)


def _restarts_by_itself(transaction: SessionTransaction) -> bool:
    session = transaction.session
    if session.desired_state != DesiredState.RUNNING or session.state in ENDED_STATES or session.task.is_over:
        return False
    if session.start_attempts >= settings.KANDEV_MAX_RESTARTS:
        return False  # the next sweep gives the session up
    queued = session.prompts.filter(state=PromptState.QUEUED).exists()
    return policy_wants_agent(effective_policy_of(session).policy, session.work_state, queued, boot=False)


def reset_attempts_if_stable(transaction: SessionTransaction, until: datetime | None = None) -> None:
    """Reset the count of start attempts if the agent stayed alive for long enough.

    ``until`` is when it was last alive; None: when the execution was last seen.
    """
    since, execution = transaction.session.ready_since, transaction.execution
    seen = until
    if seen is None and execution:
        seen = execution.last_seen_at
    if (
        since is not None
        and seen is not None
        and seen - since >= restart_rules.stable_after(transaction.session.start_attempts)
    ):
        transaction.set_fields(start_attempts=0)


def _expire_permissions(transaction: SessionTransaction, conversation: ConversationUpdate, reason: str) -> None:
    """Close the open requests, with a number of statements that does not depend on how many there are."""
    expired = {"state": PermissionState.EXPIRED, "settled_at": transaction.at, "reason": reason}
    pending = PermissionRequest.objects.filter(session=transaction.session, state=PermissionState.PENDING)
    permissions = list(pending.exclude(kind=RequestKind.QUESTION).values_list("id", flat=True))
    questions = list(pending.filter(kind=RequestKind.QUESTION))
    if not permissions and not questions:
        return
    pending.update(**expired, sealed_answer={})
    for permission_id in permissions:
        transaction.record_event(PermissionExpired(permission_id=permission_id, reason=reason))
    for question in questions:
        for name, value in expired.items():
            setattr(question, name, value)
        transaction.record_event(
            PermissionExpired(permission_id=question.id, reason=reason, status=str(question.question_status))
        )
        add_question_message(conversation, question)
    closed = [*permissions, *(question.id for question in questions)]
    revoke_wait_keys(transaction, reason, wait_id__in=closed)


def _settle_prompts(transaction: SessionTransaction) -> Prompt | None:
    """Interrupt prompts that reached the agent, and hold those that may have; return the last interrupted one.

    *Accepted* without *delivered* is in doubt: the process may have died between the two (rule 13). A prompt that is
    still ``sending`` stays as it is: the dispatcher can send it again to the same journal epoch.
    """
    known = None
    for row in transaction.session.prompts.filter(state__in=UNSETTLED_PROMPT_STATES).order_by("id"):
        if row.state == PromptState.DELIVERED and row.steered_into:
            transaction.move_prompt(row, "finish")  # it is part of the turn, whose own prompt is interrupted
        elif row.state == PromptState.DELIVERED:
            transaction.move_prompt(row, "interrupt")
            known = row
        elif row.state == PromptState.ACCEPTED:
            transaction.move_prompt(row, "hold")
    return known


def _plan_continuation(
    transaction: SessionTransaction, run: Turn, interrupted: Prompt | None, tools: list[str], *, may_continue: bool
) -> None:
    """Note the interruption for the next prompt, and queue a continue prompt if no new prompt supersedes the turn.

    The continue prompt is created in the transaction that records the interruption, so no crash can lose it (rule 16).
    """
    session = transaction.session
    policy = effective_policy_of(session)
    facts = continuation.ContinueFacts(
        work_state=WorkState(session.work_state),
        policy=Policy(policy.policy),
        setting=policy.continues if policy.continues_source else None,
        prompt_held=interrupted is None,
        cancelled_by_user=was_cancelled(run),
        stopped_by_user=session.stopped_by_user,
        user_prompt_queued=session.prompts.filter(state=PromptState.QUEUED, kind=PromptKind.USER).exists(),
    )
    if interrupted is not None and interrupted.kind == PromptKind.CHECK:
        transaction.move_prompt(interrupted, "dismiss")  # the next start queues another memory check
        return
    if not continuation.was_interrupted(facts) or interrupted is None:
        return
    prompts.note_interruption(transaction, run, tools)
    if may_continue and continuation.should_continue(facts) and _restarts_unasked(transaction):
        interruption = continuation.Interruption(session.task.title, prompts.whole_request(interrupted), tools)
        _put_continue_prompt(transaction, run, interrupted, continuation.continue_prompt(interruption))


def _restarts_unasked(transaction: SessionTransaction) -> bool:
    """Whether the session's agent is restarted automatically; otherwise a continue prompt would wait for nothing."""
    if transaction.session.start_attempts >= settings.KANDEV_MAX_RESTARTS:
        return False
    execution = transaction.execution  # also caches it on the session, for the assessment
    return execution is not None and assess_session(transaction.session).without_live_agent.needs_resume


def hold_unsent_prompts(transaction: SessionTransaction) -> None:
    """Hold the prompts that were being sent, for a session whose agent is not restarted automatically.

    Whether they arrived is unknown, and no agent will show it: a user decides.
    """
    for row in transaction.session.prompts.filter(state=PromptState.SENDING).order_by("id"):
        transaction.move_prompt(row, "hold")


def withdraw_continuation(transaction: SessionTransaction) -> None:
    """Withdraw automatic continue prompts of an agent that cannot come back, and reopen the prompts they continued.

    A continue prompt that a user asked for stays, as every prompt of a user does.
    """
    waiting = transaction.session.prompts.filter(kind=PromptKind.CONTINUE, state=PromptState.QUEUED, by=None)
    for row in waiting.order_by("id"):
        transaction.move_prompt(row, "withdraw")
        for cut in transaction.session.prompts.filter(continued_by=row, state=PromptState.DISMISSED):
            transaction.move_prompt(cut, "reopen", continued_by=None)


def _put_continue_prompt(transaction: SessionTransaction, run: Turn, interrupted: Prompt, text: str) -> None:
    # Named after the run: each run gets at most one continue prompt, whoever records its interruption.
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=f"continue:{run.id}",
        defaults={"text": text, "kind": PromptKind.CONTINUE},
    )
    if made:
        transaction.move_prompt(interrupted, "dismiss", continued_by=row)  # the continue prompt settles it
        transaction.record_queued(row)


def explain_agent_deaths(transaction: SessionTransaction) -> str:
    """Describe the agent's deaths since its last completed turn; empty if the starts failed for other reasons."""
    most = transaction.session.start_attempts + 1
    success = continuity.completed_turns(transaction.session.id).order_by("-started_at", "-id").first()
    exits = _exits_since(transaction, success)[-most:]
    in_turn = _count_interrupted_since(transaction, success)
    deaths = len(exits) or min(in_turn, most)
    if deaths < 2:  # most of these starts have failed otherwise
        return ""
    sentence = "The agent died"
    if in_turn >= deaths:
        sentence += " in its turn"
    sentence += f" {deaths} times in a row"
    if exits:
        sentence += f" ({', '.join(map(describe_exit, exits))})"
    sentence += "."
    output = [line.strip() for line in transaction.log_tail.splitlines() if line.strip()]
    if output:
        sentence += f" Its last output: {shorten(' / '.join(output[-LAST_OUTPUT:]))}"
    return f"{sentence} It is not restarted automatically again."


def _exits_since(transaction: SessionTransaction, success: Turn | None) -> list[Any]:
    """Return the exit codes of agents that died since a completed turn, oldest first; None: since the beginning."""
    since = 0
    if success is not None:
        since = success.first_seq or 0  # no agent dies in a turn that it completes
    log = transaction.session.events
    died = log.filter(name=AgentExited.name, seq__gt=since, payload__expected=False).order_by("seq")
    return [payload.get("exit_code") for payload in died.values_list("payload", flat=True)]


def _count_interrupted_since(transaction: SessionTransaction, success: Turn | None) -> int:
    interrupted = transaction.session.runs.filter(state=RunState.INTERRUPTED)
    if success is not None:
        interrupted = interrupted.filter(started_at__gt=success.started_at)
    return int(interrupted.count())
