"""Send notifications once a minute, and single deliveries at once."""

from __future__ import annotations

import uuid

from sessions_app.notifications import delivery


def notify() -> dict[str, int]:
    """Run one round; return the numbers of planned, sent and deleted deliveries."""
    return delivery.run_notifications()


def give(delivery_id: uuid.UUID) -> bool:
    """Send one delivery; return False if another worker has sent it."""
    return delivery.send_delivery(delivery_id)
