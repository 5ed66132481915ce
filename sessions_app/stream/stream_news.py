"""What a stream reports to its supervisor after a commit."""

from __future__ import annotations

from enum import Enum, auto


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
