"""Deliver queued prompts: one at a time, in order, each at most once.

A prompt is committed as ``sending`` before the command leaves, and the command is repeated only to the same journal
epoch, whose agentctl would recognize it (rule 12). If it cannot be known whether it arrived, it is held (rule 13).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.errors import AgentctlRefused, ExecutorError, StaleGeneration
from executors_app.wire.protocol import Code
from sessions_app.hosts import cordons
from sessions_app.kernel.rules.states import (
    WAITING_PROMPT_STATES,
    DesiredState,
    PromptKind,
    PromptState,
    TurnOrigin,
)
from sessions_app.kernel.services.errors import AttachmentMissing
from sessions_app.models import (
    IntentKind,
    Lease,
    LeaseLost,
    Prompt,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.prompts import services as prompts
from sessions_app.prompts.models import QUEUE_ORDER, SENT_FIRST
from sessions_app.prompts.services import content_blocks
from sessions_app.recovery import continuity, prepared_histories
from sessions_app.recovery.rules.history import prepend_history
from sessions_app.recovery.services.assessment import is_running, session_flaws
from sessions_app.recovery.services.history import current_history
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.suspensions.models import open_suspension
from sessions_app.turns import agent_turns
from sessions_app.usage.models import is_held_by_budget

log = logging.getLogger(__name__)
REPORT_TIMEOUT = 10.0
"""Seconds that the log may take to catch up with the journal of an agentctl that answers."""


class HistoryOutdated(Exception):
    """The prompt has to carry a history that is not built yet; nothing was written."""


@dataclass(frozen=True, slots=True)
class PromptDelivery:
    """A prompt to send, whose row is already committed as ``sending``."""

    message_id: str
    text: str
    kind: str
    blocks: Sequence[Mapping[str, Any]] = ()
    """Its files as ACP content blocks."""


async def send_next_prompt(registry: ExecutionRegistry, session_id: uuid.UUID) -> None:
    """Send the next prompt if the agent can take one; the session's next journal line leads to the one after it."""
    stream = registry.stream_of(session_id)
    if stream is None:
        await _prepare_for_status(registry, session_id)
        return
    if stream.backoff.is_waiting:
        return
    try:
        sending = await _claim_with_history(registry, stream)
        if sending is not None:
            crash_points.reached("supervisor.prompt_sending", session_id)
            await _send_prompt(registry, stream, sending)
            crash_points.reached("supervisor.prompt_sent", session_id)
    except LeaseLost:
        pass  # whoever holds the lease now sends it


async def _prepare_for_status(registry: ExecutionRegistry, session_id: uuid.UUID) -> None:
    """Build the history that the next prompt will carry, if none waits: then the status can say how long it is."""
    if not await registry.database(_has_waiting_prompt, session_id):
        await prepared_histories.prepare(registry.database, session_id)


def _has_waiting_prompt(session_id: uuid.UUID) -> bool:
    return Prompt.objects.filter(session_id=session_id, state__in=WAITING_PROMPT_STATES).exists()


async def _claim_with_history(registry: ExecutionRegistry, stream: ExecutionStream) -> PromptDelivery | None:
    """Claim the next prompt; a history that it needs is built first, outside every transaction.

    The claim compares the version of the built history with the conversation. If that has changed meanwhile, or if no
    process could build the history, the claim is tried again later, and nothing is written or sent.
    """
    claim = partial(claim_next_prompt, stream.session_id, stream.lease, stream.journal_epoch, frozenset(stream.sent))
    try:
        return await registry.database(claim)
    except HistoryOutdated:
        await prepared_histories.prepare(registry.database, stream.session_id)
    try:
        return await registry.database(claim)
    except HistoryOutdated:
        retry_later(registry, stream)
        return None


def retry_later(registry: ExecutionRegistry, stream: ExecutionStream) -> None:
    """Wake the session's queue when the delay of its next try is over."""
    delay = stream.backoff.record_failure()
    asyncio.get_running_loop().call_later(delay, registry.listener.wake_session, stream.session_id)


async def _send_prompt(registry: ExecutionRegistry, stream: ExecutionStream, sending: PromptDelivery) -> None:
    stream.sent.add(sending.message_id)  # before the first await, so that a wake-up meanwhile does not send it twice
    try:
        answer = await stream.client.prompt(sending.message_id, sending.text, sending.blocks, prompt_kind=sending.kind)
    except ExecutorError as error:
        stream.sent.discard(sending.message_id)
        log.info("prompt %s: %s", sending.message_id, error.message)
        await _handle_rejection(registry, stream, sending, error)
        return
    stream.backoff.reset()
    if answer.get("duplicate"):
        await _settle_duplicate(registry, stream, sending)


async def _handle_rejection(
    registry: ExecutionRegistry, stream: ExecutionStream, sending: PromptDelivery, error: ExecutorError
) -> None:
    """Requeue a prompt that agentctl refused; after any other error it stays ``sending``.

    Only a refusal proves that it did not arrive. Otherwise it is sent again, but only to the same journal epoch.
    """
    if isinstance(error, AgentctlRefused) and not isinstance(error, StaleGeneration):
        await registry.database(_settle_sending, stream.session_id, stream.lease, sending.message_id, "refuse")
        if error.refusal == Code.NOT_RUNNING:
            # The agent has ended since we decided to send: a recheck resumes it.
            registry.listener.handle_lost_stream(stream)
    retry_later(registry, stream)


async def _settle_duplicate(registry: ExecutionRegistry, stream: ExecutionStream, sending: PromptDelivery) -> None:
    """Settle a prompt that agentctl already had: its journal shows the outcome, or else the prompt is held."""
    try:
        journal = (await stream.client.status())["journal"]
    except ExecutorError:
        return  # an agentctl that is gone ends the stream, and the next stream sends the prompt again
    if not journal["last_seq"] or await stream.wait_until_logged(journal["epoch"], journal["last_seq"], REPORT_TIMEOUT):
        await registry.database(_settle_sending, stream.session_id, stream.lease, sending.message_id, "hold")


def claim_next_prompt(session_id: uuid.UUID, lease: Lease, epoch: str, sent: frozenset[str]) -> PromptDelivery | None:
    """Commit the next prompt as ``sending``, with execution and journal epoch, and return it; None if none can be sent.

    ``sent`` are the prompts already given over this stream. Raises LeaseLost and HistoryOutdated.
    """
    # Without a lock, because usually none waits. A prompt that is queued right now wakes this queue after its commit.
    if not _has_waiting_prompt(session_id):
        return None
    with session_transaction(session_id, lease) as transaction:
        execution = transaction.execution
        if execution is None or not _can_take(transaction, execution):
            return None
        row = _next_prompt(transaction, epoch)
        if row is None or row.message_id in sent:
            return None
        if row.state == PromptState.QUEUED and (is_held_by_budget(transaction) or cordons.is_draining_here()):
            return None
        try:
            blocks = _content_blocks(transaction.session, row)
        except AttachmentMissing as error:
            log.warning("prompt %s: %s", row.message_id, error.message)
            transaction.move_prompt(row, "doubt")
            return None
        text = _text_with_context(transaction, row)
        prompts.mark_carrier(transaction, row)
        transaction.move_prompt(row, "send", execution_id=str(execution.id), journal_epoch=epoch, steered_into="")
    return PromptDelivery(row.message_id, text, row.kind, blocks)


def _can_take(transaction: SessionTransaction, execution: ExecutorRunning) -> bool:
    wanted = transaction.session.desired_state == DesiredState.RUNNING
    # A setting that was requested before the prompt applies to it, so it is sent to the agent first.
    first = transaction.session.intents.filter(kind__in=(IntentKind.START, IntentKind.SETTING), done_at=None).exists()
    ready = wanted and not first and is_running(transaction.session, execution)
    return ready and not _is_held_by_turn(transaction) and not session_flaws(transaction.session, execution)


def _is_held_by_turn(transaction: SessionTransaction) -> bool:
    """Whether the prompt waits for the end of the open turn; one that the agent began holds it only for a while."""
    turn = transaction.open_turn
    if turn is None:
        return False
    return turn.origin != TurnOrigin.AGENT or agent_turns.holds_prompts(turn)


def _next_prompt(transaction: SessionTransaction, epoch: str) -> Prompt | None:
    """Return the prompt being sent, else the next one to send; None if there is none or it is not due yet.

    The order is: the prompt of an open run (the result of an external wait), memory checks, retries, continue
    prompts, then the queue, as users have ordered it. A retry keeps its place while it waits for its time.
    """
    for row in transaction.session.prompts.filter(state=PromptState.SENDING).order_by("id"):
        if row.journal_epoch == epoch and row.steered_into:
            return None  # ``steering`` finds out first whether the agent has it
        if row.journal_epoch == epoch:
            return row
        transaction.move_prompt(row, "hold")  # only the lost journal could show whether it arrived
    suspension = open_suspension(transaction.session.id)
    if suspension is not None and suspension.holds_prompts:
        return None
    queued = transaction.session.prompts.filter(state=PromptState.QUEUED)
    if transaction.open_run:
        first = [queued.filter(message_id=transaction.open_run.message_id)]
    else:
        first = []
    first += [*(queued.filter(kind=kind) for kind in SENT_FIRST), queued]
    found = next((one for rows in first if (one := rows.order_by(*QUEUE_ORDER).first()) is not None), None)
    if found is not None and found.is_due:
        return found
    return None


def _text_with_context(transaction: SessionTransaction, row: Prompt) -> str:
    """Return the prompt's text, preceded by the history for a new agent and the notes on interrupted work.

    Every try carries them again, until the journal confirms that the agent has received them. Raises HistoryOutdated.
    """
    session = transaction.session
    note = prompts.context_before(session, row)
    text = row.text
    if note:
        text = f"{note}\n\n{text}"
    if not session.inject_history:
        return text
    history = current_history(session)
    if history is None:
        raise HistoryOutdated
    continuity.record_sent_history(transaction, history.facts())
    return prepend_history(history, text)


def _content_blocks(session: TaskSession, row: Prompt) -> list[dict[str, Any]]:
    """Return the prompt's files; for a new agent that is to continue, those of the request that it has never seen."""
    if row.kind == PromptKind.CONTINUE and session.inject_history:
        row = prompts.original_prompt(row)
    return content_blocks(row)


def _settle_sending(session_id: uuid.UUID, lease: Lease, message_id: str, move: str) -> None:
    """Move a prompt that is still ``sending``.

    It is requeued if agentctl refused it (``refuse``). It is held (``hold``) if the whole journal has been read without
    it, so that whether it arrived is unknown; a held prompt no longer blocks the others.
    """
    with session_transaction(session_id, lease) as transaction:
        row = transaction.session.prompts.filter(message_id=message_id, state=PromptState.SENDING).first()
        if row is not None:
            transaction.move_prompt(row, move)
