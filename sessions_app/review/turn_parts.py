"""The turns of a session as parts of its branch: between which snapshots of the workspace each of them lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Exists, OuterRef
from django.db.models.functions import Left

from executors_app.machine.git.branch_changes import PartProblem
from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import RepositoryRemote, TaskSession
from sessions_app.review.rules.parts import Part, PartKind

MAX_TURNS: Final = 30
_MAX_PROMPT: Final = 120
_COLUMNS: Final = ("id", "started_at", "ended_at", "state", "origin", "snapshot_before", "snapshot_after")


def list_turns(session: TaskSession) -> dict[str, Any]:
    """Return ``{turns, more_turns}``: the newest turns of the agent, each with why it cannot be shown, if so."""
    found = session.runs.filter(has_process=True).order_by("-started_at", "-id")
    rows = found.annotate(words=Left("prompt__text", _MAX_PROMPT)).values(*_COLUMNS, "words")[: MAX_TURNS + 1]
    turns = [
        {
            "id": str(row["id"]),
            "started_at": row["started_at"],
            "ended_at": row["ended_at"],
            "state": row["state"],
            "origin": row["origin"],
            "prompt": row["words"] or "",
            "problem": _problem_of(row),
        }
        for row in rows[:MAX_TURNS]
    ]
    return {"turns": turns, "more_turns": len(rows) > MAX_TURNS}


def list_turn_ends(session: TaskSession) -> list[dict[str, Any]]:
    """Return ``[{name, first_seq, last_seq, can_push}]`` of the newest turns whose changes can be shown; one query.

    ``can_push``: whether the repository has a remote.
    """
    columns = ("id", "first_seq", "last_seq", "ended_at", "snapshot_before", "snapshot_after", "can_push")
    remotes = RepositoryRemote.objects.filter(repository=OuterRef("session__task__repository"))
    runs = session.runs.filter(has_process=True).annotate(can_push=Exists(remotes))
    found = runs.order_by("-started_at", "-id").values(*columns)[:MAX_TURNS]
    return [
        {
            "name": str(Part(PartKind.TURN, str(row["id"]))),
            **{name: row[name] for name in ("first_seq", "last_seq", "can_push")},
        }
        for row in found
        if not _problem_of(row) and None not in (row["first_seq"], row["last_seq"])
    ]


def find_snapshots(session: TaskSession, turn_id: str) -> tuple[dict[str, str], str]:
    """Return ``{before, after}`` of a turn, or why they are not known; raises NotFound."""
    row = session.runs.filter(has_process=True, id=turn_id).values(*_COLUMNS).first()
    if row is None:
        raise NotFound("This session has no such turn.")
    if problem := _problem_of(row):
        return {}, problem
    return {"before": row["snapshot_before"], "after": row["snapshot_after"]}, ""


def _problem_of(row: Mapping[str, Any]) -> str:
    if row["ended_at"] is None:
        return PartProblem.NOT_ENDED
    if not row["snapshot_before"] or not row["snapshot_after"]:
        return PartProblem.NO_SNAPSHOT
    return ""
