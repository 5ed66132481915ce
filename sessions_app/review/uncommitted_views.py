"""Pages on which uncommitted changes are committed, unstaged or discarded, without JavaScript."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from executors_app.wire.errors import ExecutorError
from executors_app.wire.protocol import Code
from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session
from sessions_app.review import services

_MAX_SELECTED: Final = 2000
_MAX_MESSAGE: Final = 64 * 1024
_GROUPS: Final[Mapping[str, str]] = {"staged": "Staged", "file": "Not staged"}
_KINDS: Final[Mapping[str, str]] = {"@": "hunk", "+": "added", "-": "gone"}
_MAX_LINES: Final = 5000
_UNDO: Final[Mapping[str, str]] = {"staged": "unstage", "file": "discard"}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def commit_changes(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show the uncommitted changes and a form that commits those that are selected, or do it."""
    session = find_session(request, task_id, session_id)
    if request.method == "POST":
        return _commit(request, session)
    return _commit_page(request, session)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def undo_changes(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show what unstaging or discarding a file (``?path=&action=``) would lose, or do it."""
    session = find_session(request, task_id, session_id)
    given = request.POST if request.method == "POST" else request.GET
    path, action = (str(given.get(name, "")) for name in ("path", "action"))
    if request.method == "POST":
        path = unquote(path)
    if action not in _UNDO.values() or not path:
        raise Http404("no such action")
    if request.method == "POST":
        return _undo(request, session, path, action)
    context: dict[str, Any] = {"session": session, "task": session.task, "path": path, "action": action}
    try:
        loss = services.show_loss(session, path, action)
    except ExecutorError as error:
        return render(request, "review/undo.html", context | {"refusal": error.message})
    shown = {"loss": loss, "lines": _diff_lines(loss["lines"]), "path_value": quote(path)}
    context |= {**shown, "may_write": may_write_session(request.user, session)}
    return render(request, "review/undo.html", context)


def _diff_lines(diff: str) -> list[dict[str, str]]:
    """Return the lines of a diff without what git writes above the first hunk, each with its kind."""
    lines = diff.removesuffix("\n").split("\n") if diff else []
    start = next((number for number, line in enumerate(lines) if line.startswith("@@")), 0)
    shown = [{"kind": _KINDS.get(line[:1], ""), "text": line} for line in lines[start : start + _MAX_LINES]]
    if len(lines) - start > _MAX_LINES:
        shown.append({"kind": "hunk", "text": _more_lines(len(lines) - start - _MAX_LINES)})
    return shown


def _more_lines(number: int) -> str:
    return plural(number, "… 1 more line", "… {} more lines")


def _commit(request: UserHttpRequest, session: TaskSession) -> HttpResponse:
    files = [_selected(str(value)) for value in request.POST.getlist("file")[: _MAX_SELECTED + 1]]
    message = str(request.POST.get("message", ""))
    problem = ""
    if not files:
        problem = "Select at least one file."
    elif not message.strip():
        problem = "Enter a message."
    elif len(message) > _MAX_MESSAGE or len(files) > _MAX_SELECTED:
        problem = "That is too much for one commit."
    if problem:
        messages.error(request, problem)
        return _commit_page(request, session, message, files)
    try:
        made = services.commit_selected(session, request.user, message, files)
    except ExecutorError as error:
        messages.error(request, error.message)
        return _commit_page(request, session, message, files)
    where = f" on {made['branch']}" if made["branch"] else ""
    messages.success(request, f"Committed as {made['commit'][:8]}{where}: {made['subject']}")
    return redirect("session-changes", session.task_id, session.id)


def _selected(value: str) -> dict[str, str]:
    """Parse the value of a check box: content, version and quoted path, because browsers change line ends in values."""
    content, _, rest = value.partition(" ")
    version, _, path = rest.partition(" ")
    if content not in _GROUPS:
        raise Http404("no such content")
    return {"content": content, "version": version, "path": unquote(path)}


def _commit_page(
    request: UserHttpRequest, session: TaskSession, message: str = "", files: list[dict[str, str]] | None = None
) -> HttpResponse:
    """Show the changes as they are now; after a refusal with what was entered, except for files that have changed."""
    context: dict[str, Any] = {"session": session, "task": session.task, "message": message}
    try:
        found = services.list_selectable(session)
    except ExecutorError as error:
        return render(request, "review/commit.html", context | {"refusal": error.message})
    chosen = None if files is None else {(file["content"], file["version"]) for file in files}
    rows = [_row(file, chosen) for file in found["files"]]
    groups = [(title, [row for row in rows if row["content"] == content]) for content, title in _GROUPS.items()]
    context |= {
        "found": found,
        "groups": [(title, each) for title, each in groups if each],
        "may_write": may_write_session(request.user, session),
        "may_commit": not found["conflicts"] and not found["operation"] and any(row["version"] for row in rows),
    }
    return render(request, "review/commit.html", context)


def _row(file: Mapping[str, Any], chosen: set[tuple[str, str]] | None) -> dict[str, Any]:
    action = _UNDO[file["content"]]
    is_chosen = bool(file["version"]) and (chosen is None or (file["content"], file["version"]) in chosen)
    return {
        **file,
        "words": file["change"].replace("_", " "),
        "value": f"{file['content']} {file['version']} {quote(file['path'])}",
        "is_chosen": is_chosen,
        "action": action.capitalize(),
        # A repository inside the workspace is a directory.
        "undo": "" if file["path"].endswith("/") else urlencode({"path": file["path"], "action": action}),
    }


def _undo(request: UserHttpRequest, session: TaskSession, path: str, action: str) -> HttpResponse:
    try:
        services.undo_change(session, path, action, str(request.POST.get("version", ""))[:64])
    except ExecutorError as error:
        messages.error(request, error.message)
        if getattr(error, "refusal", "") == Code.FILE_CHANGED:
            page = reverse("session-undo", args=[session.task_id, session.id])
            return redirect(f"{page}?{urlencode({'path': path, 'action': action})}")
    else:
        done = "Unstaged" if action == "unstage" else "Discarded the changes of"
        messages.success(request, f"{done} {path}.")
    return redirect("session-commit", session.task_id, session.id)
