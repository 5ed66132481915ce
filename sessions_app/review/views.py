"""The page of a branch's changes, which needs no JavaScript: a list of all files, and the lines of some."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from executors_app.machine.git.branch_changes import MAX_PATHS
from executors_app.wire.errors import ExecutorError
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session, queried_number
from sessions_app.remotes.services import has_remote
from sessions_app.review.comment_views import comments_context
from sessions_app.review.rules import wording
from sessions_app.review.rules.parts import Part, PartKind
from sessions_app.review.services import read_open_or_saved

_LINES_AROUND: Final = 3
_SHOWN_SIGNS: Final = {ord("\r"): "␍", ord("\x1b"): "␛"}
"""Carriage returns and escapes are part of the content, so they stay visible."""
_KINDS: Final[Mapping[str, str]] = {"+": "plus", "-": "minus", "\\": "range"}


@never_cache
@require_safe
def show_changes(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show what the branch has changed, or ``?of=PART`` of it; ``?from=NUMBER`` begins the lines with another file."""
    session = find_session(request, task_id, session_id)
    try:
        part = Part.parse(request.GET.get("of", ""))
        changes = _changes(session, part, queried_number(request, "from") or 0)
    except (ValueError, NotFound):
        raise Http404("There is no such part of the branch.") from None
    context = {"session": session, "task": session.task, "can_push": has_remote(session.task)}
    context |= {**changes, **comments_context(request, session)}
    return render(request, "review/changes.html", context)


def _changes(session: TaskSession, part: Part, first: int) -> dict[str, Any]:
    try:
        found, hunks = read_open_or_saved(session, first, MAX_PATHS, _LINES_AROUND, part)
    except ExecutorError as error:
        return {"refusal": error.message, "part": part}
    last = min(first + MAX_PATHS, len(found["files"]))
    lines = {file["path"]: file for file in hunks}
    return {
        "kept": found.get("kept"),
        "part": part,
        "parts": _parts_of(found),
        "sentences": wording.branch_sentences(found),
        "listed": [
            {**file, "words": wording.change_words(file), "place": _place_of(part, number, range(first, last))}
            for number, file in enumerate(found["files"])
        ],
        "shown": [
            {**_shown(file, lines.get(file["path"])), "number": number, "new_id": str(uuid.uuid4())}
            for number, file in enumerate(found["files"][first:last], first)
        ],
        "first": first,
        "before": max(0, first - MAX_PATHS) if first else None,
        "after": last if last < len(found["files"]) else None,
    }


def _place_of(part: Part, number: int, shown: range) -> str:
    """Return the address of a file's lines: on this page, or on the one that begins with it."""
    return f"#file-{number}" if number in shown else f"?of={part}&from={number}"


def _parts_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commits and turns that can be chosen, with their names in addresses."""
    commits = [{**commit, "name": str(Part(PartKind.COMMIT, commit["id"]))} for commit in found["commits"] or ()]
    turns = [
        {
            **turn,
            "name": str(Part(PartKind.TURN, turn["id"])),
            "words": wording.turn_words(turn),
            "why_not": wording.PART_PROBLEMS.get(turn["problem"], ""),
        }
        for turn in found["turns"]
    ]
    return {
        "commits": commits,
        "more_commits": found["more_commits"],
        "turns": turns,
        "more_turns": found["more_turns"],
    }


def _shown(file: Mapping[str, Any], lines: Mapping[str, Any] | None) -> dict[str, Any]:
    shown = {**file, "words": wording.change_words(file), "explanations": wording.explanations(file)}
    if lines is None or lines["left_out"]:
        return {**shown, "left_out": True}
    if not lines["hunks"]:
        return shown
    return {**shown, "lines": list(_numbered(lines["hunks"])), "is_cut": lines["truncated"] or lines["cut"]}


def _numbered(hunks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of hunks; of those with content, also where they are: side, number there, and both numbers."""
    for hunk in hunks:
        ranges = "-{old_start},{old_lines} +{new_start},{new_lines}".format_map(hunk)
        yield {"kind": "range", "text": f"@@ {ranges} @@ {hunk['heading']}"}
        before, now = hunk["old_start"], hunk["new_start"]
        for line in hunk["lines"]:
            sign, text = line[:1], line[1:].translate(_SHOWN_SIGNS)
            shown = {"kind": _KINDS.get(sign, ""), "sign": sign, "text": text}
            if sign in "+- ":
                numbers = "{:>5} {:>5}".format(*(before if sign in "- " else "", now if sign in "+ " else ""))
                side, number = ("old", before) if sign == "-" else ("new", now)
                shown |= {"numbers": numbers, "side": side, "number": number}
            yield shown
            before += sign in "- "
            now += sign in "+ "
