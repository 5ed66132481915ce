"""Help: introduction, glossary and keyboard shortcuts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.cache import cache_control, never_cache
from django.views.decorators.http import require_safe

from executors_app import __version__
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.kernel.rules.states import DerivedStatus, SessionState, TaskState
from sessions_app.navigation.rules.shortcuts import KEYBOARD_SHORTCUTS
from sessions_app.pages.labels import DERIVED_STATUS_LABELS, OUTCOME_LABELS, TASK_STATE_LABELS
from sessions_app.recovery.services.restarts import can_order_restart
from sessions_app.sessions.rules.situation_facts import STATE_LABELS, Label

_TASK_MEANINGS: Final[Mapping[str, str]] = {
    TaskState.TODO: "No session has worked on it yet. Start one on the card or on the task’s page.",
    TaskState.IN_PROGRESS: "An agent is starting or working.",
    TaskState.REVIEW: "An agent has finished a turn or is waiting for you. Review its work and decide how to continue.",
    TaskState.DONE: "Someone marked it as done. Its sessions are stopped; their branches are kept.",
    TaskState.FAILED: "Its sessions could not be started after several attempts. The session page shows why.",
    TaskState.CANCELLED: "Someone cancelled it.",
}
_SESSION_MEANINGS: Final[Mapping[str, str]] = {
    SessionState.CREATED: "It was created, but not started.",
    SessionState.STARTING: "Its workspace or its agent is starting. Prompts you send now are queued.",
    SessionState.RUNNING: "The agent is working on a prompt, or on its own. Prompts you send now are queued.",
    SessionState.WAITING_FOR_INPUT: "The turn has ended. Send the next prompt; it starts the agent if necessary.",
    SessionState.ERROR: "Something failed. The session page shows what, and what you can do.",
    SessionState.COMPLETED: "It was closed as completed. Its branch and conversation are kept.",
    SessionState.FAILED: "The agent could not be started. Fix the cause, then press “Try again”.",
    SessionState.CANCELLED: "It was closed as cancelled. Its branch and conversation are kept.",
}
_DERIVED_MEANINGS: Final[Mapping[str, str]] = {
    DerivedStatus.INTERRUPTED_STARTUP: "The agent’s process ended in the middle of a turn. Nothing is sent twice: "
    "Kandev asks the agent to continue, or, where it may not, you decide whether to continue, resend or dismiss.",
    DerivedStatus.INTERRUPTED_WAITING: "The agent’s process ended while it waited for an answer, or nobody answered in "
    "time.",
    DerivedStatus.WAITING: "It is waiting for your answer, or for an external result such as a build.",
    DerivedStatus.RUNNING: "A turn is in progress.",
    DerivedStatus.IDLE: "No turn is in progress.",
}
_RECEIPT_MEANINGS: Final[Mapping[str, str]] = {
    "reattached": "The same process kept running while Kandev was down.",
    "resumed": "A new process reports that it has restored the conversation. Without a replay, that is unproven.",
    "loaded": "A new process loaded its conversation. What it replays is compared with the log; without a replay "
    "it is unproven.",
    "injected": "The agent could not restore its conversation, so a new one got the history.",
    "fresh": "The agent does not know the earlier conversation. Someone chose that, or it was the first start.",
    "workspace_only": "The workspace is open: files, git, terminal. No agent runs in it.",
    "failed": "It could not be started. The reason is shown beside it, and nothing was deleted.",
    "skipped": "It was checked and left alone: it is idle, stopped, or held by another supervisor.",
}
_NOUN_MEANINGS: Final[Mapping[str, str]] = {
    "Task": "A piece of work that your team wants done. The board shows it under its state.",
    "Session": "One agent working on a task, in its own branch and directory. A task can have many.",
    "Agent profile": "How an agent runs: its type, model and arguments. Administrators create profiles.",
    "Executor": "Where agents run: on this machine, in containers or on another machine.",
    "Repository": "A git repository that an administrator has made available to your team.",
    "Control plane": "Kandev itself: the web server, the supervisor and the worker. Agents run outside of it.",
    "agentctl": (
        "The small program beside each agent. It keeps running and records the agent’s output while the "
        "control plane is down."
    ),
    "Supervisor": "The part of the control plane that starts agents, sends them prompts and records their output.",
    "Sweep": (
        "A check of every session that should be running, when a supervisor starts and at regular intervals. "
        "Running agents are reconnected, others are resumed where possible."
    ),
    "Receipt": "How a start ended: what the agent still knows, and how we know that.",
    "Turn": "The agent’s work on one prompt, from its delivery to the end. An agent can also begin a turn on its own.",
    "Lease": "Which supervisor controls an agent, and until when, so that two never control the same one.",
}


def glossary_sections() -> list[dict[str, Any]]:
    """Return the sections of the glossary: name, title, and rows of label and meaning."""
    return [
        _glossary_section("tasks", "Task states", TASK_STATE_LABELS, _TASK_MEANINGS),
        _glossary_section("sessions", "Session states", STATE_LABELS, _SESSION_MEANINGS),
        _glossary_section("derived", "Turn status", DERIVED_STATUS_LABELS, _DERIVED_MEANINGS),
        _glossary_section("receipts", "Receipts", OUTCOME_LABELS, _RECEIPT_MEANINGS),
    ]


def _glossary_section(name: str, title: str, words: Mapping[str, Label], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "title": title, "rows": [(words[key], meanings[key]) for key in words]}


HELP_PICTURES: Final = {
    "board": "The board: tasks by state, the result of the last restart, and what needs you.",
    "session-running": "A session while its agent works.",
    "session-after-a-restart": "The same session after Kandev was killed: same process, nothing lost.",
    "timeline": "What happened to a session, in plain words.",
    "sweeps": "The sweeps and their results.",
    "restart": "Kandev was restarted on purpose, and this is the result.",
}
"""Captions of the screenshots by name. Screenshots without a file are left out."""


@never_cache
@require_safe
def show_help(request: UserHttpRequest) -> HttpResponse:
    """Show the help page."""
    context = {
        "glossary": glossary_sections(),
        "nouns": _NOUN_MEANINGS,
        "keys": KEYBOARD_SHORTCUTS,
        "pictures": {
            name.replace("-", "_"): (name, text, *_picture_size(name))
            for name, text in HELP_PICTURES.items()
            if _picture_path(name).is_file()
        },
        "example": visible_tasks(request.user).filter(archived_at=None).order_by("created_at").first(),
        "version": __version__,
        "may_restart": can_order_restart(request.user),
    }
    return render(request, "pages/help.html", context)


@cache
def _picture_size(name: str) -> tuple[int, int]:
    """Return width and height of a screenshot, as its file begins: its place is kept until it has loaded."""
    with _picture_path(name).open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:])
    return width, height


@cache_control(private=True, max_age=3600)
@require_safe
def help_picture(request: UserHttpRequest, name: str) -> HttpResponse:
    """Return the PNG file of one of ``HELP_PICTURES``; 404 for any other name."""
    if name not in HELP_PICTURES or not _picture_path(name).is_file():
        raise Http404(name)
    return HttpResponse(_picture_path(name).read_bytes(), content_type="image/png")


@login_not_required
@require_safe
def favicon(request: UserHttpRequest) -> HttpResponse:
    """Redirect to the icon, for programs that ask for ``/favicon.ico`` without reading a page."""
    return redirect(static("kandev/favicon.svg"))


def _picture_path(name: str) -> Path:
    return Path(settings.BASE_DIR) / "docs" / "screenshots" / f"{name}.png"
