"""Telling people outside the pages, once a minute; and one delivery at once, where somebody waits for it."""

from __future__ import annotations

import uuid

from sessions_app.notifications import delivery


def notify() -> dict[str, int]:
    """One round; how many were planned, given and forgotten."""
    return delivery.run_notifications()


def give(delivery_id: uuid.UUID) -> bool:
    """One delivery; False where somebody else has given it."""
    return delivery.send_delivery(delivery_id)
