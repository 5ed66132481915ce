"""Decide which output outside a turn begins a turn of the agent's own, and how long that turn holds back prompts.

Agents work without a prompt: a command in the background ends, a sub-agent reports, a hook or a timer wakes them. They
also send the end of an answer after the end of its turn. The table in the tests of this module has an example of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from executors_app.wire.protocol import JournalKind

WORK_KINDS: Final = frozenset(
    {
        JournalKind.MESSAGE_AGENT,
        JournalKind.MESSAGE_THOUGHT,
        JournalKind.MESSAGE_SUB_AGENT,
        JournalKind.TOOL_CALL,
        JournalKind.TOOL_UPDATE,
        JournalKind.PERMISSION_REQUESTED,
    }
)
"""Lines that show that the agent works. Usage, settings, plans and processes are also reported at rest."""
LATE: Final = timedelta(seconds=2)
"""How long after the end of a turn any output still belongs to it."""
LATE_TEXT: Final = timedelta(seconds=10)
"""How long after the end of a turn more of a text belongs to it that has begun within ``LATE``."""
QUIET_IN_TOOL: Final = timedelta(minutes=30)
"""Silence after which a tool call without a result no longer counts as work, unless the limit of the hold is longer."""


@dataclass(frozen=True, slots=True)
class OutsideLine:
    """A journal line that arrived while no turn was open, and what it has to do with the turn before it."""

    kind: str
    since_end: timedelta
    """Time since that turn ended, by the clock of the journal; negative if the clock was set back."""
    continues_text: bool = False
    """It is more of a text that has begun since the end of that turn."""
    reports_earlier_call: bool = False
    """It changes a tool call of an earlier turn, or is its result."""
    is_replayed: bool = False
    """It repeats what the conversation already has, as an agent may after a restart."""


def begins_turn(line: OutsideLine) -> bool:
    """Return whether a line begins a turn of the agent's own; otherwise it belongs to the turn before it."""
    if line.kind not in WORK_KINDS:
        return False
    if line.kind == JournalKind.PERMISSION_REQUESTED:
        return True  # whoever waits for an answer works
    if line.is_replayed or line.reports_earlier_call:
        return False
    if line.since_end < -LATE:
        return True  # that it is late is not proven by a clock that was set back
    if line.since_end < LATE:
        return False
    return not (line.continues_text and line.since_end < LATE_TEXT)


def quiet_limit(*, has_open_tool: bool, announces_end: bool, quiet: timedelta, hold_limit: timedelta) -> timedelta:
    """Return the silence after which a turn that the agent began counts as ended.

    Args:
        has_open_tool: A tool call has no result: a command may run for long without output.
        announces_end: This agent process has announced the end of such a turn before, so it will again.
        quiet: ``KANDEV_AGENT_TURN_QUIET``.
        hold_limit: ``KANDEV_AGENT_TURN_LIMIT``.
    """
    if has_open_tool or announces_end:
        return max(quiet, hold_limit or QUIET_IN_TOOL)
    return quiet


MAX_REFUSALS: Final = 20
"""How often a prompt is given again to an agent that refuses it because it is busy: for more than an hour."""


def refusal_delay(refusals: int) -> timedelta:
    """Return the delay before a prompt is given again that was refused this often before: 10 s to 5 min."""
    return timedelta(seconds=min(10 << min(refusals, 10), 300))


def holds_prompts(*, since_begin: timedelta, is_waiting: bool, hold_limit: timedelta) -> bool:
    """Return whether a turn that the agent began still holds back prompts; a limit of 0 holds nothing back.

    While the agent waits for an answer, it takes no prompt: a new message of a user cancels the question first.
    """
    return is_waiting or since_begin < hold_limit
