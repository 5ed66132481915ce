"""Attention items: the kinds, their labels, and the notice of each: what happened, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from sessions_app.attention.rules.quotations import (
    Quotation,
    Text,
    encode_quotations,
    quote,
    quote_ends,
    quote_json,
    quote_lines,
    text,
)
from sessions_app.kernel.rules.wording import plural
from sessions_app.sessions.rules.situation_facts import AGENT_DIED_HEADLINE, HEADLINES, LABELS, Code, Label
from sessions_app.stream.rules.tool_calls import COMMAND_FIELDS, UNKNOWN_ACTION, command_of, is_unknown_action
from sessions_app.usage.rules.budgets import HoldReason, hold_end_sentence, hold_sentence


class AttentionKind(StrEnum):
    """Why a person is needed, in order of priority."""

    GAVE_UP = "gave_up"
    """Too many starts have failed; only a user can start it again."""
    ERROR = "error"
    """The session is in error, and nothing is retried automatically."""
    SYSTEM = "system"
    """Something of the deployment needs an administrator, as a host without a supervisor. For staff, and of no team."""
    PERMISSION = "permission"
    """The agent asks before it acts."""
    QUESTION = "question"
    """The agent asks a person something, and waits for the answer."""
    HELD = "held"
    """It is not known whether the agent got a prompt."""
    CUT_SHORT = "cut_short"
    """The agent was interrupted during its turn, and nothing continues it automatically."""
    OWNER_LEFT = "owner_left"
    """The session's owner has left the team, so it does not start automatically. For staff."""
    WAIT_INTERRUPTED = "wait_interrupted"
    """A wait ended without an answer, and someone must decide how to continue."""
    OVERDUE = "overdue"
    """No agent became available for a prompt in time."""
    WORKFLOW = "workflow"
    """A workflow run has failed, one of its nodes needs a decision, or its scheduled runs are paused."""
    FINISH = "finish"
    """A merge or push was not carried out, or it is not known whether it was."""
    STALLED = "stalled"
    """The open turn has produced no output for long."""
    CANCEL_IGNORED = "cancel_ignored"
    """The agent was asked to cancel its turn and continues it."""
    SUSPENDED = "suspended"
    """The agent’s usage limit is reached, or its provider is down: the session waits until that ends."""
    BUDGET = "budget"
    """A budget is used up, and no further prompt is sent."""
    OUTPUT_LIMIT = "output_limit"
    """The agent has written more than is stored."""
    RECEIPT = "receipt"
    """The agent started without its conversation."""
    UNPROVEN = "unproven"
    """The agent reports that it has its conversation, but nothing proves it."""
    IDLE = "idle"
    """The agent finished its work and is idle: the work needs review."""


ATTENTION_KIND_LABELS: Final[Mapping[str, Label]] = {
    AttentionKind.GAVE_UP: LABELS[Code.GAVE_UP],
    AttentionKind.ERROR: LABELS[Code.ERROR],
    AttentionKind.SYSTEM: Label("System", "bad"),
    AttentionKind.PERMISSION: LABELS[Code.PERMISSION],
    AttentionKind.QUESTION: LABELS[Code.QUESTION],
    AttentionKind.HELD: LABELS[Code.HELD],
    AttentionKind.CUT_SHORT: LABELS[Code.INTERRUPTED],
    AttentionKind.OWNER_LEFT: LABELS[Code.OWNER_LEFT],
    AttentionKind.WAIT_INTERRUPTED: LABELS[Code.WAIT_INTERRUPTED],
    AttentionKind.OVERDUE: LABELS[Code.OVERDUE],
    AttentionKind.WORKFLOW: Label("Workflow", "ask"),
    AttentionKind.FINISH: Label("Merge or push failed", "ask"),
    AttentionKind.STALLED: LABELS[Code.STALLED],
    AttentionKind.CANCEL_IGNORED: LABELS[Code.CANCEL_IGNORED],
    AttentionKind.SUSPENDED: LABELS[Code.SUSPENDED],
    AttentionKind.BUDGET: LABELS[Code.BUDGET],
    AttentionKind.OUTPUT_LIMIT: Label("Output limit", "ask"),
    AttentionKind.RECEIPT: Label("Memory lost", "ask"),
    AttentionKind.UNPROVEN: Label("Memory unproven", "calm"),
    AttentionKind.IDLE: Label("Review needed", "calm"),
}
"""Labels of inbox items, by kind."""
STAFF_KINDS: Final = frozenset({AttentionKind.OWNER_LEFT, AttentionKind.SYSTEM})
"""Kinds that the team cannot resolve itself; staff see them in every team, and those of no team."""
LOOK_KINDS: Final = frozenset({AttentionKind.IDLE, AttentionKind.RECEIPT, AttentionKind.UNPROVEN})
"""Kinds that are resolved for a user who has seen them; the others need an action."""
SHARED_KINDS: Final = frozenset({AttentionKind.FINISH})
"""Kinds that a member settles for everyone by dismissing them; they do not end with their session."""
AT_REST_KINDS: Final = frozenset(
    {
        AttentionKind.IDLE,
        AttentionKind.ERROR,
        AttentionKind.OVERDUE,
        AttentionKind.STALLED,
        AttentionKind.OWNER_LEFT,
        AttentionKind.SUSPENDED,
    }
)
"""Kinds that no longer apply once the agent works, or the session should no longer run."""
PRIORITY: Final[Mapping[str, int]] = {kind: number for number, kind in enumerate(AttentionKind)}
DETAIL_LIMIT: Final = 8000
"""Maximum number of characters kept of the end of a log."""
_ERRORS: Final[Mapping[str, str]] = {
    "context_mismatch": HEADLINES[Code.CONTEXT_MISMATCH],
    "worktree_missing": HEADLINES[Code.WORKTREE_MISSING],
    "program_missing": "The agent’s program is not installed",
    "auth_required": "The agent is not logged in",
}
ERROR_CHARS: Final = 800
"""Maximum number of characters of the end of an error that are kept as evidence."""
WHAT_LIMIT: Final = 300
"""Characters of the first sentence."""
_MAX_FILES: Final = 100
"""Files of a tool call that are read in order to name the first of them."""
_MAX_COMMAND_WORDS: Final = 1000
"""Words of a command that are joined in order to quote it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The text of one attention item; ``key`` identifies it permanently."""

    kind: AttentionKind
    key: str
    what: str | Text
    why: str | Text
    next_step: str
    detail: str | Text = ""
    """Evidence shown on request: the last error, the end of a log."""

    def columns(self) -> dict[str, str]:
        """Return the texts as an item stores them: quotations apart, not searched for secrets, and not filled in."""
        texts = {"what": self.what, "why": self.why, "next_step": self.next_step, "detail": self.detail}
        stored = {name: str(words) for name, words in texts.items()}
        stored["what"] = stored["what"][:WHAT_LIMIT]
        return {**stored, "quoted": encode_quotations(texts), "worded": "", "worded_for": ""}


@dataclass(frozen=True, slots=True)
class FailedFinish:
    """A merge or push that ended without success."""

    target: str
    """The branch that was to be moved, as a full ref."""
    message: str
    """Why."""
    is_push: bool = False
    is_unknown: bool = False
    """Nobody could find out whether it has happened."""
    has_conflicts: bool = False

    @property
    def branch(self) -> str:
        """The name of the branch, for people."""
        return self.target.removeprefix("refs/heads/")


def gave_up_notice(
    session_id: str, starts: int, error: str, seq: int, log_tail: str = "", *, died: bool = False
) -> Notice:
    """Return the notice of a session that only a user starts again.

    ``seq`` distinguishes this time from earlier ones; ``died``: its agents started and then ended. ``log_tail`` is the
    end of their log as ``tail`` returns it.
    """
    if died:
        headline = AGENT_DIED_HEADLINE
        why = text(quote(error))
    else:
        headline = HEADLINES[Code.GAVE_UP]
        ended = plural(starts, "1 start", "{} starts")
        why = text(f"{ended} ended without success. The last error: ", quote(error) or "unknown")
    return Notice(
        AttentionKind.GAVE_UP,
        f"gave_up:{session_id}:{seq}",
        headline,
        why,
        "Open the session, fix the cause of the last error, then choose “Try again”.",
        _evidence(error, log_tail),
    )


def error_notice(session_id: str, code: str, message: str, seq: int, log_tail: str = "") -> Notice:
    """Return the notice of an error after which nothing is retried automatically."""
    return Notice(
        AttentionKind.ERROR,
        f"error:{session_id}:{seq}",
        _ERRORS.get(code, "The session needs your decision"),
        text(quote(message) or code.replace("_", " ")),
        "Open the session to see the options.",
        _evidence(message, log_tail),
    )


def permission_notice(permission_id: str, tool_call: Mapping[str, Any]) -> Notice:
    """Return the notice of an open permission request."""
    if is_unknown_action(tool_call):
        return Notice(
            AttentionKind.PERMISSION,
            f"permission:{permission_id}",
            HEADLINES[Code.PERMISSION],
            UNKNOWN_ACTION,
            "Open the session, look at what the agent did before, and reject the request. The agent waits until then.",
        )
    return Notice(
        AttentionKind.PERMISSION,
        f"permission:{permission_id}",
        HEADLINES[Code.PERMISSION],
        text("It asks to run: ", _describe_tool_call(tool_call)),
        "Open the session, read the whole request there, and allow or reject it. The agent waits until then.",
    )


def question_notice(permission_id: str, question: Mapping[str, Any]) -> Notice:
    """Return the notice of an open question."""
    return Notice(
        AttentionKind.QUESTION,
        f"question:{permission_id}",
        HEADLINES[Code.QUESTION],
        text(quote(_string(question.get("message"))) or "It gives no reason."),
        "Open the session and answer or decline it. The agent waits until then.",
    )


def request_notice(permission_id: str, tool_call: Mapping[str, Any], question: Mapping[str, Any] | None) -> Notice:
    """Return the notice of what an agent asks: a question, or a permission."""
    if question:
        return question_notice(permission_id, question)
    return permission_notice(permission_id, tool_call)


def _describe_tool_call(tool_call: Mapping[str, Any]) -> Text:
    """Describe what the agent asks to do: title, command or kind and input, and files, as far as known."""
    title = _string(tool_call.get("title"))
    action = text(quote_ends(title) or "an action")
    command = _command_of(tool_call)
    if kind := quote("" if command else _string(tool_call.get("tool_kind"))):
        action = text(action, " (", kind, ")")
    if sub_agent := quote(_string(tool_call.get("sub_agent"))):
        action = text(action, ", for ", sub_agent)
    if command and title.strip("` \n") != command.strip():
        action = text(action, ". Command: ", quote_ends(command))
    elif not command:
        action = text(action, *_input_of(tool_call))
    if paths := quote(", ".join(_first_paths(tool_call))):
        action = text(action, ". Files: ", paths)
    return action


def _command_of(tool_call: Mapping[str, Any]) -> str:
    """Return the command; empty if there is none, or if it has so many words that its input is told instead.

    This runs in the transaction that raises the item, and the agent decides how many words it has to quote.
    """
    raw_input = tool_call.get("raw_input")
    if isinstance(raw_input, dict):
        lists = [raw_input[name] for name in COMMAND_FIELDS if isinstance(raw_input.get(name), list)]
        if any(len(words) > _MAX_COMMAND_WORDS for words in lists):
            return ""
    return command_of(tool_call)


def _input_of(tool_call: Mapping[str, Any]) -> tuple[str | Quotation, ...]:
    raw_input = tool_call.get("raw_input")
    if not raw_input:
        return ()
    if isinstance(raw_input, str):
        return (". Input: ", quote_ends(raw_input))
    return (". Input: ", quote_json(raw_input))


def _first_paths(tool_call: Mapping[str, Any]) -> list[str]:
    locations = tool_call.get("locations")
    if not isinstance(locations, list):
        return []
    paths = [_string(location.get("path")) for location in locations[:_MAX_FILES] if isinstance(location, dict)]
    return [path for path in paths if path]


def _string(value: Any) -> str:
    """Return a text as it is, and nothing of a value that is no text: an agent decides how long that would be."""
    if isinstance(value, str):
        return value
    return ""


def held_notice(session_id: str, message_id: str, prompt: str) -> Notice:
    """Return the notice of a prompt that may or may not have reached the agent."""
    return Notice(
        AttentionKind.HELD,
        held_key(session_id, message_id),
        HEADLINES[Code.HELD],
        text("Kandev cannot tell what became of the prompt, and sends nothing twice. The prompt: ", quote(prompt)),
        "Open the session and send the prompt again, or dismiss it.",
    )


def held_key(session_id: Any, message_id: str) -> str:
    """Return the key of a prompt in doubt. It names the session because message ids are unique only in one session."""
    return f"held:{session_id}:{message_id}"


def cut_short_notice(session_id: Any, message_id: str, prompt: str) -> Notice:
    """Return the notice of an interrupted turn that waits for a decision."""
    return Notice(
        AttentionKind.CUT_SHORT,
        cut_short_key(session_id, message_id),
        HEADLINES[Code.INTERRUPTED],
        text("Its work may be incomplete, and nothing is sent twice automatically. The prompt: ", quote(prompt)),
        "Open the session: let the agent continue, send the prompt again, or dismiss it.",
    )


def cut_short_key(session_id: Any, message_id: str) -> str:
    """Return the key of an interrupted prompt."""
    return f"cut_short:{session_id}:{message_id}"


_OVERDUE_REASONS: Final[Mapping[str, str]] = {
    "disk_full": "The disk that stores the agent’s journal is full, so the agent takes no prompts.",
    "disk_failing": "The disk that stores the agent’s journal cannot be written, so the agent takes no prompts.",
    "queued_for_capacity": "There is no room for another agent yet.",
    "refused_by_host": "The host that would start the agent takes no new sessions.",
    "placement_wait": "No host can start the agent; its page says why.",
    "starting": "The agent is still starting.",
    "unreachable": "The agent’s machine does not answer.",
}
_OVERDUE_ACTIONS: Final[Mapping[str, str]] = {
    "disk_full": "Free some space on that disk: the prompt is then sent. Or open the session and withdraw the prompt.",
    "disk_failing": "Repair that disk: the prompt is then sent. Or open the session and withdraw the prompt.",
}


def overdue_notice(session_id: str, message_id: str, reason: str) -> Notice:
    """Return the notice of a prompt that no agent has taken in time."""
    other_reason = f"The agent program could not be started: {reason.replace('_', ' ')}"
    other_action = "Open the session: fix what keeps the agent from starting, or withdraw the prompt."
    return Notice(
        AttentionKind.OVERDUE,
        f"overdue:{session_id}:{message_id}",
        HEADLINES[Code.OVERDUE],
        _OVERDUE_REASONS.get(reason, other_reason),
        _OVERDUE_ACTIONS.get(reason, other_action),
    )


def wait_interrupted_notice(run_id: str, reason: str) -> Notice:
    """Return the notice of a wait for an external result that ended without an answer."""
    return Notice(
        AttentionKind.WAIT_INTERRUPTED,
        f"wait_interrupted:{run_id}",
        HEADLINES[Code.WAIT_INTERRUPTED],
        text("Nobody answered in time. It waited for: ", quote(reason) or "an external result"),
        "Open the session: choose “Wait again”, or “Continue” without it. The agent is informed with its next prompt.",
    )


def stalled_notice(run_id: str, since: str) -> Notice:
    """Return the notice of a turn without output."""
    return Notice(
        AttentionKind.STALLED,
        f"stalled:{run_id}",
        HEADLINES[Code.STALLED],
        f"There has been no output in its turn since {since}.",
        "Open the session: wait for it, or cancel the turn.",
    )


def cancel_ignored_notice(run_id: str, since: str) -> Notice:
    """Return the notice of a turn that continues after its cancellation was requested."""
    return Notice(
        AttentionKind.CANCEL_IGNORED,
        f"cancel_ignored:{run_id}",
        HEADLINES[Code.CANCEL_IGNORED],
        f"The request was made at {since}, and the turn has not ended.",
        "Open the session: wait until the turn ends, or stop the agent. Its conversation and files are kept.",
    )


def output_limit_notice(session_id: str, limit: str, seq: int) -> Notice:
    """Return the notice of an agent whose output is left out of the log; ``limit`` is the setting."""
    return Notice(
        AttentionKind.OUTPUT_LIMIT,
        f"output_limit:{session_id}:{seq}",
        "The agent’s output is no longer stored",
        f"It has reached the limit {limit}. Requests of the agent and the end of its turn still arrive.",
        "Open the session: choose “Store more output”, cancel the turn, or stop the agent.",
    )


def receipt_notice(receipt_id: str) -> Notice:
    """Return the notice of a start that lost the conversation."""
    return Notice(
        AttentionKind.RECEIPT,
        f"receipt:{receipt_id}",
        "The agent started fresh and does not know the earlier conversation",
        "Its conversation could not be restored; the receipt has the evidence.",
        "Open the session: read the receipt, and tell the agent what it needs to know.",
    )


def unproven_notice(receipt_id: str, found: str = "") -> Notice:
    """Return the notice of a start whose success is unproven; ``found``: the result of a memory check."""
    return Notice(
        AttentionKind.UNPROVEN,
        f"unproven:{receipt_id}",
        "It is not proven that the agent remembers this conversation",
        found or "It reports success, but replayed none of the conversation. It may have all of it, or nothing.",
        "Before you rely on its memory, ask it what your last request was.",
    )


def owner_left_notice(session_id: str, owner: str) -> Notice:
    """Return the notice of a session whose owner has left the team."""
    return Notice(
        AttentionKind.OWNER_LEFT,
        f"owner_left:{session_id}",
        HEADLINES[Code.OWNER_LEFT],
        f"{owner or 'Its owner'} is no longer a full member of the team, so the session does not start automatically.",
        "Add the owner to the team again, or let a member resume the session.",
    )


def run_key(run_id: str) -> str:
    """Return the prefix of the keys of a failed workflow run; each further failure adds its own suffix."""
    return f"workflow_run:{run_id}:"


def run_failed_notice(run_id: str, name: str, error: str, round_: int) -> Notice:
    """Return the notice of a failed workflow run."""
    return Notice(
        AttentionKind.WORKFLOW,
        f"{run_key(run_id)}{round_}",
        text("The workflow “", quote(name), "” has failed"),
        text(quote(error) or "No error message."),
        "Open the run: fix the cause and resume it from the failed step, or start a new run.",
        _evidence(error, ""),
    )


def node_waits_notice(run_id: str, path: str, name: str, attempt: int) -> Notice:
    """Return the notice of a workflow node whose interrupted prompt waits for a decision."""
    return Notice(
        AttentionKind.WORKFLOW,
        f"workflow_node:{run_id}:{attempt}:{sha256(path.encode()).hexdigest()[:16]}",
        text("The workflow “", quote(name), "” needs a decision"),
        text("The agent of its step ", quote(path), " was interrupted, and nothing is sent twice automatically."),
        "Open the session: continue, send the prompt again, or dismiss it. Dismissing it fails the step.",
    )


def triggers_paused_notice(workflow_id: str, name: str, why: str, who: str) -> Notice:
    """Return the notice of a workflow whose triggers start nothing until someone confirms it.

    ``who`` names whose rights suffice.
    """
    return Notice(
        AttentionKind.WORKFLOW,
        f"workflow_triggers:{workflow_id}",
        text("The scheduled runs of “", quote(name), "” are paused"),
        text(quote(why)),
        f"Open the workflow, read what has changed, and confirm it or switch its triggers off. {who}",
    )


def idle_notice(run_id: str, state: str) -> Notice:
    """Return the notice of an agent that finished its work and is idle."""
    words = {
        "completed": "The agent has finished its turn",
        "failed": "The agent’s turn has failed",
        "cancelled": "The agent has cancelled its turn",
    }
    return Notice(
        AttentionKind.IDLE,
        f"idle:{run_id}",
        words.get(state, "The agent was interrupted and is idle"),
        "The agent was working and is idle now; nothing else is queued.",
        "Open the session: review the work, then send another prompt or close it.",
    )


def cut_off_notice(run_id: str, why: str, *, has_worked: bool) -> Notice:
    """Return the notice of a turn that a suspension followed, which is over; nothing continues the turn.

    ``why`` is a sentence: what had ended it.
    """
    step = "Open the session: send the prompt again, or send another one."
    if has_worked:
        step = "Open the session: continue the turn, or send another prompt."
    return Notice(
        AttentionKind.IDLE,
        f"idle:{run_id}",
        "The session is no longer suspended, and its turn is not continued",
        f"{why} Nothing else is queued.",
        step,
    )


def suspended_notice(suspension_id: str, until: str, zone: str, message: str) -> Notice:
    """Return the notice of a session whose agent has reached a usage limit.

    ``until`` is when the limit ends, in words; empty: the agent does not say so.
    """
    ends = f"The limit ends {until}" if until else "The agent does not say when the limit ends"
    assumed = "" if zone or not until else ", if the agent means the time of this server"
    step = "Wait: prompts in the queue are sent then. Or open the session and let it go on now."
    if not until:
        step = "Send a prompt when the limit has ended, or let the session go on now."
    return Notice(
        AttentionKind.SUSPENDED,
        suspended_key(suspension_id),
        HEADLINES[Code.SUSPENDED],
        text(f"{ends}{assumed}. The agent says: ", quote(message)),
        step,
    )


def outage_notice(suspension_id: str, headline: str, tries_at: str, message: str) -> Notice:
    """Return the notice of a session whose provider has failed for longer than its turn was retried.

    ``tries_at`` is when the turn is tried again, in words; empty: never by itself.
    """
    why = "The turn is not tried again automatically"
    step = "Open the session and let it go on when the provider works again, or send another prompt."
    if tries_at:
        why = f"Unless it is cancelled, the turn is tried again {tries_at}"
        step = "Wait: prompts in the queue are sent after it. Or open the session and let it go on now."
    return Notice(
        AttentionKind.SUSPENDED,
        suspended_key(suspension_id),
        headline,
        text(f"{why}. The agent says: ", quote(message)),
        step,
    )


def credit_notice(suspension_id: str, headline: str, message: str) -> Notice:
    """Return the notice of a session whose agent's account has to be paid."""
    return Notice(
        AttentionKind.SUSPENDED,
        suspended_key(suspension_id),
        headline,
        text("Add credit to the account: waiting does not help. The agent says: ", quote(message)),
        "Add credit at the provider, then open the session and let it go on, or send another prompt.",
    )


def suspended_key(suspension_id: str) -> str:
    """Return the key of a suspension's item."""
    return f"suspended:{suspension_id}"


def budget_notice(hold_id: str, scope: str, limit: str, used: str) -> Notice:
    """Return the notice of a prompt for which nothing is left of a budget."""
    step = f"{hold_end_sentence(scope, HoldReason.USED_UP)} You can also withdraw the prompt."
    sentence = hold_sentence(scope, HoldReason.USED_UP, limit, used)
    return Notice(AttentionKind.BUDGET, budget_key(hold_id), HEADLINES[Code.BUDGET], sentence, step)


def budget_key(hold_id: str) -> str:
    """Return the key of the item about a budget."""
    return f"budget:{hold_id}"


def finish_notice(session_id: str, attempt: FailedFinish) -> Notice:
    """Return the notice of a merge or push that was not carried out, or of which nobody knows whether it was."""
    noun = "push" if attempt.is_push else "merge"
    direction = "to" if attempt.is_push else "into"
    target = quote(attempt.branch)
    if attempt.is_unknown:
        what = text(f"It is not known whether the {noun} {direction} ", target, " has happened")
        step = (
            f"Look where the branch is now. If it has the commit, dismiss this item; otherwise open the session’s page "
            f"for the {noun} and request it again."
        )
    else:
        what = text(f"The {noun} {direction} ", target, " was not carried out")
        step = f"Open the session’s page for the {noun}, fix what it says, and request it again."
    if attempt.has_conflicts:
        step = "Open the session’s page for the merge, ask the agent to resolve the conflicts, and merge again."
    return Notice(
        AttentionKind.FINISH,
        finish_key(session_id, attempt.target, is_push=attempt.is_push),
        what,
        text(quote(attempt.message) or "No error message."),
        step,
    )


PUSH_KEY: Final = f"{AttentionKind.FINISH}:push:"
"""The beginning of the keys of pushes."""
_MERGE_KEY: Final = f"{AttentionKind.FINISH}:merge:"


def finish_key(session_id: str, target: str, *, is_push: bool) -> str:
    """Return the key of the merges or pushes of a session to one target, of which the newest attempt counts."""
    begin = PUSH_KEY if is_push else _MERGE_KEY
    return f"{begin}{session_id}:{sha256(target.encode()).hexdigest()[:16]}"


def worker_missing_notice(since: str) -> Notice:
    """Return the notice of a deployment whose workers have all fallen silent. ``since``: the last report, as text."""
    return Notice(
        AttentionKind.SYSTEM,
        "system:worker",
        "No worker is running",
        "Schedules, workflows that are due, e-mail, webhooks and maintenance stand still until one runs again.",
        "Start manage.py qcluster. Each schedule then runs once; what was missed in between is not repeated.",
        f"The last worker reported at {since}.",
    )


def host_unattended_notice(host: str, agents: int, since: str) -> Notice:
    """Return the notice of a host with agents that only a supervisor there reaches, and without one."""
    evidence = plural(agents, "1 agent runs there.", "{} agents run there.")
    if since:
        evidence += f" The last supervisor there reported at {since}."
    return Notice(
        AttentionKind.SYSTEM,
        f"system:unattended:{host}",
        f"No supervisor is running on {host}",
        "The agents of that host keep working, but nobody reads what they write or sends them prompts.",
        f"Start manage.py supervise on {host}. If the host is gone for ever, declare it lost on the page System.",
        evidence,
    )


DISK_LOW_KEY: Final = "system:disk:"
"""What the keys of nearly full disks begin with; the name of the host follows."""


def disk_low_notice(host: str, free: str, limit: str) -> Notice:
    """Return the notice of a host whose data directory has little room left; both sizes as texts."""
    return Notice(
        AttentionKind.SYSTEM,
        f"{DISK_LOW_KEY}{host}",
        f"The disk of {host} is nearly full",
        "When it is full, agents wait, because nothing that they write could be kept.",
        "Free space on the disk of the data directory. The page System shows what Kandev’s own data takes.",
        f"{free} were left when the host last reported. Less than {limit} is too little.",
    )


def secret_key_notice(processes: Sequence[str] = ()) -> Notice:
    """Return the notice of processes whose secret key is not that of their database. ``processes``: some of them."""
    evidence = ""
    if processes:
        evidence = f"Processes with another key: {', '.join(processes)}."
    return Notice(
        AttentionKind.SYSTEM,
        "system:secret_key",
        "The secret key is not the one of this database",
        "Stored tokens and the secrets of profiles cannot be read, and no supervisor or worker starts.",
        "Start Kandev with the earlier key, or add it as a fallback. If it is lost, see manage.py secret_key.",
        evidence,
    )


def backup_old_notice(taken_at: str, place: str, limit: str) -> Notice:
    """Return the notice of a newest backup that is too old. ``limit``: how old one may be, as text."""
    return Notice(
        AttentionKind.SYSTEM,
        "system:backup",
        "The newest backup is too old",
        "What has happened since could not be restored.",
        "Run deploy/back-up and check its timer. If backups are taken in another way, record each with "
        "manage.py record_backup.",
        f"It was begun at {taken_at} ({place}), and should be at most {limit} old.",
    )


def host_backup_old_notice(host: str, taken_at: str, place: str, limit: str) -> Notice:
    """Return the notice of a host whose own newest backup is too old, whatever others have taken since."""
    return Notice(
        AttentionKind.SYSTEM,
        f"system:backup:{host}",
        f"The newest backup of {host} is too old",
        "What is only on this host, as the portable record of its sessions, could not be restored as it is now.",
        f"Run deploy/back-up on {host} and check its timer. If its backups are taken in another way, record each there "
        "with manage.py record_backup.",
        f"It was begun at {taken_at} ({place}), and should be at most {limit} old.",
    )


def _evidence(error: str, log_tail: str) -> Text:
    """Return an error and the end of a log, of which ``tail`` has removed the secrets already."""
    quoted = quote_lines(error, ERROR_CHARS)
    log_tail = log_tail[-(DETAIL_LIMIT - ERROR_CHARS) :]
    if not quoted:
        return text(log_tail)
    if log_tail:
        return text(quoted, "\n\n", log_tail)
    return text(quoted)


def tail(log: str) -> str:
    """Return the end of a log, without secrets, and with invisible characters made visible. Never in a transaction."""
    return quote_lines(log, DETAIL_LIMIT).show()
