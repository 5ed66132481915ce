"""What people and the agent should know about a session's workspace: warnings, HEAD, and what snapshots lack.

Everything here was reported by agentctl through a journal that an agent may be able to write: it is bounded, stored as
plain text, and never decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.models import SessionTransaction, TaskSession
from sessions_app.redaction.visible_text import make_visible
from sessions_app.stream.events.journal import WarningReported

WARNINGS_KEY: Final = "warnings"
"""Metadata key: the newest warnings, ``[{text, level, at, count}]``."""
WORKSPACE_KEY: Final = "workspace"
"""Metadata key: HEAD and the newest snapshot, ``{branch, head, left_out: [{path, reason}], left_out_count,
ignored_count, at}``."""
NOTES_KEY: Final = "workspace_notes"
"""Metadata key: sentences that the agent gets with its next prompt."""
SENT_NOTES_KEY: Final = "workspace_notes_sent"
"""Metadata key: how many of them are on their way with a prompt."""
LEVELS: Final = frozenset({"warning", "error"})
WORKSPACE_CODES: Final = frozenset({"workspace_rebuilt", "base_behind", "submodules_empty", "case_collisions"})
"""``data.code`` of warnings that the agent is told too."""
_MAX_WARNINGS: Final = 20
_MAX_EVENTS: Final = 100
"""Events of warnings in one session; later warnings only appear on the page."""
_EVENTS_KEY: Final = "warnings_recorded"
_MAX_TEXT: Final = 500
_MAX_COUNT: Final = 10**9
_IGNORED: Final = "{:,} files and directories that .gitignore names"
_MAX_DETAIL: Final = 300
_MAX_NOTES: Final = 5
_MAX_PATHS: Final = 20
_MAX_PATH: Final = 200


def record_warning(transaction: SessionTransaction, line: Mapping[str, Any]) -> None:
    """Store a warning or an error in a journal line of kind ``log``; a repeated one is only counted."""
    level, data = str(line.get("level", "")), line.get("data")
    if level not in LEVELS:
        return
    if not isinstance(data, Mapping):
        data = {}
    text = _plain(line.get("text"), _MAX_TEXT)
    detail = _plain(data.get("error"), _MAX_DETAIL)
    if not text:
        return
    if data.get("source") == "stdout" and (reason := _plain(data.get("reason"), _MAX_DETAIL)):
        text = f"Output of the agent that Kandev does not understand ({reason}): {text}"
    shown = text
    if detail:
        shown = f"{text}: {detail}"
    is_new = _add_warning(transaction, shown, level)
    if is_new and data.get("code") in WORKSPACE_CODES:
        _add_note(transaction, text)


def record_snapshot(transaction: SessionTransaction, line: Mapping[str, Any]) -> dict[str, Any]:
    """Store HEAD and what a new snapshot lacks, and return both for the event of the snapshot."""
    left_out = _left_out(line)
    count = _count(line.get("left_out_count"), len(left_out))
    about = {
        "branch": _plain(line.get("branch"), _MAX_PATH),
        "head": _plain(line.get("head"), 64),
        "left_out": left_out,
        "left_out_count": count,
        "ignored_count": None,
    }
    if "ignored_count" in line:
        about["ignored_count"] = min(_count(line["ignored_count"], 0), _MAX_COUNT)
    before = workspace_json(transaction.session) or {}
    _set(transaction, WORKSPACE_KEY, {**about, "at": transaction.at.isoformat()})
    if left_out and left_out != before.get("left_out", []):
        sentence = left_out_sentence(left_out, count)
        _add_warning(transaction, sentence, "warning")
        _add_note(transaction, f"{sentence} If the workspace is lost, so is this.")
    return about


def workspace_json(session: TaskSession) -> dict[str, Any] | None:
    """Return what the newest snapshot says about HEAD and about what it lacks; None before the first."""
    known = session.metadata.get(WORKSPACE_KEY)
    if isinstance(known, dict) and known:
        return dict(known)
    return None


def warnings_json(session: TaskSession) -> list[dict[str, Any]]:
    """Return the newest warnings first."""
    known = session.metadata.get(WARNINGS_KEY)
    if isinstance(known, list):
        return list(reversed(known))
    return []


def left_out_sentence(left_out: Sequence[Mapping[str, str]], count: int) -> str:
    """Return the sentence about what a snapshot lacks."""
    named = "; ".join(f"{one['path']} ({one['reason']})" for one in left_out[:5])
    if count > min(len(left_out), 5):
        more = f"; and {count - min(len(left_out), 5)} more"
    else:
        more = ""
    return f"The last snapshot of the workspace does not contain: {named}{more}."


def ignored_sentence(session: TaskSession) -> str:
    """Return how much the newest snapshot lacks because ``.gitignore`` names it; empty if nothing is known."""
    count = _count((workspace_json(session) or {}).get("ignored_count"), 0)
    if count:
        return plural(count, "1 file or directory that .gitignore names", _IGNORED)
    return ""


def head_sentence(session: TaskSession) -> str:
    """Return where HEAD was at the newest snapshot, if that is not the session's branch; else an empty text."""
    known = workspace_json(session)
    if known is None or not session.worktree_branch or known["branch"] == session.worktree_branch:
        return ""
    head = known["head"][:12]
    if not known["branch"]:
        if head:
            return f"HEAD is detached at {head}."
        return ""
    if head:
        return f"HEAD is on {known['branch']} at {head}."
    return f"HEAD is on {known['branch']}, which has no commit yet."


def workspace_evidence(session: TaskSession, reported: Any) -> dict[str, Any]:
    """Return, for a receipt, where HEAD was at the newest snapshot and where it is now, and whether both agree.

    Also what a workspace lacks that was rebuilt for this start.
    """
    known = workspace_json(session)
    if not isinstance(reported, Mapping):
        reported = {}
    branch, head = _plain(reported.get("branch"), _MAX_PATH), _plain(reported.get("head"), 64)
    note = _plain(reported.get("rebuild_note"), _MAX_TEXT)
    rebuilt: dict[str, Any] = {}
    if note:
        rebuilt["workspace_restored"] = note
    if not head and not branch:
        return rebuilt
    now = {"branch": branch or "(detached)", "head": head}
    if known is None:
        return {"workspace_head": now, **rebuilt}
    before = {"branch": known["branch"] or "(detached)", "head": known["head"]}
    same = now == before
    return {"workspace_head": now, "workspace_head_before": before, "workspace_head_matches": same, **rebuilt}


def notes_for_agent(session: TaskSession) -> str:
    """Return the note before the agent's next prompt; empty if there is nothing to say."""
    notes = _notes(session)
    if notes:
        return f"[Note by the system about your workspace: {' '.join(notes)} The request follows.]"
    return ""


def mark_notes_sent(transaction: SessionTransaction) -> None:
    """Remember which notes a prompt carries: those that arrive until its delivery are still to be told."""
    _set(transaction, SENT_NOTES_KEY, len(_notes(transaction.session)))


def forget_sent_notes(transaction: SessionTransaction) -> list[str]:
    """Forget the notes that the agent has received, and return them."""
    sent, notes = _count(transaction.session.metadata.get(SENT_NOTES_KEY), 0), _notes(transaction.session)
    if sent:
        _set(transaction, NOTES_KEY, notes[sent:])
        _set(transaction, SENT_NOTES_KEY, 0)
    return notes[:sent]


def restore_notes(transaction: SessionTransaction, notes: list[str]) -> None:
    """Let the next prompt carry these notes again, before those that have been added since."""
    later = [note for note in _notes(transaction.session) if note not in notes]
    _set(transaction, NOTES_KEY, [*notes, *later])


def _notes(session: TaskSession) -> list[str]:
    known = session.metadata.get(NOTES_KEY)
    if isinstance(known, list):
        return [str(note) for note in known]
    return []


def _add_note(transaction: SessionTransaction, text: str) -> None:
    notes = _notes(transaction.session)
    if text not in notes and len(notes) < _MAX_NOTES:
        _set(transaction, NOTES_KEY, [*notes, text])


def _add_warning(transaction: SessionTransaction, text: str, level: str) -> bool:
    """Store a warning, and return whether it is a new one."""
    known = list(reversed(warnings_json(transaction.session)))
    earlier = next((one for one in known if one.get("text") == text), None)
    others = [one for one in known if one is not earlier]
    count = 1
    if earlier:
        count += _count(earlier.get("count"), 0)
    entry = {"text": text, "level": level, "at": transaction.at.isoformat(), "count": count}
    _set(transaction, WARNINGS_KEY, [*others, entry][-_MAX_WARNINGS:])
    recorded = _count(transaction.session.metadata.get(_EVENTS_KEY), 0)
    if earlier is None and recorded < _MAX_EVENTS:
        _set(transaction, _EVENTS_KEY, recorded + 1)
        transaction.record_event(WarningReported(level=level, text=text))
    return earlier is None


def _left_out(line: Mapping[str, Any]) -> list[dict[str, str]]:
    paths, reasons = line.get("left_out"), line.get("left_out_reasons")
    if not isinstance(paths, list):
        return []
    if not isinstance(reasons, list):
        reasons = []
    left_out = []
    for path, reason in zip_longest(paths[:_MAX_PATHS], reasons[: len(paths[:_MAX_PATHS])]):
        known_reason = _plain(reason, _MAX_DETAIL) or "the reason is unknown"
        left_out.append({"path": _plain(path, _MAX_PATH), "reason": known_reason})
    return left_out


def _plain(value: Any, limit: int) -> str:
    """Return a reported text as one line of visible characters."""
    if isinstance(value, str):
        return " ".join(make_visible(value[: limit * 2]).split())[:limit]
    return ""


def _count(value: Any, default: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return default


def _set(transaction: SessionTransaction, key: str, value: Any) -> None:
    if transaction.session.metadata.get(key) != value:
        transaction.set_fields(metadata={**transaction.session.metadata, key: value})
