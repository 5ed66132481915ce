"""What needs somebody, and the words for it: what happened, why, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from sessions_app.domain.sanitizing import redact


class AttentionKind(StrEnum):
    """Why somebody is wanted, the most pressing first."""

    GAVE_UP = "gave_up"
    """Started too often without success: only a user starts it again."""
    ERROR = "error"
    """In error, and nothing will be tried by itself."""
    PERMISSION = "permission"
    """The agent asks before it acts."""
    HELD = "held"
    """It is not known whether the agent got a prompt."""
    CUT_SHORT = "cut_short"
    """The agent was interrupted in its turn, which nothing continues by itself."""
    OWNER_LEFT = "owner_left"
    """Its owner has left the team, so it is not started by itself (rule 35); for staff."""
    WAIT_INTERRUPTED = "wait_interrupted"
    """What a session waited for has not come in time, and somebody decides how it goes on."""
    OVERDUE = "overdue"
    """No agent could be had for a prompt in time."""
    WORKFLOW = "workflow"
    """A run of a workflow has failed, a node of it waits for somebody, or its scheduled runs are paused."""
    STALLED = "stalled"
    """The agent has been silent in its turn for long."""
    CANCEL_IGNORED = "cancel_ignored"
    """The agent was asked to cancel its turn, and goes on."""
    RECEIPT = "receipt"
    """A start has lost the conversation."""
    UNPROVEN = "unproven"
    """The agent says that it has its conversation, and nothing shows it."""
    IDLE = "idle"
    """It was at work and is at rest: needs a look."""


STAFF_KINDS: Final = frozenset({AttentionKind.OWNER_LEFT})
"""What the team cannot settle by itself: staff see it whether or not they are in the team."""
LOOK_KINDS: Final = frozenset({AttentionKind.IDLE, AttentionKind.RECEIPT, AttentionKind.UNPROVEN})
"""What is settled for a user by having seen it; the others want something to be done."""
AT_REST_KINDS: Final = frozenset(
    {AttentionKind.IDLE, AttentionKind.ERROR, AttentionKind.OVERDUE, AttentionKind.STALLED, AttentionKind.OWNER_LEFT}
)
"""What is true no longer once the agent is at work, or the session is not wanted any more."""
PRIORITY: Final[Mapping[str, int]] = {kind: number for number, kind in enumerate(AttentionKind)}
DETAIL_LIMIT: Final = 8000
"""Characters kept of a log: its end."""
_ERRORS: Final[Mapping[str, str]] = {
    "context_mismatch": "The agent came back with another conversation than this one",
    "worktree_missing": "The session’s worktree is gone",
    "program_missing": "The agent’s program is not installed",
    "auth_required": "The agent is not logged in",
}
EXCERPT_LIMIT: Final = 200
"""Characters of an agent's or a provider's own words in a sentence."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that needs somebody, as it is told; ``key`` names it once and for all."""

    kind: AttentionKind
    key: str
    what: str
    why: str
    next_step: str
    detail: str = ""
    """Evidence behind a click: the last error, the end of a log; without secrets that we know for such."""


def gave_up_notice(
    session_id: str, starts: int, error: str, seq: int, log_tail: str = "", *, died: bool = False
) -> Notice:
    """Only a user starts it again; ``seq`` tells this time from an earlier one. ``died``: its agents did, once up."""
    failed = f"{starts} starts ended without success. The last error: {excerpt(error) or 'unknown'}"
    return Notice(
        AttentionKind.GAVE_UP,
        f"gave_up:{session_id}:{seq}",
        "The agent kept dying and was given up" if died else "The session failed to start and was given up",
        excerpt(error) if died else failed,
        "Open the session, look at the last error, and choose “Try again” when its cause is mended.",
        tail("\n\n".join(filter(None, (error, log_tail)))),
    )


def error_notice(session_id: str, code: str, message: str, seq: int, log_tail: str = "") -> Notice:
    """Nothing will be tried by itself."""
    return Notice(
        AttentionKind.ERROR,
        f"error:{session_id}:{seq}",
        _ERRORS.get(code, "The session cannot go on by itself"),
        excerpt(message) or code.replace("_", " "),
        "Open the session: its banner says what can be done.",
        tail("\n\n".join(filter(None, (message, log_tail)))),
    )


def permission_notice(permission_id: str, tool_call: Mapping[str, Any]) -> Notice:
    """The agent waits for an answer."""
    return Notice(
        AttentionKind.PERMISSION,
        f"permission:{permission_id}",
        "The agent asks for permission",
        f"It wants to go on with: {_describe_tool_call(tool_call)}",
        "Open the session and allow or refuse it. The agent waits until then.",
    )


def _describe_tool_call(tool_call: Mapping[str, Any]) -> str:
    """What the agent wants to do, as far as it told: title, kind, input and files."""
    title = excerpt(str(tool_call.get("title") or ""))
    kind, given = str(tool_call.get("tool_kind") or ""), tool_call.get("raw_input")
    places = tool_call.get("locations")
    paths = [str(one.get("path") or "") for one in places if isinstance(one, dict)] if isinstance(places, list) else []
    parts = [
        (title or "an action") + (f" ({excerpt(kind)})" if kind else ""),
        f"Input: {excerpt(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))}"
        if given
        else "",
        f"Files: {excerpt(', '.join(filter(None, paths)))}" if any(paths) else "",
    ]
    return ". ".join(filter(None, parts))


def held_notice(session_id: str, message_id: str, text: str) -> Notice:
    """A prompt in doubt."""
    return Notice(
        AttentionKind.HELD,
        held_key(session_id, message_id),
        "It is not known whether the agent got a prompt",
        f"Its agent was gone before it said so, and nothing is sent twice. The prompt: {excerpt(text)}",
        "Open the session and send the prompt again, or dismiss it.",
    )


def held_key(session_id: Any, message_id: str) -> str:
    """The key of a prompt in doubt: its own id is unique in its session only."""
    return f"held:{session_id}:{message_id}"


def cut_short_notice(session_id: Any, message_id: str, text: str) -> Notice:
    """A turn that was interrupted, and is not settled."""
    return Notice(
        AttentionKind.CUT_SHORT,
        cut_short_key(session_id, message_id),
        "The agent was interrupted in its turn",
        f"Its work may be half done, and nothing is sent twice by itself. The prompt: {excerpt(text)}",
        "Open the session: let the agent continue, send the prompt again, or dismiss it.",
    )


def cut_short_key(session_id: Any, message_id: str) -> str:
    """The key of an interrupted prompt."""
    return f"cut_short:{session_id}:{message_id}"


def overdue_notice(session_id: str, message_id: str, reason: str) -> Notice:
    """No agent in time."""
    return Notice(
        AttentionKind.OVERDUE,
        f"overdue:{session_id}:{message_id}",
        "A prompt has waited too long for an agent",
        f"No agent could be had for it yet: {reason.replace('_', ' ')}",
        "Open the session: withdraw the prompt, or see to what keeps the agent from starting.",
    )


def wait_interrupted_notice(run_id: str, reason: str) -> Notice:
    """A wait for the outside that has ended without an answer."""
    return Notice(
        AttentionKind.WAIT_INTERRUPTED,
        f"wait_interrupted:{run_id}",
        "A wait has ended without an answer",
        f"Nobody answered in time. It waited for: {excerpt(reason) or 'something from outside'}",
        "Open the session: choose “Wait again”, or “Continue” without it. The agent is told with its next prompt.",
    )


def stalled_notice(run_id: str, since: str) -> Notice:
    """Silence."""
    return Notice(
        AttentionKind.STALLED,
        f"stalled:{run_id}",
        "The agent has been silent for long",
        f"Nothing was heard of its turn since {since}.",
        "Open the session: wait for it, or cancel the turn.",
    )


def cancel_ignored_notice(run_id: str, since: str) -> Notice:
    """A turn that outlives its cancel."""
    return Notice(
        AttentionKind.CANCEL_IGNORED,
        f"cancel_ignored:{run_id}",
        "The agent ignores a cancel",
        f"It was asked to cancel its turn at {since}, and has not ended it.",
        "Open the session: wait for the turn’s end, or stop the agent. Its conversation and its files are kept.",
    )


def receipt_notice(receipt_id: str) -> Notice:
    """A start that lost the conversation."""
    return Notice(
        AttentionKind.RECEIPT,
        f"receipt:{receipt_id}",
        "The agent started fresh and knows nothing of what was said before",
        "Its own conversation could not be taken up; the receipt has the evidence.",
        "Open the session: read the receipt, and tell the agent what it has to know.",
    )


def unproven_notice(receipt_id: str, found: str = "") -> Notice:
    """A start whose success nothing shows; ``found``: what came of asking the agent."""
    return Notice(
        AttentionKind.UNPROVEN,
        f"unproven:{receipt_id}",
        "It is not proven that the agent remembers this conversation",
        found or "It reports success, but replayed none of the conversation. It may have all of it, or nothing.",
        "Before you rely on its memory, ask it what your last request was.",
    )


def owner_left_notice(session_id: str, owner: str) -> Notice:
    """Nobody in the team answers for it."""
    return Notice(
        AttentionKind.OWNER_LEFT,
        f"owner_left:{session_id}",
        "A session was not started: its owner has left the team",
        f"{owner or 'Its owner'} is no longer in the team, or only reads there, so it does not run on by itself.",
        "Add the owner to the team again, or let a member resume the session.",
    )


def run_key(run_id: str) -> str:
    """How the keys of a failed workflow run begin; each time that it goes on and fails again has its own."""
    return f"workflow_run:{run_id}:"


def run_failed_notice(run_id: str, name: str, error: str, round_: int) -> Notice:
    """A run of a workflow has ended without success."""
    return Notice(
        AttentionKind.WORKFLOW,
        f"{run_key(run_id)}{round_}",
        f"The workflow “{excerpt(name)}” has failed",
        excerpt(error) or "It says no more.",
        "Open its run: mend the cause and let it go on from what failed, or start a new run.",
        tail(error),
    )


def node_waits_notice(run_id: str, path: str, name: str, attempt: int) -> Notice:
    """A node of a workflow goes on when somebody has settled its prompt."""
    return Notice(
        AttentionKind.WORKFLOW,
        f"workflow_node:{run_id}:{attempt}:{sha256(path.encode()).hexdigest()[:16]}",
        f"The workflow “{excerpt(name)}” waits for somebody",
        f"The agent of its node {excerpt(path)} was interrupted, and nothing is sent twice by itself.",
        "Open the session: continue, send the prompt again, or dismiss it, which fails the node.",
    )


def triggers_paused_notice(workflow_id: str, name: str, why: str, who: str) -> Notice:
    """The triggers of a workflow start nothing until somebody confirms it; ``who`` says whose rights suffice."""
    return Notice(
        AttentionKind.WORKFLOW,
        f"workflow_triggers:{workflow_id}",
        f"The scheduled runs of “{excerpt(name)}” are paused",
        excerpt(why),
        f"Open the workflow, read what has changed, and confirm it or switch its triggers off. {who}",
    )


def idle_notice(run_id: str, state: str) -> Notice:
    """At rest after work."""
    words = {"completed": "The agent has ended its turn", "failed": "The agent’s turn has failed"}
    return Notice(
        AttentionKind.IDLE,
        f"idle:{run_id}",
        words.get(state, "The agent was interrupted and is at rest"),
        "It was at work, is at rest now, and nothing else is asked of it.",
        "Open the session: look at what was done, and ask for more or close it.",
    )


def excerpt(text: str) -> str:
    """The beginning of somebody's words, on one line and without secrets."""
    plain = " ".join(text[: 4 * EXCERPT_LIMIT].replace("\0", " ").split())
    safe, _ = redact(plain)
    return safe if len(safe) <= EXCERPT_LIMIT else f"{safe[: EXCERPT_LIMIT - 1].rstrip()}…"


def tail(text: str) -> str:
    """The end of a log, without secrets."""
    safe, _ = redact(text[-DETAIL_LIMIT:].replace("\0", ""))
    return safe
