"""What writing a journal line costs, in bytes, so that one session's flood delays only itself.

A transaction is divided between the sessions that want to write. A line counts for its own bytes, ``LINE_COST``, and
``STATEMENTS_COST`` if it writes rows of its own. What it adds to the log shows only once it is applied: an update of a
tool call writes all of the call (``written_sizes``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import RunState
from sessions_app.permissions.open_requests import OpenRequest, complete_tool_call
from sessions_app.stream.conversation import TEXT_KINDS, TOOL_KINDS, JournalLine, JournalUpdate, tool_values
from sessions_app.stream.rules.tool_calls import key_of_tool

LINE_COST: Final = 512
"""Bytes that a line without content counts for: 2000 short lines take as long to write as 1 MiB of a tool's output."""
STATEMENTS_COST: Final = 64 << 10
"""Bytes that a line of ``STATEMENT_KINDS`` counts for besides: it takes 1 to 4 ms, however short it is. So does a line
that is searched for in the stored conversation, because it may be replayed."""
STATEMENT_KINDS: Final = TURN_ENDS | {
    JournalKind.PROMPT_ACCEPTED.value,
    JournalKind.PROMPT_DELIVERED.value,
    JournalKind.PERMISSION_REQUESTED.value,
    JournalKind.PERMISSION_RESOLVED.value,
    JournalKind.PERMISSION_CANCELLED.value,
    JournalKind.AGENT_EXITED.value,
}
"""Lines with statements of their own; those of all others are shared by the lines of a batch."""
TRANSACTION_BUDGET: Final = 1 << 20
"""Bytes of one transaction, give or take a line: they are written in 10 to 15 ms."""


def line_cost(line: Mapping[str, Any]) -> int:
    """Return the bytes that a journal line counts for."""
    return line_bytes(line) + statements_cost(line)


def statements_cost(line: Mapping[str, Any]) -> int:
    """Return the bytes that the statements of a journal line count for, apart from its content."""
    has_statements = line.get("kind") in STATEMENT_KINDS or bool(line.get("may_be_replayed"))
    if has_statements:
        return STATEMENTS_COST
    return 0


def line_bytes(line: Mapping[str, Any]) -> int:
    """Return the bytes that a journal line has and writes, at least ``LINE_COST``."""
    if line.get("kind") in TEXT_KINDS:
        text = line.get("text")
        if isinstance(text, str):
            return LINE_COST + len(text)
    return LINE_COST + json_size(line)


def written_sizes(budget: int, lines: Sequence[JournalLine], update: JournalUpdate) -> list[int]:
    """Return the bytes that each of the first lines writes, of as many as fit into ``budget``, but at least one."""
    known: dict[str, Mapping[str, Any]] = {}
    sizes: list[int] = []
    for line in lines:
        size = _written_bytes(line, known, update)
        budget -= size + statements_cost(line)
        if budget < 0 and sizes:
            break
        sizes.append(size)
    return sizes


def _written_bytes(line: JournalLine, known: dict[str, Mapping[str, Any]], update: JournalUpdate) -> int:
    """Return the bytes that a line writes; ``known`` has the tool calls as the lines before it leave them."""
    kind = line.get("kind")
    if kind == JournalKind.PERMISSION_REQUESTED:
        return _requested_bytes(line, known, update)
    if kind not in TOOL_KINDS:
        return line_bytes(line)
    key = key_of_tool(line)
    before = known.get(key) or update.conversation.known_tool_fields(key)
    known[key] = {**before, **tool_values(line)}
    size = LINE_COST + json_size(known[key])
    return size + sum(max(size, request.size) for request in _requests_about(key, update))


def _requested_bytes(line: JournalLine, known: Mapping[str, Mapping[str, Any]], update: JournalUpdate) -> int:
    """Return the bytes of a permission request with what the log adds to its tool call."""
    requested = line.get("tool_call")
    if not isinstance(requested, dict):
        return line_bytes(line)
    key = key_of_tool(requested)
    before = known.get(key) or update.conversation.known_tool_fields(key)
    return LINE_COST + json_size({**line, "tool_call": complete_tool_call(requested, before)})


def _requests_about(key: str, update: JournalUpdate) -> Collection[OpenRequest]:
    """Return the open requests that show a tool call: each of them may be written with an update of the call."""
    turn = update.transaction.open_turn
    if turn is not None and turn.state == RunState.WAITING:
        return update.open_requests.of_tool(key)
    return ()
