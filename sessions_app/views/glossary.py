"""What each word of the pages means, and what can be done then: for the help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessions_app.domain.states import SessionState, TaskState
from sessions_app.domain.status import DerivedStatus
from sessions_app.views.wording import DERIVED, OUTCOMES, SESSION_STATES, TASK_STATES, Word

_TASKS: Final[Mapping[str, str]] = {
    TaskState.TODO: "No session has done anything yet. Start one on the card, or on the task’s page.",
    TaskState.IN_PROGRESS: "An agent is starting or at work.",
    TaskState.REVIEW: "An agent has ended a turn, or waits for you: look at what it did, and say how to go on.",
    TaskState.DONE: "Somebody has said so. Its sessions are stopped; their branches stay.",
    TaskState.FAILED: "Every start of its sessions failed, too often to go on by itself. The session says why.",
    TaskState.CANCELLED: "Somebody has given it up.",
}
_SESSIONS: Final[Mapping[str, str]] = {
    SessionState.CREATED: "It was made, and nobody has begun to start it.",
    SessionState.STARTING: "Its workspace or its agent is on its way. Prompts that you give now wait in the queue.",
    SessionState.RUNNING: "The agent works on a prompt. What you write now comes after it.",
    SessionState.WAITING_FOR_INPUT: "The turn is over. Write the next prompt; an agent that sleeps wakes up for it.",
    SessionState.ERROR: "Something failed that can be tried again. The banner of its page says what, and offers it.",
    SessionState.COMPLETED: "It was closed as completed. Its branch and its conversation stay.",
    SessionState.FAILED: "It was started too often without success. A person has to start it again.",
    SessionState.CANCELLED: "It was closed as cancelled. Its branch and its conversation stay.",
}
_DERIVED: Final[Mapping[str, str]] = {
    DerivedStatus.INTERRUPTED_STARTUP: "The agent’s process ended in the middle of a turn. Nothing is sent twice: its "
    "prompt is shown, and you continue it, send it again or dismiss it.",
    DerivedStatus.INTERRUPTED_WAITING: "It waited for an answer when its process ended, or nobody answered in time.",
    DerivedStatus.WAITING: "It waits: for your answer, or for something outside, as a build.",
    DerivedStatus.RUNNING: "A turn is going on.",
    DerivedStatus.IDLE: "No turn is going on.",
}
_RECEIPTS: Final[Mapping[str, str]] = {
    "reattached": "The same process went on working while the control plane was away. Nothing was lost.",
    "resumed": "A new process says that it has the agent’s own conversation. Without a replay that stays unproven.",
    "loaded": "A new process loaded its conversation. What it replays is compared with the log; without a replay "
    "it is unproven that it remembers anything.",
    "injected": "The agent could not take its conversation up, so a new one was told what had been said.",
    "fresh": "The agent knows nothing of what was said before. Somebody chose that, or it was the first start.",
    "workspace_only": "The workspace is open: files, git, terminal. No agent runs in it.",
    "failed": "It could not be started. The reason stands beside it, and nothing was thrown away.",
    "skipped": "It was looked at and left alone: it rests, it is wanted stopped, or another supervisor has it.",
}
_NOUNS: Final[Mapping[str, str]] = {
    "Task": "What your team wants done. It stands on the board, under its state.",
    "Session": "One agent at work on a task, in a branch and a directory of its own. A task may have many.",
    "Agent profile": "How an agent is run: which kind, which model, with which arguments. Staff make them.",
    "Executor": "Where agents run: on this machine, in a container, on another machine.",
    "Repository": "A git repository that staff have opened to your team.",
    "Control plane": "Kandev itself: the web pages, the supervisor, the worker. Agents do not live in it.",
    "agentctl": (
        "The small program beside each agent. It goes on, and writes down what the agent says, while the "
        "control plane is away."
    ),
    "Supervisor": "The part of the control plane that starts agents, gives them prompts and hears what they say.",
    "Sweep": (
        "A look at everything that claims to run: after each start, and again and again. What lives is taken "
        "up again, what died is resumed where it can be."
    ),
    "Receipt": "How a start ended: what the agent still knows, and how we know that.",
    "Turn": "From a prompt to the moment when the agent has finished with it.",
    "Lease": "Which supervisor an agent listens to, and until when, so that two never command the same one.",
}
KEYS: Final = (
    ("Board", (("j, k", "next task, task before"), ("Enter", "open it"), ("x", "select its sessions, or not"),
               ("/", "search"), ("n", "new task"), ("?", "the list of the keys"), ("Esc", "leave the search"))),
    ("Session", (("Ctrl + Enter", "send the prompt"),)),
    ("Everywhere", (("Tab", "the next link, button or field"), ("Enter, Space", "press it"))),
)  # fmt: skip
"""The keys by page. Single keys can be switched off in the list that ``?`` shows."""


def glossary() -> list[dict[str, Any]]:
    """The parts of the glossary: a title, what they are about, and their words with meanings."""
    return [
        _part("tasks", "What a task’s state means", TASK_STATES, _TASKS),
        _part("sessions", "What a session’s state means", SESSION_STATES, _SESSIONS),
        _part("derived", "Whether a turn was cut short", DERIVED, _DERIVED),
        _part("receipts", "What a receipt says", OUTCOMES, _RECEIPTS),
    ]


def _part(name: str, title: str, words: Mapping[str, Word], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "title": title, "rows": [(words[key], meanings[key]) for key in words]}


def nouns() -> Mapping[str, str]:
    """The nouns of Kandev with their meanings."""
    return _NOUNS
