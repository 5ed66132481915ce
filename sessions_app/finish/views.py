"""The page on which a branch is merged: what a merge would do, the form that confirms it, and what became of it."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from executors_app.repositories.branch_merge import TOO_LARGE
from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.finish import services
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules import wording
from sessions_app.finish.rules.finish import FinishKind, Strategy
from sessions_app.finish.services import MergeState
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session, part_response
from sessions_app.prompts.services import queue_prompt
from sessions_app.remotes.services import has_remote


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def show_finish(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show what a merge would do (``?strategy=``), or request the one that was confirmed."""
    session = find_session(request, task_id, session_id)
    if request.method == "POST":
        return _merge(request, session)
    strategy = request.GET.get("strategy", "")
    if strategy not in list(Strategy):
        strategy = Strategy.MERGE
    return render(request, "finish/finish.html", _context(request, session, strategy))


def _merge(request: UserHttpRequest, session: TaskSession) -> HttpResponse:
    given = {
        name: str(request.POST.get(name, "")) for name in ("strategy", "branch_commit", "target_commit", "message")
    }
    try:
        services.request_merge(session, request.user, **given)
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect("session-finish", session.task_id, session.id)


@require_POST
def send_conflicts(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Send the agent a prompt that asks it to resolve the conflicts that there are now."""
    session = find_session(request, task_id, session_id)
    state = services.read_merge_state(session)
    if state.preview is None or not state.preview.conflicts:
        messages.info(request, "There are no conflicts any more.")
        return redirect("session-finish", session.task_id, session.id)
    text = wording.conflict_prompt(state.target_ref, state.preview.conflicts, state.target_commit)
    try:
        queue_prompt(session.id, str(request.POST.get("message_id", "")), text, request.user, ends_permission=False)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("session-finish", session.task_id, session.id)
    return redirect("session", session.task_id, session.id)


@never_cache
@require_GET
def finish_live(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the part with the session's merges and pushes."""
    session = find_session(request, task_id, session_id)
    return part_response("intents", "finish/intents.html", _intents_context(session), request)


def _context(request: UserHttpRequest, session: TaskSession, strategy: str) -> dict[str, Any]:
    state = services.read_merge_state(session, strategy)
    return {
        "task": session.task,
        "session": session,
        "merge": state,
        "strategy": strategy,
        "strategies": [(str(each), label) for each, label in wording.STRATEGY_LABELS.items()],
        "uncommitted": services.read_uncommitted(session),
        "may_merge": may_finish(request.user, session.task.team, FinishKind.MERGE),
        "may_prompt": may_write_session(request.user, session),
        "message": services.suggested_message(session, state, strategy) if state.target_ref else "",
        "command": _command(session, state, strategy),
        "message_id": uuid.uuid4(),
        "can_push": has_remote(session.task),
        **_intents_context(session),
    }


def _command(session: TaskSession, state: MergeState, strategy: str) -> str:
    """Return the command that merges what Kandev does not: into a base that is checked out, or too much; or nothing."""
    repository = session.task.repository
    if repository is None:
        return ""
    if state.problem == TOO_LARGE and not state.checked_out:
        commits = (state.branch_commit, state.target, state.target_commit)
        return wording.command_in_a_worktree(repository.path, strategy, *commits)
    if not state.checked_out:
        return ""
    # The paths of worktrees are written by whoever can write the repository: only the repository's own is named.
    path = repository.path if state.checked_out == "main" else ""
    return wording.command_by_hand(path, strategy, state.branch_commit, state.target_commit)


def _intents_context(session: TaskSession) -> dict[str, Any]:
    shown = services.recent_intents(session)
    return {
        "intents": [_shown(intent) for intent in shown],
        "is_open": any(intent.is_open for intent in shown),
    }


def _shown(intent: FinishIntent) -> dict[str, Any]:
    label, tone = wording.STATE_LABELS.get(intent.state, ("Unknown", "bad"))
    return {"intent": intent, "label": label, "tone": tone, "sentence": wording.intent_sentence(intent)}
