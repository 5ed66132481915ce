"""The kinds of journal lines, each with what it changes: the handlers are in the folders of their topics.

To add a kind, declare it in ``JournalKind``, write its handler in the module of its topic, and name it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.agents import journal as agents
from sessions_app.background import journal as background
from sessions_app.models import MessageDraft, SessionTransaction
from sessions_app.permissions import journal as permissions
from sessions_app.prompts import journal as prompts
from sessions_app.recovery.rules import verification
from sessions_app.starts import journal as starts
from sessions_app.stream import conversation
from sessions_app.stream.conversation import OUTPUT_ONLY_KINDS, TEXT_KINDS, TOOL_KINDS, JournalLine, JournalUpdate
from sessions_app.stream.events.journal import JournalSkipped
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.stream.stream_news import News
from sessions_app.turns import agent_turns
from sessions_app.turns import journal as turns
from sessions_app.workspace import journal as workspace

UNSTORABLE: Final = "unwritable"
"""Kind of the line that replaces one that cannot be written; ``was`` holds the original kind."""


def record_unstorable(update: JournalUpdate, line: JournalLine) -> None:
    """Record in the log that a line is missing there."""
    event = JournalSkipped(reason=UNSTORABLE, count=1, seq=line["seq"], kind=str(line["was"])[:64])
    update.transaction.record_event(event)


LINE_HANDLERS: Final[Mapping[str, Callable[[JournalUpdate, JournalLine], None]]] = {
    JournalKind.PROMPT_ACCEPTED: prompts.accept_prompt,
    JournalKind.PROMPT_DELIVERED: prompts.deliver_prompt,
    JournalKind.STEER_ACCEPTED: prompts.accept_steered,
    JournalKind.STEER_DELIVERED: prompts.deliver_steered,
    JournalKind.STEER_DECLINED: prompts.decline_steered,
    JournalKind.STEER_UNKNOWN: prompts.hold_steered,
    JournalKind.TURN_COMPLETED: turns.complete_turn,
    JournalKind.TURN_CANCELLED: turns.cancel_turn,
    JournalKind.TURN_FAILED: turns.fail_turn,
    JournalKind.AGENT_TURN_ENDED: agent_turns.end_announced,
    JournalKind.MESSAGE_USER: conversation.add_foreign_user_text,
    JournalKind.MESSAGE_AGENT: conversation.add_agent_text,
    JournalKind.MESSAGE_THOUGHT: conversation.add_thought,
    JournalKind.MESSAGE_SUB_AGENT: conversation.add_sub_agent_text,
    JournalKind.TOOL_CALL: conversation.change_tool_call,
    JournalKind.TOOL_UPDATE: conversation.change_tool_call,
    JournalKind.PLAN: conversation.replace_plan,
    JournalKind.USAGE: conversation.add_usage,
    JournalKind.PERMISSION_REQUESTED: permissions.open_request,
    JournalKind.PERMISSION_RESOLVED: permissions.resolve_request,
    JournalKind.PERMISSION_CANCELLED: permissions.cancel_request,
    JournalKind.AGENT_SETTINGS: agents.report_settings,
    JournalKind.AGENT_COMMANDS: agents.report_commands,
    JournalKind.AGENT_TITLE: agents.report_title,
    JournalKind.AGENT_PROCESSES: background.report_processes,
    JournalKind.SETTING_APPLIED: agents.settle_setting,
    JournalKind.SETTING_REFUSED: agents.settle_setting,
    JournalKind.MCP_SERVERS_LEFT_OUT: agents.report_left_out_servers,
    JournalKind.AGENT_EXITED: starts.end_agent,
    JournalKind.AGENTCTL_ABANDONED: starts.abandon,
    JournalKind.WORKSPACE_SNAPSHOT: workspace.record_snapshot,
    JournalKind.LOG: workspace.record_warning,
    UNSTORABLE: record_unstorable,
}
UNHANDLED_KINDS: Final = frozenset(
    {
        JournalKind.AGENT_STARTING,
        JournalKind.AGENT_STARTED,
        JournalKind.AGENT_FAILED,
        JournalKind.SESSION_CREATED,
        JournalKind.SESSION_RESUMED,
        JournalKind.SESSION_LOADED,
        JournalKind.SESSION_IDENTIFIED,
    }
)
"""Kinds that change nothing here: what they say is written from the answers of agentctl's API."""
FIELD_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "text": str,
    "message_id": (str, type(None)),
    "tool_call_id": str,
    "sub_agent": str,
    "parent_tool_call_id": str,
    "permission_id": str,
    "options": list,
    "attachments": list,
    "tool_call": dict,
    "question": dict,
    "usage": dict,
}


class LineApplier(JournalUpdate):
    """Applies a batch of journal lines, in order, to the transaction of one session."""

    def __init__(
        self,
        transaction: SessionTransaction,
        lines: Sequence[JournalLine] = (),
        unfinished: Sequence[MessageDraft] | None = None,
    ):
        tool_keys = {_tool_key_of_request(line) for line in lines}
        super().__init__(transaction, tool_keys - {""}, unfinished)

    def begin_agent_turn(self, line: JournalLine) -> bool:
        """Begin a turn of the agent's own if ``line`` is its first; return whether one has begun.

        It begins before it is decided whether the line is stored: the limit of the turn before it does not hide that
        the agent works.
        """
        if not agent_turns.may_begin(self, line):
            return False
        _validate(line)
        if line["kind"] not in TEXT_KINDS:
            self.conversation.end_chunk()
        return agent_turns.begin_if_due(self, line)

    def apply(self, line: JournalLine) -> None:
        """Apply one line; an unknown kind changes nothing. Raises TypeError or KeyError if the line is malformed."""
        kind = str(line.get("kind"))
        handler = LINE_HANDLERS.get(kind)
        if handler is None:
            return
        _validate(line)
        self.transaction.at = datetime.fromtimestamp(float(line["ts"]), UTC)
        self.transaction.clear_stall()
        if kind not in TEXT_KINDS:
            self.conversation.end_chunk()
        self.begin_agent_turn(line)
        handler(self, line)


def _validate(line: JournalLine) -> None:
    """Raise TypeError or KeyError for a malformed line, because readers of the log rely on these fields."""
    for name, expected in FIELD_TYPES.items():
        if name in line and not isinstance(line[name], expected):
            raise TypeError(f"{name} of a {line['kind']} is {type(line[name]).__name__}")
    if "options" in line and not all("option_id" in option for option in line["options"]):
        raise KeyError("option_id")


def _tool_key_of_request(line: JournalLine) -> str:
    """Return the key of the tool call that a line is about, or an empty string."""
    kind = line.get("kind")
    if kind in TOOL_KINDS:
        return key_of_tool(line)
    if kind == JournalKind.PERMISSION_REQUESTED and isinstance(line.get("tool_call"), dict):
        return key_of_tool(line["tool_call"])
    return ""


def news_of(lines: Sequence[JournalLine], *, agent_gone: bool) -> list[News]:
    """Return what journal lines that were just committed mean for others; nothing if they are only output."""
    kinds = {line["kind"] for line in lines}
    if kinds <= OUTPUT_ONLY_KINDS:
        return []
    news = [News.WORK_DUE]
    if JournalKind.WORKSPACE_SNAPSHOT in kinds:
        news.append(News.SNAPSHOT_TAKEN)
    if not (TURN_ENDS | {JournalKind.AGENT_TURN_ENDED}).isdisjoint(kinds):
        news.append(News.TURN_ENDED)
    if any(_completes_turn(line) for line in lines):
        news.append(News.TURN_COMPLETED)
    if agent_gone:
        news.append(News.AGENT_GONE)
    return news


def _completes_turn(line: JournalLine) -> bool:
    """Whether it ends a turn well, and not just a memory check, which proves less (``turns/journal.py``)."""
    is_check = str(line.get("message_id")).startswith(verification.MEMORY_CHECK_PREFIX)
    return line["kind"] == JournalKind.TURN_COMPLETED and not is_check
