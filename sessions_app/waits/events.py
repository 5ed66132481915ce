"""The keys of waits. A key lets its holder answer a permission, or end an external wait, once.

No event carries the key itself.
"""

from __future__ import annotations

from pydantic import Field

from sessions_app.kernel.events.base import Event


class WaitKeyEvent(Event):
    """Something happened to a key."""

    token_id: str
    run_id: str | None
    wait_kind: str
    wait_id: str

    def may_change_status(self) -> bool:
        """Return True: a run that nobody can answer any more no longer waits."""
        return True


class WaitKeyMinted(WaitKeyEvent, name="session.token.minted", recorded_by="whatever makes the run wait"):
    """A key was made."""

    expires_at: str | None


class WaitKeyConsumed(WaitKeyEvent, name="session.token.consumed", recorded_by="an answer, or the end of a wait"):
    """A key was used."""

    by: str | None = Field(description="a user, or null if only the key was used")


class WaitKeyRevoked(WaitKeyEvent, name="session.token.revoked", recorded_by="whatever ends the wait in another way"):
    """A key can no longer be used."""

    reason: str = Field(
        description="`rotated` (replaced by another key), `tool_call_changed` (too, because the agent has changed what "
        "it asks for), `new_message`, `agent_gone`, `stopped` and others"
    )


class WaitKeyExpired(
    WaitKeyEvent, name="session.token.expired", recorded_by="the supervisor, at the deadline", audited=True
):
    """A key was not used in time."""
