"""Carrying out the ledger of prompts: one at a time, in order, each at most once (rules 12, 13)."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from executors_app import crash_points
from executors_app.errors import AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration
from executors_app.models import ExecutorRunning
from sessions_app.domain.history import HistoryEntry, inject, with_request
from sessions_app.domain.states import DesiredState, PromptState
from sessions_app.models import Draft, Lease, LeaseLost, Prompt, TaskSession, texts_of, writing
from sessions_app.services.assessment import is_running
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.interruptions import INTERRUPTION_NOTE

log = logging.getLogger(__name__)
NEWEST = 400
"""Messages at most that are looked at to tell a new agent the conversation."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A prompt that is on its way; the row says so before the command leaves."""

    message_id: str
    text: str
    kind: str


async def send_next(core: Core, session_id: uuid.UUID) -> bool:
    """Send the next prompt if the agent can take one; True when there may be more to do at once."""
    attachment = core.attached(session_id)
    if attachment is None:
        return False
    try:
        sending = await core.database(
            _claim, session_id, attachment.lease, attachment.journal_epoch, frozenset(attachment.sent)
        )
    except LeaseLost:
        return False
    if sending is None:
        return False
    crash_points.reached("supervisor.prompt_sending")
    attachment.sent.add(sending.message_id)
    await _send(core, attachment, sending)
    crash_points.reached("supervisor.prompt_sent")
    return False  # what became of it is in the journal, whose next line leads here again


async def _send(core: Core, attachment: Attachment, sending: Sending) -> None:
    try:
        await attachment.client.prompt(sending.message_id, sending.text, prompt_kind=sending.kind)
    except (AgentctlUnreachable, StaleGeneration) as error:
        # Unknown whether it arrived: the row stays "sending", to be given again to this journal epoch alone.
        attachment.sent.discard(sending.message_id)
        log.info("prompt %s: %s", sending.message_id, error.message)
    except (AgentctlRefused, ExecutorError) as error:
        attachment.sent.discard(sending.message_id)
        log.info("prompt %s was refused: %s", sending.message_id, error.message)
        await core.database(_refused, attachment.session_id, attachment.lease, sending.message_id)


def _claim(session_id: uuid.UUID, lease: Lease, epoch: str, sent: frozenset[str]) -> Sending | None:
    """The prompt to send now, committed as ``sending`` with execution and journal epoch (rule 12)."""
    with writing(session_id, lease) as draft:
        execution = draft.execution
        if execution is None or not _can_take(draft, execution):
            return None
        row = _next(draft, epoch)
        if row is None or row.message_id in sent:
            return None
        text = _told(draft.session, row)
        draft.move_prompt(row, "send", execution_id=str(execution.id), journal_epoch=epoch)
    return Sending(row.message_id, text, row.kind)


def _can_take(draft: Draft, execution: ExecutorRunning) -> bool:
    wanted = draft.session.desired_state == DesiredState.RUNNING
    starting = draft.session.intents.filter(kind="start", done_at=None).exists()
    return wanted and not starting and is_running(draft.session, execution) and draft.open_run is None


def _next(draft: Draft, epoch: str) -> Prompt | None:
    """The prompt under way, else the next of the queue; the continue prompt goes before the others (rule 16)."""
    for row in draft.session.prompts.filter(state=PromptState.SENDING).order_by("id"):
        if row.journal_epoch == epoch:
            return row
        draft.move_prompt(row, "hold")  # that journal is gone, and with it the answer
    queued = draft.session.prompts.filter(state=PromptState.QUEUED)
    return queued.filter(kind="continue").order_by("id").first() or queued.order_by("id").first()


def _told(session: TaskSession, row: Prompt) -> str:
    """The prompt's text with what a new agent, or one that was interrupted, has to know first.

    Both are told again with every try, until the journal says that the agent has a prompt.
    """
    note = session.metadata.get(INTERRUPTION_NOTE)
    text = f"{note}\n\n{row.text}" if note and row.kind == "user" else row.text
    return _with_history(session, text) if session.inject_history else text


def _with_history(session: TaskSession, text: str) -> str:
    messages = list(session.messages.filter(role__in=("user", "agent")).order_by("-seq")[:NEWEST])
    texts = texts_of(messages)
    entries = [HistoryEntry(role=message.role, text=texts[message.id]) for message in reversed(messages)]
    return with_request(inject(entries), text)


def _refused(session_id: uuid.UUID, lease: Lease, message_id: str) -> None:
    """Agentctl has said that it did not take it: it waits for its turn again."""
    with writing(session_id, lease) as draft:
        row = draft.session.prompts.filter(message_id=message_id, state=PromptState.SENDING).first()
        if row is not None:
            draft.move_prompt(row, "refuse")
