"""Background processes of a session: what a user decides about them."""

from __future__ import annotations

from pydantic import Field

from sessions_app.background.rules.background_work import BackgroundPolicy
from sessions_app.kernel.events.base import Event


class BackgroundPolicyChanged(
    Event,
    name="session.background_policy",
    recorded_by="a user who sets or clears the session's own policy for background processes",
):
    """Another policy for background processes applies."""

    policy: str = Field(description=", ".join(f"`{policy}`" for policy in BackgroundPolicy))
    is_own: bool = Field(
        description="whether it is the session's own; false: that of its agent profile or of the deployment"
    )
