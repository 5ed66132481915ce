"""Prompts: queue one with its files, act on those that wait or failed, and add the context that an agent needs.

The context is the work that an interruption left unfinished, and what happened in the workspace; the history of a new
agent is beside it (``recovery/services/history.py``).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models.functions import Length
from django.db.transaction import on_commit

from executors_app.machine import crash_points
from executors_app.wire.protocol import AGENT_TURN_PREFIX
from sessions_app.agents.rules.agent_programs import LOGGED_OUT
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    DesiredState,
    PromptKind,
    PromptState,
    RunState,
    SessionState,
    TurnOrigin,
)
from sessions_app.kernel.services.errors import (
    AttachmentMissing,
    AttachmentTooLarge,
    AttachmentUnsupported,
    Conflict,
    Invalid,
    MediaTypeUnsupported,
    NoAgent,
    NotFound,
    NotSteerable,
    PermissionPending,
    PromptChanged,
    PromptInDoubt,
    PromptNotQueued,
    QueueFull,
    TerminalState,
)
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import (
    INTERRUPTED_WAIT,
    Attachment,
    IntentKind,
    Prompt,
    SessionTransaction,
    TaskSession,
    Turn,
    session_transaction,
)
from sessions_app.prompts.events import EDIT_EXCERPT, PromptEdited, PromptMoved, PromptSteered
from sessions_app.prompts.models import LIMIT_PREFIX, QUEUE_ORDER, digest_of
from sessions_app.prompts.rules import attachments
from sessions_app.prompts.rules.attachments import AttachedFile
from sessions_app.recovery.rules.resumability import Assessment, Mode
from sessions_app.recovery.services.assessment import assess_for_start
from sessions_app.sessions.services.intents import (
    end_work_after_retry,
    ensure_start_intent,
    require_mode,
    want_running,
)
from sessions_app.stream.models import has_called_tools_since
from sessions_app.suspensions.models import open_suspension
from sessions_app.turns.rules.continuation import (
    InterruptedWait,
    Interruption,
    continue_prompt,
    interrupted_wait_note,
    interruption_note,
    retry_prompt,
)
from sessions_app.waits.models import NEW_MESSAGE, end_external_wait, revoke_wait_keys
from sessions_app.workspace.services import workspace_notes

GIVEN_UP_MESSAGE = "This session was given up. Choose “Try again” first, then send your prompt."
MAX_QUEUED: Final = 200
"""Prompts that may wait in a session's queue when another one is queued: its page shows all, and a move locks all."""
HISTORY_LENGTH: Final = 50
"""Earlier prompts of a user that the composer offers."""
HISTORY_TEXT: Final = 10_000
"""Characters of the longest of them."""
TEXT_LIMIT = 1024 * 1024
"""Maximum number of characters of a prompt."""
UNSTORABLE_CHARACTERS = re.compile("[\0\ud800-\udfff]")
"""Characters that databases cannot store: U+0000 and lone surrogates."""
BLOCKS_KEY: Final = "prompt_blocks"
"""Metadata key: the kinds of content blocks that the agent accepted in prompts at its last start."""
_MEGABYTE: Final = 1024 * 1024
_RESERVED_PREFIXES: Final = ("continue:", "wait:", "check:", "retry:", "login:", LIMIT_PREFIX, AGENT_TURN_PREFIX)
"""Beginnings of the names of Kandev's own prompts: a user's prompt with such a name would take its place."""
INTERRUPTION_KEY: Final = "interruption"
"""Metadata key: ``{message_id, run_id, tools, since, changed, processes}``; empty: nothing is unfinished.

For work outside a turn also ``outside``, ``was_working`` and ``sentence``, which tells people what it was.
"""
STEERING_KEY: Final = "steering"
"""Metadata key: True if the agent announced at its last start that it takes texts into a running turn."""
CARRIER_KEY: Final = "told_with"
"""Metadata key: message_id of the prompt that is on its way with history or interruption."""
CARRIED_KEY: Final = "told_last"
"""Metadata key: what the last of these prompts told, with its message_id; told again if its agent refused it unread."""
_CONTEXT_KEYS: Final = (INTERRUPTION_KEY, INTERRUPTED_WAIT)


def queue_prompt(
    session_id: uuid.UUID,
    message_id: str,
    text: str,
    by: User | None,
    *,
    ends_permission: bool = True,
    files: Sequence[AttachedFile] = (),
    now: bool = False,
    of_workflow: bool = False,
) -> tuple[Prompt, bool]:
    """Queue a user's prompt; return it, and whether it is new. Wakes or resumes the session.

    ``now``: hand it to the turn that is running, if there is one and its agent offers that. ``of_workflow``: a step of
    a workflow sends it, so that nobody edits it or hands it to another turn.

    Repeating a ``message_id`` returns the first row; with ``now``, one that still waits is handed to the running turn,
    so that neither the order nor the number of requests decides what becomes of it. ``ends_permission``: whether the
    prompt may end the turn of an agent that waits for a permission. ``files``: checked by ``check_files``. Raises
    Invalid, TerminalState, NotResumable, NoAgent, MissingResumeToken, WorktreeMissing, PromptInDoubt,
    PermissionPending, AttachmentUnsupported, QueueFull.
    """
    validate_prompt(message_id, text)
    with session_transaction(session_id) as transaction:
        # The session's row is locked, so of two requests with this message_id the second finds the first one's row.
        earlier = transaction.session.prompts.filter(message_id=message_id).first()
        if earlier is not None:
            row = _same_prompt(earlier, text, files)
            if now and row.state == PromptState.QUEUED and not row.of_workflow:
                _want_in_turn(transaction, row, steerable_turn(transaction))
            return row, False
        turn = steerable_turn(transaction) if now else None
        row = add_to_queue(
            transaction,
            message_id,
            text,
            by,
            ends_permission=ends_permission,
            files=files,
            turn=turn,
            of_workflow=of_workflow,
        )
    return row, True


def add_to_queue(
    transaction: SessionTransaction,
    message_id: str,
    text: str,
    by: User | None,
    *,
    ends_permission: bool = True,
    files: Sequence[AttachedFile] = (),
    turn: Turn | None = None,
    of_workflow: bool = False,
) -> Prompt:
    """Queue a prompt that ``validate_prompt`` has accepted and whose ``message_id`` is new, in this transaction.

    ``turn``: the running turn into which it is handed. Raises what ``queue_prompt`` raises.
    """
    refuse_ended(transaction.session)
    if transaction.session.prompts.filter(state=PromptState.QUEUED).count() >= MAX_QUEUED:
        raise QueueFull(limit=MAX_QUEUED)
    if turn is None:
        prepare_for_prompt(transaction, by, ends_permission=ends_permission)
    attached = store_files(transaction.session, files)
    row = transaction.add_prompt(message_id, text, by=by, attachments=attached, of_workflow=of_workflow)
    _want_in_turn(transaction, row, turn)
    _reach_prompt_points(transaction.session.id)
    return row


def earlier_prompts(session: TaskSession, by: User) -> list[str]:
    """Return the texts that a user has sent to a session, the newest first, each once, within ``HISTORY_LENGTH``."""
    own = session.prompts.filter(kind=PromptKind.USER, by=by, of_workflow=False)
    short = own.annotate(length=Length("text")).filter(length__lte=HISTORY_TEXT)
    newest = short.order_by("-id").values_list("text", flat=True)[:HISTORY_LENGTH]
    return list(dict.fromkeys(newest))


def _reach_prompt_points(session_id: uuid.UUID) -> None:
    crash_points.reached("request.prompt_written", session_id)
    on_commit(lambda: crash_points.reached("request.prompt_committed", session_id))


def refuse_ended(session: TaskSession) -> None:
    """Raise TerminalState if the session, or its task, has ended or was given up."""
    if session.task.end:
        raise TerminalState.of_task(session.task.end)
    if session.state == SessionState.FAILED:
        raise TerminalState(GIVEN_UP_MESSAGE)
    if session.state in ENDED_STATES:
        raise TerminalState("The session has ended. Start a new one.")


def refuse_prompts(session: TaskSession, assessment: Assessment) -> None:
    """Raise the error with which every prompt to the session is refused, whatever it contains."""
    refuse_ended(session)
    _refuse_without_agent(session, assessment)


def _refuse_without_agent(session: TaskSession, assessment: Assessment) -> None:
    """Raise NoAgent, or the error with which the assessment refuses to start an agent that does not run."""
    if not session.has_agent:
        raise NoAgent
    if not assessment.is_running:
        require_mode(assessment, Mode.AUTO)


def validate_prompt(message_id: str, text: str) -> None:
    """Raise Invalid if this cannot be the name or the text of a user's prompt."""
    if not message_id or len(message_id) > 128 or not message_id.isprintable():
        raise Invalid("message_id must be 1 to 128 printable characters.", field="message_id")
    if message_id.startswith(_RESERVED_PREFIXES):
        raise Invalid(
            f"message_id must not begin with any of {', '.join(_RESERVED_PREFIXES)}, which are reserved.",
            field="message_id",
        )
    validate_prompt_text(text)


def validate_prompt_text(text: str, *, field: str = "text") -> None:
    """Raise Invalid, naming the request's ``field``, if the text cannot be a prompt."""
    if not text.strip():
        raise Invalid("The prompt is empty.", field=field)
    if UNSTORABLE_CHARACTERS.search(text):
        raise Invalid("The prompt contains characters that are not valid text.", field=field)
    if len(text) > TEXT_LIMIT:
        raise Invalid(f"The prompt is longer than {TEXT_LIMIT} characters.", field=field)


def _same_prompt(earlier: Prompt, text: str, files: Sequence[AttachedFile]) -> Prompt:
    if earlier.state == PromptState.HELD:
        raise PromptInDoubt
    if not earlier.has_begun_as(text) or earlier.attachments != [each.described() for each in files]:
        raise Conflict("Another prompt has this message_id.", message_id=earlier.message_id)
    return earlier


def prepare_for_prompt(transaction: SessionTransaction, by: User | None, *, ends_permission: bool = True) -> None:
    """Make the session ready for a prompt: start an agent if none runs, or end the turn of one that waits.

    Raises the error with which the assessment refuses a start. A user's prompt does not wait for the next automatic
    try. Raises PermissionPending as ``queue_prompt``.
    """
    run = transaction.open_run
    if run is not None and not run.has_process:
        end_external_wait(transaction, NEW_MESSAGE)
    assessment = assess_for_start(transaction)
    _refuse_without_agent(transaction.session, assessment)
    if assessment.is_running:
        _end_wait(transaction, by, allowed=ends_permission)
        return
    want_running(transaction, by)
    suspension = open_suspension(transaction.session.id)
    if suspension is not None and suspension.holds_prompts:
        return  # the agent is started when its usage limit has ended
    transaction.set_fields(next_restart_at=None)
    ensure_start_intent(transaction.session, by, Mode.AUTO)


def _end_wait(transaction: SessionTransaction, by: User | None, *, allowed: bool) -> None:
    """Cancel the question and the turn of an agent that waits for a permission, so that the new message is next.

    If the question was answered meanwhile, no key is left to revoke: the turn continues, and the message follows it.
    Raises PermissionPending and changes nothing if that is not ``allowed``.
    """
    run = transaction.open_turn
    if run is not None and run.state == RunState.WAITING and revoke_wait_keys(transaction, NEW_MESSAGE, run=run):
        # Raising rolls back the transaction, and with it the revocation.
        if not allowed:
            raise PermissionPending
        create_intent(transaction.session, IntentKind.CANCEL, by, {"message_id": run.message_id})


def _lock_prompt(transaction: SessionTransaction, message_id: str, *wanted: str) -> Prompt:
    row: Prompt | None = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
    if row is None:
        raise NotFound("The session has no such prompt.")
    if row.state not in wanted:
        raise Conflict(f"This prompt is {row.state}.", state=row.state)
    return row


def resend_prompt(session_id: uuid.UUID, message_id: str, by: User | None) -> Prompt:
    """Queue text and files of a prompt again as a new row.

    A held or interrupted prompt is settled by that. The prompt of the newest turn can be repeated if that turn failed.
    """
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        # Repeating the request sends nothing twice: it returns the row that the first one created.
        if old is not None and old.resent_as is not None:
            return old.resent_as
        if old is None or not has_failed_in_newest_turn(old, transaction.newest_run):
            old = _lock_prompt(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        require_contents(old)
        prepare_for_prompt(transaction, by)
        row = Prompt.objects.create(
            session=transaction.session,
            message_id=str(uuid.uuid4()),
            text=old.text,
            attachments=old.attachments,
            kind=old.kind,
            by=by,
            of_workflow=old.of_workflow,
        )
        if old.state == PromptState.DONE:
            old.resent_as = row
            old.save(update_fields=["resent_as", "updated_at"])
        else:
            transaction.move_prompt(old, "dismiss", resent_as=row)
        transaction.record_queued(row)
        _reach_prompt_points(session_id)
    return row


def has_failed_in_newest_turn(prompt: Prompt, turn: Turn | None) -> bool:
    """Whether the newest ``turn`` of the session was that of ``prompt``, written by a user, and failed."""
    if turn is None or turn.state != RunState.FAILED or turn.message_id != prompt.message_id:
        return False
    return prompt.state == PromptState.DONE and prompt.kind == PromptKind.USER and not prompt.of_workflow


def dismiss_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Settle a held or interrupted prompt without sending anything."""
    with session_transaction(session_id) as transaction:
        row: Prompt | None = transaction.session.prompts.filter(message_id=message_id).first()
        if row is not None and row.state == PromptState.DISMISSED:
            return row
        row = _lock_prompt(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        transaction.move_prompt(row, "dismiss")
    return row


def withdraw_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Withdraw a queued prompt before it is sent."""
    with session_transaction(session_id) as transaction:
        row = _lock_prompt(transaction, message_id, PromptState.QUEUED)
        transaction.move_prompt(row, "withdraw")
        end_work_after_retry(transaction, row)
        _reach_queue_points(session_id)
    return row


_NOT_QUEUED: Final[Mapping[str, str]] = {
    PromptState.WITHDRAWN: "This prompt was withdrawn, so it was not changed.",
    PromptState.DISMISSED: "This prompt was dismissed, so it was not changed.",
}
"""What is said of a prompt that cannot be changed any more; of any other state, that it was sent."""


def _lock_queued(transaction: SessionTransaction, message_id: str) -> Prompt:
    """Lock a prompt of a user that waits in the queue. Raises NotFound, PromptNotQueued, Conflict."""
    row: Prompt | None = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
    if row is None:
        raise NotFound("The session has no such prompt.")
    if row.state != PromptState.QUEUED:
        sent = "This prompt has been sent to the agent meanwhile, so it was not changed."
        raise PromptNotQueued(_NOT_QUEUED.get(row.state, sent), state=row.state)
    if row.kind != PromptKind.USER:
        raise Conflict("Kandev wrote this prompt. It can be withdrawn, but not changed or moved.", kind=row.kind)
    return row


def _refuse_of_workflow(row: Prompt) -> None:
    """Raise Conflict for the prompt of a workflow's step."""
    if row.of_workflow:
        raise Conflict(
            "A step of a workflow has sent this prompt: the step shows its text and the answer of its own turn. "
            "It can be moved or withdrawn, but neither edited nor handed to another turn."
        )


def edit_prompt(session_id: uuid.UUID, message_id: str, text: str, by: User, *, version: int) -> Prompt:
    """Replace the text of a queued prompt; ``version`` is the one that the editor has seen.

    Repeating the request changes nothing. Raises Invalid, NotFound, PromptNotQueued, PromptChanged, and Conflict for a
    prompt of Kandev or of a workflow. Whoever sends the prompt locks the same session, so it is either edited before
    that or not at all.
    """
    validate_prompt_text(text)
    with session_transaction(session_id) as transaction:
        row = _lock_queued(transaction, message_id)
        _refuse_of_workflow(row)
        if row.text == text:
            return row
        if row.text_version != version:
            raise PromptChanged(version=row.text_version, text=row.text)
        old_text = row.text
        row.first_digest = row.first_digest or digest_of(old_text)
        row.text, row.text_version, row.edited_by = text, version + 1, by.get_username()
        row.save(update_fields=["text", "text_version", "first_digest", "edited_by", "updated_at"])
        edited = PromptEdited(
            message_id=row.message_id,
            kind=row.kind,
            state=row.state,
            version=row.text_version,
            old_text=old_text[:EDIT_EXCERPT],
            new_text=text[:EDIT_EXCERPT],
            old_length=len(old_text),
            length=len(text),
            by=row.edited_by,
        )
        transaction.record_event(edited)
        _reach_queue_points(session_id)
    return row


def send_now(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Hand a queued prompt to the running turn, where the agent offers that; repeating this changes nothing.

    Raises NotFound, PromptNotQueued, NotSteerable, and Conflict for a prompt of Kandev or of a workflow. If the turn
    ends before the agent has taken it, it is the same queued prompt again.
    """
    with session_transaction(session_id) as transaction:
        row = _lock_queued(transaction, message_id)
        _refuse_of_workflow(row)
        turn = steerable_turn(transaction)
        if turn is None:
            raise NotSteerable
        _want_in_turn(transaction, row, turn)
    return row


def steerable_turn(transaction: SessionTransaction) -> Turn | None:
    """Return the open turn of a prompt, if its agent takes texts into it."""
    turn = transaction.open_turn
    if turn is None or turn.origin == TurnOrigin.AGENT or not offers_steering(transaction.session):
        return None
    wanted = transaction.session.desired_state == DesiredState.RUNNING
    if wanted and assess_for_start(transaction).is_running:
        return turn
    return None


def offers_steering(session: TaskSession) -> bool:
    """Return whether the session's agent announced at its last start that it takes texts during a turn."""
    return session.metadata.get(STEERING_KEY) is True


def _want_in_turn(transaction: SessionTransaction, row: Prompt, turn: Turn | None) -> None:
    """Note that a queued prompt is wanted in the running turn; None: there is none that takes prompts."""
    if turn is None or row.steered_into == turn.message_id:
        return
    row.steered_into, row.missed_turn = turn.message_id, False
    row.save(update_fields=["steered_into", "missed_turn", "updated_at"])
    steered = PromptSteered(message_id=row.message_id, kind=row.kind, state=row.state, turn=row.steered_into)
    transaction.record_event(steered)
    _reach_queue_points(row.session_id)


def _reach_queue_points(session_id: uuid.UUID) -> None:
    crash_points.reached("queue.change_written", session_id)
    on_commit(lambda: crash_points.reached("queue.change_committed", session_id))


def settle_steered(transaction: SessionTransaction, turn_id: str) -> None:
    """Finish the prompts that the agent took into a turn which has ended: they were part of it."""
    taken = transaction.session.prompts.filter(state=PromptState.DELIVERED, steered_into=turn_id)
    for row in taken.exclude(steered_into="").order_by("id"):
        transaction.move_prompt(row, "finish")


def move_to_position(session_id: uuid.UUID, message_id: str, position: int, by: User) -> Prompt:
    """Move a queued prompt to this position among the queued prompts of users, from 1; beyond the last: to the end.

    Raises NotFound, PromptNotQueued, and Conflict for a prompt of Kandev, whose place follows from what it is for.
    """
    with session_transaction(session_id) as transaction:
        row = _lock_queued(transaction, message_id)
        _move(transaction, row, position - 1, by)
    return row


def move_by(session_id: uuid.UUID, message_id: str, steps: int, by: User) -> Prompt:
    """Move a queued prompt by so many places, negative ones to the front. Raises as ``move_to_position``."""
    with session_transaction(session_id) as transaction:
        row = _lock_queued(transaction, message_id)
        _move(transaction, row, _queued_by_users(transaction).index(row) + steps, by)
    return row


def move_next_to(session_id: uuid.UUID, message_id: str, other_id: str, by: User, *, after: bool) -> Prompt:
    """Move a queued prompt directly before or after another one. Raises as ``move_to_position``, also for the other."""
    with session_transaction(session_id) as transaction:
        row, other = _lock_queued(transaction, message_id), _lock_queued(transaction, other_id)
        others = [each for each in _queued_by_users(transaction) if each != row]
        if row != other:
            _move(transaction, row, others.index(other) + after, by)
    return row


def _queued_by_users(transaction: SessionTransaction) -> list[Prompt]:
    """Return the queued prompts of users in their order, locked."""
    rows = transaction.session.prompts.select_for_update().filter(state=PromptState.QUEUED, kind=PromptKind.USER)
    return list(rows.defer("text").order_by(*QUEUE_ORDER))


def _move(transaction: SessionTransaction, row: Prompt, index: int, by: User) -> None:
    """Give the prompts between the old and the new place of ``row`` the places of their neighbours.

    The places stay the same numbers, so a prompt that is queued later comes after all of them.
    """
    before = _queued_by_users(transaction)
    after = [each for each in before if each != row]
    after.insert(max(index, 0), row)
    if after == before:
        return
    places = [each.queue_place for each in before]
    moved = [each for each, place in zip(after, places, strict=True) if each.queue_place != place]
    for each, place in zip(after, places, strict=True):
        each.place, each.updated_at = place, transaction.at
    Prompt.objects.bulk_update(moved, ["place", "updated_at"])
    row.place = places[after.index(row)]
    event = PromptMoved(
        message_id=row.message_id,
        kind=row.kind,
        state=row.state,
        old_position=before.index(row) + 1,
        new_position=after.index(row) + 1,
        by=by.get_username(),
    )
    transaction.record_event(event)
    _reach_queue_points(row.session_id)


def continue_interrupted(session_id: uuid.UUID, message_id: str, by: User) -> Prompt:
    """Queue a continue prompt for an interrupted one, which it settles; repeating this returns the same row.

    Raises NotFound, Conflict for a prompt that was not interrupted, and the errors of ``prepare_for_prompt``.
    """
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is None:
            raise NotFound("The session has no such prompt.")
        # Repeating the request returns the row that the first one created.
        if old.continued_by is not None:
            return old.continued_by
        if old.state != PromptState.INTERRUPTED:
            raise Conflict(f"This prompt is {old.state}.", state=old.state)
        prepare_for_prompt(transaction, by)
        row = _create_continue_prompt(transaction, old, by)
        transaction.move_prompt(old, "dismiss", continued_by=row)
        _reach_prompt_points(session_id)
    return row


def _create_continue_prompt(transaction: SessionTransaction, old: Prompt, by: User) -> Prompt:
    """Create the continue prompt, named after the interrupted run, so that a run never gets a second one."""
    run = transaction.session.runs.filter(message_id=old.message_id).last()
    name, tools = f"continue:{uuid.uuid4()}", list[str]()
    if run:
        name, tools = f"continue:{run.id}", _unfinished_tools(transaction, run)
    known = unfinished_of(transaction.session)
    if known and known.get("message_id") == old.message_id:
        facts = to_interruption(transaction.session, known)
    else:  # an earlier turn, of which only the log is left
        facts = Interruption(transaction.session.task.title, old.text, tools)
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=name,
        defaults={"text": continue_prompt(facts), "kind": PromptKind.CONTINUE, "by": by},
    )
    if made:
        transaction.record_queued(row)
    return row


def _unfinished_tools(transaction: SessionTransaction, run: Turn) -> list[str]:
    """Return the tools that were unfinished when the run was interrupted, from the log."""
    event = transaction.session.events.filter(once=f"run.interrupted:{run.id}").first()
    if event:
        return [str(title) for title in event.payload.get("unfinished_tools", ())]
    return []


def resend_after_login(session_id: uuid.UUID, by: User | None) -> bool:
    """Queue the prompt of the last turn again, which failed because the agent was not logged in.

    Returns False if there is no such turn, if its prompt was sent again before, or if the session is stopped or over.
    Raises what ``prepare_for_prompt`` and ``require_contents`` raise.
    """
    with session_transaction(session_id, related=("task",)) as transaction:
        session, run = transaction.session, transaction.newest_run
        if run is None or run.state != RunState.FAILED or run.reason != LOGGED_OUT or session.task.end:
            return False
        if session.state != SessionState.WAITING_FOR_INPUT or session.desired_state != DesiredState.RUNNING:
            return False
        failed = session.prompts.select_for_update().filter(message_id=run.message_id).first()
        if failed is None or failed.resent_as is not None or failed.kind == PromptKind.CHECK:
            return False
        require_contents(failed)
        prepare_for_prompt(transaction, by)
        text, files = _text_after_login(run, failed), []
        if text == failed.text:
            files = failed.attachments
        failed.resent_as = transaction.add_prompt(
            f"login:{run.id}",
            text,
            kind=PromptKind.RETRY,
            by=by,
            attachments=files,
            attempt=failed.attempt + 1,
            trouble=LOGGED_OUT,
        )
        failed.save(update_fields=["resent_as", "updated_at"])
    return True


def _text_after_login(turn: Turn, failed: Prompt) -> str:
    """Return the prompt itself, or a continuation of it if the agent had begun to use tools before it was refused."""
    if not has_called_tools_since(turn) or failed.kind == PromptKind.RETRY:
        return failed.text
    request = Interruption(turn.session.task.title, failed.text, ())
    return retry_prompt(request, "The agent was no longer logged in.")


def check_files(files: Iterable[tuple[str, bytes, str]]) -> list[AttachedFile]:
    """Return the files of a request, given as name, content and declared media type (empty: not declared).

    Raises Invalid, AttachmentTooLarge, MediaTypeUnsupported.
    """
    checked: list[AttachedFile] = []
    for name, content, declared in files:
        if len(checked) == attachments.MAX_FILES:
            raise Invalid(f"A prompt can carry at most {attachments.MAX_FILES} files.", field="attachments")
        checked.append(_check_file(attachments.clean_name(name), content, declared))
    if sum(len(each.content) for each in checked) > attachments.MAX_TOTAL_BYTES:
        raise AttachmentTooLarge(
            f"The files of a prompt can have at most {attachments.MAX_TOTAL_BYTES // _MEGABYTE} MiB in total.",
            limit=attachments.MAX_TOTAL_BYTES,
        )
    return checked


def _check_file(name: str, content: bytes, declared: str) -> AttachedFile:
    if not content:
        raise Invalid(f"“{name}” is empty.", field="attachments")
    if len(content) > attachments.MAX_FILE_BYTES:
        most = attachments.MAX_FILE_BYTES // _MEGABYTE
        raise AttachmentTooLarge(f"“{name}” is larger than {most} MiB.", name=name, limit=attachments.MAX_FILE_BYTES)
    media_type = attachments.media_type_of(content)
    if media_type is None:
        raise MediaTypeUnsupported(
            f"“{name}” cannot be sent. A prompt can carry {attachments.TYPES_SENTENCE}.", name=name
        )
    if declared and attachments.block_of(declared) in ("image", "audio") and declared != media_type:
        raise MediaTypeUnsupported(f"“{name}” is declared as {declared}, but it is {media_type}.", name=name)
    return AttachedFile(name, media_type, content)


def store_files(session: TaskSession, files: Sequence[AttachedFile]) -> list[dict[str, Any]]:
    """Store the contents, in the prompt's own transaction; return the value of ``Prompt.attachments``.

    Raises AttachmentUnsupported if the session's agent has reported that it does not accept one of them.
    """
    described = [each.described() for each in files]
    refuse_untaken(session, described)
    rows = [
        Attachment(session=session, sha256=description["sha256"], media_type=file.media_type, content=file.content)
        for description, file in zip(described, files, strict=True)
    ]
    Attachment.objects.bulk_create(rows, ignore_conflicts=True)
    return described


def refuse_untaken(session: TaskSession, described: Sequence[Mapping[str, Any]]) -> None:
    """Raise AttachmentUnsupported for a file that the session's agent does not accept, as far as that is known."""
    taken = accepted_blocks(session)
    if taken is None:
        return
    missing = attachments.first_untaken(described, taken)
    if missing is not None:
        what = attachments.CAPABILITY_BY_BLOCK[attachments.block_of(missing["media_type"])]
        raise AttachmentUnsupported(
            f"This agent does not accept {what} in a prompt: “{missing['name']}” was not sent.", name=missing["name"]
        )


def accepted_blocks(session: TaskSession) -> list[str] | None:
    """Return what the agent accepts in a prompt beside text: ``image``, ``audio``, ``resource``; None if unknown."""
    known = session.metadata.get(BLOCKS_KEY)
    if isinstance(known, list):
        return [str(each) for each in known]
    return None


def remember_blocks(transaction: SessionTransaction, capabilities: Any) -> None:
    """Store what an agent that has just started accepts in a prompt, and whether it takes one during a turn."""
    reported, steers = None, False
    if isinstance(capabilities, dict):
        reported, steers = capabilities.get("prompt"), capabilities.get("steering") is True
    metadata = dict(transaction.session.metadata)
    metadata.pop(BLOCKS_KEY, None)
    metadata.pop(STEERING_KEY, None)
    if steers:
        metadata[STEERING_KEY] = True
    if isinstance(reported, list):
        metadata[BLOCKS_KEY] = sorted(set(map(str, reported)) & set(attachments.CAPABILITY_BY_BLOCK))
    transaction.set_fields(metadata=metadata)


def content_blocks(row: Prompt) -> list[dict[str, Any]]:
    """Return the ACP content blocks of a prompt's files. Raises AttachmentMissing."""
    if not row.attachments:
        return []
    digests = [described["sha256"] for described in row.attachments]
    stored = Attachment.objects.filter(session_id=row.session_id, sha256__in=digests)
    contents = {each.sha256: bytes(each.content) for each in stored}
    if missing := next((each for each in row.attachments if each["sha256"] not in contents), None):
        raise AttachmentMissing(name=missing["name"])
    return [attachments.content_block(each, contents[each["sha256"]]) for each in row.attachments]


def require_contents(row: Prompt) -> None:
    """Raise AttachmentMissing if a file of the prompt is not stored here, as after an import without it."""
    digests = {described["sha256"] for described in row.attachments}
    known = Attachment.objects.filter(session_id=row.session_id, sha256__in=digests).values_list("sha256", flat=True)
    if digests.difference(known):
        raise AttachmentMissing


def note_interruption(transaction: SessionTransaction, turn: Turn, tools: Sequence[str]) -> None:
    """Store what is known of a turn that was interrupted."""
    known = {
        "message_id": turn.message_id,
        "run_id": str(turn.id),
        "tools": list(tools),
        "since": turn.snapshot_before or "",
    }
    transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTION_KEY: known})


def note_outside_work(
    transaction: SessionTransaction,
    tools: Sequence[str],
    processes: Sequence[str],
    process_count: int,
    *,
    was_working: bool,
    sentence: str,
) -> None:
    """Store what ended with an agent that had no turn open; what is unfinished already stays so.

    ``process_count`` includes processes that are not listed.
    """
    known = unfinished_of(transaction.session) or {"message_id": "", "run_id": "", "tools": [], "outside": True}
    turn, since = transaction.newest_run, ""
    if turn:  # without a snapshot after it, nothing has changed since the one before
        since = turn.snapshot_after or turn.snapshot_before or ""
    added = {
        "tools": [*_texts(known, "tools"), *tools],
        "processes": [*_texts(known, "processes"), *processes],
        "unlisted_processes": _unlisted_processes(known) + max(process_count - len(processes), 0),
        "since": known.get("since", since),
        "was_working": was_working or bool(known.get("was_working")),
        "sentence": sentence,
    }
    transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTION_KEY: {**known, **added}})


def outside_work_evidence(session: TaskSession) -> dict[str, Any]:
    """Return, for a receipt, what ended outside a turn and the agent does not know of yet."""
    known = unfinished_of(session)
    if known and known.get("sentence"):
        return {"work_outside_turn": str(known["sentence"])}
    return {}


def unfinished_of(session: TaskSession) -> Mapping[str, Any] | None:
    """Return the unfinished work; None if there is none."""
    found = session.metadata.get(INTERRUPTION_KEY)
    if isinstance(found, dict) and found:
        return found
    return None


def snapshot_to_compare(session: TaskSession) -> str | None:
    """Return the snapshot to compare with (empty: none); None if nothing is unfinished or the changes are known."""
    known = unfinished_of(session)
    if known is None or "changed" in known:
        return None
    return str(known.get("since", ""))


def add_workspace_findings(transaction: SessionTransaction, changed: Sequence[str], processes: Sequence[str]) -> None:
    """Add changed files and ended processes to the unfinished work, and to a continue prompt that is still queued."""
    known = unfinished_of(transaction.session)
    if known is None:
        return
    known = {**known, "changed": list(changed), "processes": list(processes) or _texts(known, "processes")}
    if processes:  # all that ended, as their guard has written it down
        known.pop("unlisted_processes", None)
    transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTION_KEY: known})
    waiting = transaction.session.prompts.filter(
        kind=PromptKind.CONTINUE, state=PromptState.QUEUED, message_id=f"continue:{known.get('run_id')}"
    )
    for row in waiting:
        row.text = continue_prompt(to_interruption(transaction.session, known))
        row.save(update_fields=["text", "updated_at"])


def to_interruption(session: TaskSession, known: Mapping[str, Any]) -> Interruption:
    """Convert the stored unfinished work."""
    row, last_request = session.prompts.filter(message_id=known.get("message_id")).first(), ""
    if row:
        last_request = whole_request(row)
    return Interruption(
        task_title=session.task.title,
        last_request=last_request,
        unfinished_tools=_texts(known, "tools"),
        changed_files=_texts(known, "changed"),
        dead_processes=_texts(known, "processes"),
        unlisted_processes=_unlisted_processes(known),
        outside_turn=bool(known.get("outside")),
        was_working=known.get("was_working", True) is True,
    )


def _unlisted_processes(known: Mapping[str, Any]) -> int:
    count = known.get("unlisted_processes", 0)
    return count if isinstance(count, int) and count > 0 else 0


def original_prompt(row: Prompt) -> Prompt:
    """Return the user's own prompt: for a continue prompt, the one that it continues."""
    while row.kind == PromptKind.CONTINUE and (earlier := Prompt.objects.filter(continued_by=row).first()) is not None:
        row = earlier
    return row


def original_request(row: Prompt) -> str:
    """Return the user's own text: for a continue prompt, that of the request it continues."""
    return original_prompt(row).text


def whole_request(row: Prompt) -> str:
    """Return what users asked of the turn of this prompt: its original request, and what was handed to it later."""
    taken = Prompt.objects.filter(session_id=row.session_id, steered_into=row.message_id, state=PromptState.DONE)
    later = taken.order_by("id").values_list("text", flat=True)
    return "\n\n".join([original_request(row), *later])


def context_before(session: TaskSession, row: Prompt) -> str:
    """Return the notes that precede a prompt's text; a continue prompt already contains its own."""
    if row.kind == PromptKind.CHECK:
        return ""
    known, wait = unfinished_of(session), wait_of(session)
    if known and row.kind != PromptKind.CONTINUE:
        notes = [interruption_note(to_interruption(session, known))]
    else:
        notes = []
    if wait and not row.message_id.startswith(continue_prompt_prefix(wait)):
        notes.append(interrupted_wait_note(to_interrupted_wait(wait)))
    if about_workspace := workspace_notes.notes_for_agent(session):
        notes.append(about_workspace)
    return "\n\n".join(notes)


def wait_of(session: TaskSession) -> Mapping[str, Any] | None:
    """Return the wait that ended without an answer and that the agent does not know of yet; None if there is none."""
    found = session.metadata.get(INTERRUPTED_WAIT)
    if isinstance(found, dict) and found:
        return found
    return None


def continue_prompt_prefix(wait: Mapping[str, Any]) -> str:
    """Return the prefix of the message ids of prompts that tell the agent to continue without the answer."""
    return f"wait:{wait['id']}:continue"


def to_interrupted_wait(wait: Mapping[str, Any]) -> InterruptedWait:
    """Convert a stored interrupted wait."""
    return InterruptedWait(*(str(wait.get(name) or "") for name in ("kind", "reason", "deadline")))


def mark_carrier(transaction: SessionTransaction, row: Prompt) -> None:
    """Remember that this prompt carries the history, interruption or wait to the agent.

    The context itself stays until ``mark_context_delivered``: after a crash before that, it is sent again, with this
    prompt or the next.
    """
    session = transaction.session
    if row.kind == PromptKind.CHECK:
        return
    notes = workspace_notes.notes_for_agent(session)
    if unfinished_of(session) or wait_of(session) or session.inject_history or notes:
        transaction.set_fields(metadata={**transaction.session.metadata, CARRIER_KEY: row.message_id})
        workspace_notes.mark_notes_sent(transaction)


def mark_context_delivered(transaction: SessionTransaction, message_id: str) -> bool:
    """Forget the context that a delivered prompt carried, so that it is not told twice; return whether it did."""
    if transaction.session.metadata.get(CARRIER_KEY) != message_id:
        return False
    notes = workspace_notes.forget_sent_notes(transaction)
    metadata = transaction.session.metadata
    carried = {"message_id": message_id, **{name: metadata.get(name) or {} for name in _CONTEXT_KEYS}, "notes": notes}
    cleared = {CARRIER_KEY: "", **{name: {} for name in _CONTEXT_KEYS}, CARRIED_KEY: carried}
    transaction.set_fields(inject_history=False, metadata={**metadata, **cleared})
    return True


def restore_context(transaction: SessionTransaction, message_id: str) -> None:
    """Let the next prompt tell what this one told of work, waits and files: the agent has refused it unread."""
    carried = transaction.session.metadata.get(CARRIED_KEY) or {}
    if carried.get("message_id") != message_id:
        return
    known = {name: carried.get(name) or {} for name in _CONTEXT_KEYS}
    transaction.set_fields(metadata={**transaction.session.metadata, **known, CARRIED_KEY: {}})
    if notes := _texts(carried, "notes"):
        workspace_notes.restore_notes(transaction, notes)


def _texts(known: Mapping[str, Any], name: str) -> list[str]:
    return [str(each) for each in known.get(name) or ()]
