"""Hand prompts to the turn that is running, each at most once; one that is not taken there is queued as before.

The same discipline as in ``delivery.py``: a prompt is committed as ``sending`` before the command leaves, and the
command is repeated only to the same journal, whose agentctl recognises its id (rule 12). Only a refusal of agentctl, or
the line of the agent's own refusal, proves that it was not taken; otherwise it is held (rule 13).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executors_app.machine import crash_points
from executors_app.wire.errors import AgentctlRefused, ExecutorError, StaleGeneration
from executors_app.wire.protocol import Code
from sessions_app.kernel.rules.states import WAITING_PROMPT_STATES, DesiredState, PromptState
from sessions_app.kernel.services.errors import AttachmentMissing
from sessions_app.models import Lease, LeaseLost, Prompt, SessionTransaction, session_transaction
from sessions_app.prompts.delivery import REPORT_TIMEOUT, retry_later
from sessions_app.prompts.models import QUEUE_ORDER
from sessions_app.prompts.services import content_blocks
from sessions_app.recovery.services.assessment import is_running
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.usage.models import is_held_by_budget

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SteeredPrompt:
    """A prompt for a running turn, whose row is already committed as ``sending``."""

    message_id: str
    turn: str
    text: str
    blocks: Sequence[Mapping[str, Any]] = ()
    """Its files as ACP content blocks."""

    @property
    def key(self) -> tuple[str, str]:
        """Its entry in ``ExecutionStream.steered``."""
        return self.message_id, self.turn


async def send_steered_prompts(registry: ExecutionRegistry, session_id: uuid.UUID) -> None:
    """Hand over every prompt that a user wants in the running turn."""
    stream = registry.stream_of(session_id)
    if stream is None:
        return
    try:
        while not stream.backoff.is_waiting:
            claim = (stream.session_id, stream.lease, stream.journal_epoch, frozenset(stream.steered))
            steered = await registry.database(claim_steered_prompt, *claim)
            if steered is None:
                return
            crash_points.reached("supervisor.steer_sending", session_id)
            await _hand_over(registry, stream, steered)
            crash_points.reached("supervisor.steer_sent", session_id)
    except LeaseLost:
        pass  # whoever holds the lease now hands them over


async def _hand_over(registry: ExecutionRegistry, stream: ExecutionStream, steered: SteeredPrompt) -> None:
    stream.steered.add(steered.key)  # before the first await, so that a wake-up meanwhile does not send it twice
    try:
        answer = await stream.client.steer(steered.message_id, steered.turn, steered.text, steered.blocks)
    except ExecutorError as error:
        stream.steered.discard(steered.key)
        log.info("prompt %s for a running turn: %s", steered.message_id, error.message)
        if isinstance(error, AgentctlRefused) and not isinstance(error, StaleGeneration):
            await registry.database(_settle, stream.session_id, stream.lease, steered.message_id, "decline")
            if error.refusal == Code.NOT_RUNNING:
                registry.listener.handle_lost_stream(stream)
        retry_later(registry, stream)
        return
    stream.backoff.reset()
    if answer.get("duplicate"):
        await _settle_duplicate(registry, stream, steered)


async def _settle_duplicate(registry: ExecutionRegistry, stream: ExecutionStream, steered: SteeredPrompt) -> None:
    """Settle a prompt that agentctl already had: its journal shows the outcome, or else the prompt is held."""
    try:
        journal = (await stream.client.status())["journal"]
    except ExecutorError:
        return  # an agentctl that is gone ends the stream, and the next stream asks again
    if not journal["last_seq"] or await stream.wait_until_logged(journal["epoch"], journal["last_seq"], REPORT_TIMEOUT):
        await registry.database(_settle, stream.session_id, stream.lease, steered.message_id, "hold")


def claim_steered_prompt(
    session_id: uuid.UUID, lease: Lease, epoch: str, steered: frozenset[tuple[str, str]]
) -> SteeredPrompt | None:
    """Commit the next prompt for the running turn as ``sending`` and return it; None if there is none.

    ``steered`` are those already handed over through this stream. A prompt whose turn has ended becomes an ordinary
    queued one. Raises LeaseLost.
    """
    waiting = Prompt.objects.filter(session_id=session_id, state__in=WAITING_PROMPT_STATES).exclude(steered_into="")
    if not waiting.exists():  # without a lock, because usually there is none
        return None
    with session_transaction(session_id, lease) as transaction:
        execution = transaction.execution
        if execution is None or not is_running(transaction.session, execution):
            return None
        for row in waiting.select_for_update().order_by(*QUEUE_ORDER):
            if row.state == PromptState.SENDING and (row.message_id, row.steered_into) in steered:
                continue  # the journal brings its outcome
            if _claim(transaction, row, str(execution.id), epoch):
                return SteeredPrompt(row.message_id, row.steered_into, row.text, content_blocks(row))
    return None


def _claim(transaction: SessionTransaction, row: Prompt, execution_id: str, epoch: str) -> bool:
    """Move a prompt to ``sending`` if it can be handed over now; return whether it can."""
    if row.state == PromptState.SENDING:
        return row.journal_epoch == epoch  # of another journal, it is held before the next prompt is sent
    turn, is_wanted = transaction.open_turn, transaction.session.desired_state == DesiredState.RUNNING
    if turn is None or turn.message_id != row.steered_into or not is_wanted:
        _leave_in_queue(transaction, row)
        return False
    if is_held_by_budget(transaction):
        _leave_in_queue(transaction, row)
        return False
    own = transaction.session.prompts.filter(message_id=turn.message_id).first()
    if own is not None and own.state != PromptState.DELIVERED:
        return False  # the agent does not have the turn's own prompt yet; the line that says so wakes us
    try:
        content_blocks(row)
    except AttachmentMissing as error:
        log.warning("prompt %s: %s", row.message_id, error.message)
        transaction.move_prompt(row, "doubt")
        return False
    transaction.move_prompt(row, "send", execution_id=execution_id, journal_epoch=epoch)
    return True


def _leave_in_queue(transaction: SessionTransaction, row: Prompt) -> None:
    """Let a prompt that was wanted in the running turn be an ordinary queued one, and tell open pages."""
    row.steered_into, row.missed_turn = "", True
    row.save(update_fields=["steered_into", "missed_turn", "updated_at"])
    transaction.record_queued(row)


def _settle(session_id: uuid.UUID, lease: Lease, message_id: str, move: str) -> None:
    """Move a prompt that is still ``sending``: to the queue (``decline``), or to be decided on (``hold``)."""
    with session_transaction(session_id, lease) as transaction:
        row = transaction.session.prompts.filter(message_id=message_id, state=PromptState.SENDING).first()
        if row is None:
            return
        if move == "decline":
            transaction.move_prompt(row, "decline", steered_into="", missed_turn=True)
        else:
            transaction.move_prompt(row, "hold")
