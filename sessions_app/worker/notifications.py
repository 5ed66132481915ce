"""Send notifications once a minute, and tests at once."""

from __future__ import annotations

import uuid

from sessions_app.notifications import delivery


def notify() -> dict[str, int]:
    """Run one round; return the numbers of planned, sent and deleted deliveries."""
    return delivery.run_notifications()


def give(delivery_id: uuid.UUID) -> dict[str, int]:
    """Send a test by a round that begins now, unless one is under way, which will send it."""
    return delivery.run_notifications()
