"""What journal lines about prompts change: an accepted one begins a turn, and a delivered one has reached the agent.

Prompts for a running turn (``steer``) begin none: they are taken into it, declined by it, or it is unknown.
"""

from __future__ import annotations

from typing import Any

from executors_app.wire.replayed_texts import text_digest
from sessions_app.kernel.rules.states import PROMPT, turn_origin
from sessions_app.recovery import continuity
from sessions_app.stream.conversation import JournalLine, JournalUpdate
from sessions_app.turns.journal import move_if_legal


def accept_prompt(update: JournalUpdate, line: JournalLine) -> None:
    """Begin the turn, and add the prompt's text to the conversation: it enters only once accepted (rule 14)."""
    transaction, message_id = update.transaction, str(line["message_id"])
    prompt = update.find_prompt(line)
    update.conversation.begin_turn()
    if prompt is None:
        kind, text = str(line.get("prompt_kind", "user")), str(line.get("text", ""))
        attachments, by_user = line.get("attachments", []), False
    else:
        kind, text = prompt.kind, prompt.text  # without the history that is injected before it
        attachments, by_user = prompt.attachments, prompt.by_id is not None
    transaction.accept_run(
        message_id, origin=turn_origin(kind, by_user=by_user), prompt=prompt, request_digest=text_digest(text)
    )
    payload: dict[str, Any] = {"kind": kind}
    if attachments:
        payload["attachments"] = attachments
    update.conversation.add_message("user", text, key=message_id, **payload)
    if prompt is not None and PROMPT.allows(prompt.state, "accept"):
        transaction.move_prompt(prompt, "accept", journal_epoch=line["epoch"])
    move_if_legal(transaction, "turn_started", work="begin")


def deliver_prompt(update: JournalUpdate, line: JournalLine) -> None:
    """Mark the prompt as delivered, and with it the history that it carried."""
    transaction = update.transaction
    prompt = update.find_prompt(line)
    if prompt is not None and PROMPT.allows(prompt.state, "deliver"):
        transaction.move_prompt(prompt, "deliver")
    turn, execution = transaction.open_turn, transaction.execution
    if turn is not None and turn.message_id == line.get("message_id") and execution is not None:
        transaction.note_turn(turn, snapshot_before=execution.snapshot_announced)
    continuity.mark_history_delivered(transaction, str(line.get("message_id")))


def accept_steered(update: JournalUpdate, line: JournalLine) -> None:
    """Mark a prompt as accepted for a running turn; it begins none, and enters the conversation once it was taken."""
    prompt = update.find_prompt(line)
    if prompt is not None and PROMPT.allows(prompt.state, "accept"):
        turn_id = str(line.get("turn") or "")[:128]
        update.transaction.move_prompt(prompt, "accept", journal_epoch=line["epoch"], steered_into=turn_id)


def deliver_steered(update: JournalUpdate, line: JournalLine) -> None:
    """Add the text to the conversation: the agent has taken it into its turn, with whose end the prompt is done."""
    transaction, prompt = update.transaction, update.find_prompt(line)
    if prompt is None or not PROMPT.allows(prompt.state, "deliver"):
        return
    payload: dict[str, Any] = {"kind": prompt.kind}
    if prompt.attachments:
        payload["attachments"] = prompt.attachments
    update.conversation.add_message("user", prompt.text, key=prompt.message_id, **payload)
    transaction.move_prompt(prompt, "deliver")
    turn = transaction.open_turn
    if turn is None or turn.message_id != prompt.steered_into:  # it ended before the agent's answer was read
        transaction.move_prompt(prompt, "finish")


def decline_steered(update: JournalUpdate, line: JournalLine) -> None:
    """Queue a prompt again that the agent certainly has not taken into its turn."""
    prompt = update.find_prompt(line)
    if prompt is not None and PROMPT.allows(prompt.state, "decline"):
        update.transaction.move_prompt(prompt, "decline", steered_into="", missed_turn=True)


def hold_steered(update: JournalUpdate, line: JournalLine) -> None:
    """Hold a prompt of which it is unknown whether the agent has taken it."""
    prompt = update.find_prompt(line)
    if prompt is not None and PROMPT.allows(prompt.state, "hold"):
        update.transaction.move_prompt(prompt, "hold")
