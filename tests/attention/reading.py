"""Attention items as people read them: with their quotations."""

from __future__ import annotations

from sessions_app.attention.services.wording import word_items
from sessions_app.models import AttentionItem


def as_read(item: AttentionItem) -> AttentionItem:
    """Return an item as it is now, with its quotations in its texts."""
    found = AttentionItem.objects.select_related("task__team", "workflow__team").get(pk=item.pk)
    word_items([found])
    return found
