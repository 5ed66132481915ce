"""Context for the next prompt beside the history: the work that an interruption left unfinished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessions_app.kernel.rules.states import PromptKind, PromptState
from sessions_app.models import INTERRUPTED_WAIT, Prompt, SessionTransaction, TaskSession, Turn
from sessions_app.turns.rules.continuation import (
    InterruptedWait,
    Interruption,
    continue_prompt,
    interrupted_wait_note,
    interruption_note,
)
from sessions_app.workspace.services import workspace_notes

INTERRUPTION_KEY: Final = "interruption"
"""Metadata key: ``{message_id, run_id, tools, since, changed, processes}``; empty: nothing is unfinished.

For work outside a turn also ``outside``, ``was_working`` and ``sentence``, which tells people what it was.
"""
CARRIER_KEY: Final = "told_with"
"""Metadata key: message_id of the prompt that is on its way with history or interruption."""


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
    transaction: SessionTransaction, tools: Sequence[str], processes: Sequence[str], *, was_working: bool, sentence: str
) -> None:
    """Store what ended with an agent that had no turn open; what is unfinished already stays so."""
    known = unfinished_of(transaction.session) or {"message_id": "", "run_id": "", "tools": [], "outside": True}
    turn = transaction.newest_run
    since = (turn.snapshot_after or turn.snapshot_before or "") if turn else ""  # no snapshot after: nothing changed
    added = {
        "tools": [*_texts(known, "tools"), *tools],
        "processes": [*_texts(known, "processes"), *processes],
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
    transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTION_KEY: known})
    waiting = transaction.session.prompts.filter(
        kind=PromptKind.CONTINUE, state=PromptState.QUEUED, message_id=f"continue:{known.get('run_id')}"
    )
    for row in waiting:
        row.text = continue_prompt(to_interruption(transaction.session, known))
        row.save(update_fields=["text", "updated_at"])


def to_interruption(session: TaskSession, known: Mapping[str, Any]) -> Interruption:
    """Convert the stored unfinished work."""
    row = session.prompts.filter(message_id=known.get("message_id")).first()
    return Interruption(
        task_title=session.task.title,
        last_request=original_request(row) if row else "",
        unfinished_tools=_texts(known, "tools"),
        changed_files=_texts(known, "changed"),
        dead_processes=_texts(known, "processes"),
        outside_turn=bool(known.get("outside")),
        was_working=known.get("was_working", True) is True,
    )


def original_prompt(row: Prompt) -> Prompt:
    """Return the user's own prompt: for a continue prompt, the one that it continues."""
    while row.kind == PromptKind.CONTINUE and (earlier := Prompt.objects.filter(continued_by=row).first()) is not None:
        row = earlier
    return row


def original_request(row: Prompt) -> str:
    """Return the user's own text: for a continue prompt, that of the request it continues."""
    return original_prompt(row).text


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
    transaction.set_fields(
        inject_history=False,
        metadata={**transaction.session.metadata, CARRIER_KEY: "", INTERRUPTION_KEY: {}, INTERRUPTED_WAIT: {}},
    )
    workspace_notes.forget_sent_notes(transaction)
    return True


def _texts(known: Mapping[str, Any], name: str) -> list[str]:
    return [str(each) for each in known.get(name) or ()]
