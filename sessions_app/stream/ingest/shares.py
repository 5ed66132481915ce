"""Divide a transaction between the sessions that want to write, so that one session's flood delays only itself.

Everything is counted in bytes: those of a line, ``LINE_COST`` for each, and ``STATEMENTS_COST`` for one that
writes rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.stream.conversation import TEXT_KINDS

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
MINIMUM_SHARE: Final = 16 << 10
"""Bytes that a session may write in a transaction in any case: with less, its fixed cost would be the greater part."""


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


def fair_shares(costs: Sequence[int], budget: int = TRANSACTION_BUDGET) -> list[int]:
    """Divide the budget by max-min fairness: whoever wants less than an equal share leaves the rest to the others."""
    shares, left = [0] * len(costs), budget
    by_cost = sorted(range(len(costs)), key=costs.__getitem__)
    for served, number in enumerate(by_cost):
        shares[number] = min(costs[number], left // (len(costs) - served))
        left -= shares[number]
    return shares
