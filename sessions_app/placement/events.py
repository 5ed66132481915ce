"""The events of placement."""

from __future__ import annotations

from pydantic import Field

from sessions_app.kernel.events.base import Event, with_reason
from sessions_app.sessions.rules.situation_facts import Label


class Placed(Event, name="session.placed", recorded_by="the first start of a session of a pool", audited=True):
    """A pool has chosen the session's executor."""

    pool: str
    executor_id: str
    executor: str = Field(description="its name")
    reason: str = Field(description="a sentence for people")

    def timeline_label(self) -> Label:
        """Return the reason."""
        return Label(with_reason("Executor chosen", self.reason), "calm")
