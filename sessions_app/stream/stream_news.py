"""What a stream reports to its supervisor after a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.recovery.rules import verification
from sessions_app.stream.conversation import OUTPUT_KINDS
from sessions_app.stream.ingest.batches import IngestResult


class News(Enum):
    """What journal lines that are now in the log mean for somebody outside their session's log."""

    WORK_DUE = auto()
    """There was more than output, so intents and prompts of the session may have become due."""
    SNAPSHOT_TAKEN = auto()
    """The workspace has a new snapshot, which an archive may want."""
    TURN_ENDED = auto()
    """A turn has ended in whatever way: whoever waits for it can continue."""
    TURN_COMPLETED = auto()
    """A turn of a prompt has ended well: the agent works."""
    AGENT_GONE = auto()
    """The agent has ended although nobody stopped it."""


def news_of(lines: Sequence[Mapping[str, Any]], result: IngestResult) -> list[News]:
    """Return what journal lines that were just committed mean for others; nothing if they are only output."""
    kinds = {line["kind"] for line in lines}
    if kinds <= OUTPUT_KINDS:
        return []
    news = [News.WORK_DUE]
    if JournalKind.WORKSPACE_SNAPSHOT in kinds:
        news.append(News.SNAPSHOT_TAKEN)
    if not TURN_ENDS.isdisjoint(kinds):
        news.append(News.TURN_ENDED)
    if any(_completes_turn(line) for line in lines):
        news.append(News.TURN_COMPLETED)
    if result.agent_gone:
        news.append(News.AGENT_GONE)
    return news


def _completes_turn(line: Mapping[str, Any]) -> bool:
    """Whether it ends a turn well, and not just a memory check, which proves less (``turns/journal.py``)."""
    is_check = str(line.get("message_id")).startswith(verification.MEMORY_CHECK_PREFIX)
    return line["kind"] == JournalKind.TURN_COMPLETED and not is_check
