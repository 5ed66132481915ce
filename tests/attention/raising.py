"""Attention items as the backend raises them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from sessions_app.attention.rules.notices import AttentionKind, Notice
from sessions_app.models import AttentionItem, TaskSession, raise_item, resolve_items, session_transaction


def raise_item_of(session: TaskSession, kind: str = "error", name: str = "one", *, age: float = 60) -> AttentionItem:
    """Raise an item dated ``age`` seconds ago."""
    notice = Notice(AttentionKind(kind), f"{kind}:{name}", f"What {name}", f"Why {name}", f"Next {name}", "The log")
    with session_transaction(session.id) as transaction:
        raise_item(transaction, notice)
    return backdate(AttentionItem.objects.get(key=notice.key), age)


def backdate(item: AttentionItem, age: float) -> AttentionItem:
    """Date the item ``age`` seconds back; return it."""
    item.created_at = timezone.now() - timedelta(seconds=age)
    item.save(update_fields=["created_at"])
    return item


def resolve_items_of(session: TaskSession, **wanted: Any) -> None:
    """Resolve the session's items that match ``wanted``."""
    with session_transaction(session.id) as transaction:
        resolve_items(transaction, "settled", **wanted)
