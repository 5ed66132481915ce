"""What an agent left unfinished when its process ended, kept until a prompt that tells of it is delivered.

It stands in ``TaskSession.metadata``. What the log knows is written with the interruption; what only the
workspace knows, changed files and processes that ended, is added before the next agent starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessions_app.domain.continuation import (
    InterruptedWait,
    Interruption,
    continue_prompt,
    interruption_note,
    wait_note,
)
from sessions_app.domain.memory_check import KIND
from sessions_app.domain.states import PromptState
from sessions_app.models import INTERRUPTED_WAIT, Draft, Prompt, Run, TaskSession

INTERRUPTION: Final = "interruption"
"""Key of the metadata: ``{message_id, run_id, tools, since, changed, processes}``; empty: nothing is unfinished."""
CARRIER: Final = "told_with"
"""Key of the metadata: message_id of the prompt that is on its way with history or interruption."""

DELIVERED: Final = "session.prompt.delivered"
KEPT: Final = "session.workspace.changed"


def note(draft: Draft, run: Run, tools: Sequence[str]) -> None:
    """A turn was cut short: what the log knows of it."""
    known = {
        "message_id": run.message_id,
        "run_id": str(run.id),
        "tools": list(tools),
        "since": _snapshot_before(draft, run),
    }
    draft.set(metadata={**draft.session.metadata, INTERRUPTION: known})


def _snapshot_before(draft: Draft, run: Run) -> str:
    """The commit that keeps the working tree as the turn found it; empty where there is none."""
    log = draft.session.events.order_by("-seq")
    began = log.filter(name=DELIVERED, payload__message_id=run.message_id).first()
    unwritten = [] if began else [(event.name, event.payload) for event in draft.events]
    starts = [at for at, (name, said) in enumerate(unwritten) if (name, said.get("message_id")) == _start(run)]
    for name, said in reversed(unwritten[: starts[0]] if starts else unwritten):
        if name == KEPT:
            return str(said.get("commit", ""))
    kept = log.filter(name=KEPT, **({"seq__lt": began.seq} if began else {})).first()
    return str(kept.payload.get("commit", "")) if kept else ""


def _start(run: Run) -> tuple[str, str]:
    return DELIVERED, run.message_id


def of(session: TaskSession) -> Mapping[str, Any] | None:
    """What is unfinished; None where nothing is."""
    found = session.metadata.get(INTERRUPTION)
    return found if isinstance(found, dict) and found else None


def add(draft: Draft, changed: Sequence[str], processes: Sequence[str]) -> None:
    """What the workspace knows; a continue prompt that still waits tells it too."""
    known = of(draft.session)
    if known is None:
        return
    known = {**known, "changed": list(changed), "processes": list(processes)}
    draft.set(metadata={**draft.session.metadata, INTERRUPTION: known})
    waiting = draft.session.prompts.filter(
        kind="continue", state=PromptState.QUEUED, message_id=f"continue:{known.get('run_id')}"
    )
    for row in waiting:
        row.text = continue_prompt(interruption_of(draft.session, known))
        row.save(update_fields=["text", "updated_at"])


def interruption_of(session: TaskSession, known: Mapping[str, Any]) -> Interruption:
    """The same in the words of the domain."""
    row = session.prompts.filter(message_id=known.get("message_id")).first()
    return Interruption(
        task_title=session.task.title,
        last_request=request_of(row) if row else "",
        unfinished_tools=_texts(known, "tools"),
        changed_files=_texts(known, "changed"),
        dead_processes=_texts(known, "processes"),
    )


def request_of(row: Prompt) -> str:
    """What a prompt is about in its user's words: a continue prompt is about the request that it continues."""
    while row.kind == "continue" and (earlier := Prompt.objects.filter(continued_by=row).first()) is not None:
        row = earlier
    return row.text


def told_before(session: TaskSession, row: Prompt) -> str:
    """What the prompt says before its own text; a continue prompt tells of its turn in its own words."""
    if row.kind == KIND:
        return ""
    known, wait = of(session), wait_of(session)
    notes = [interruption_note(interruption_of(session, known))] if known and row.kind != "continue" else []
    notes += [wait_note(words_of(wait))] if wait and not row.message_id.startswith(going_on(wait)) else []
    return "\n\n".join(notes)


def wait_of(session: TaskSession) -> Mapping[str, Any] | None:
    """The wait that ended without an answer, of which the agent has not been told; None where there is none."""
    found = session.metadata.get(INTERRUPTED_WAIT)
    return found if isinstance(found, dict) and found else None


def going_on(wait: Mapping[str, Any]) -> str:
    """How the names of the prompts begin that tell the agent, in their own words, to go on without the wait."""
    return f"wait:{wait['id']}:continue"


def words_of(wait: Mapping[str, Any]) -> InterruptedWait:
    """The same in the words of the domain."""
    return InterruptedWait(*(str(wait.get(name) or "") for name in ("kind", "reason", "deadline")))


def carry(draft: Draft, row: Prompt) -> None:
    """The prompt goes out with all that is to be told."""
    session = draft.session
    if row.kind != KIND and (of(session) or wait_of(session) or session.inject_history):
        draft.set(metadata={**draft.session.metadata, CARRIER: row.message_id})


def delivered(draft: Draft, message_id: str) -> bool:
    """A prompt is the agent's: what it carried has been told, and is not told again. Whether it carried anything."""
    if draft.session.metadata.get(CARRIER) != message_id:
        return False
    draft.set(
        inject_history=False, metadata={**draft.session.metadata, CARRIER: "", INTERRUPTION: {}, INTERRUPTED_WAIT: {}}
    )
    return True


def _texts(known: Mapping[str, Any], name: str) -> list[str]:
    return [str(each) for each in known.get(name) or ()]
