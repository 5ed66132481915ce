"""What is told outside the pages: what happened, why, what to do next, and where. No secrets, little of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings

from sessions_app.models import AttentionItem, Webhook

FOOTER = "You get this because you asked for it: {link}"
NO_LINK = "this deployment’s pages"


def email_of(items: Sequence[AttentionItem]) -> dict[str, str]:
    """Subject and text of one e-mail about all of these."""
    if len(items) == 1:
        subject = f"{items[0].what}: {items[0].task.title}"
    else:
        subject = f"{len(items)} things need you in {len({item.task_id for item in items})} tasks"
    parts = [_paragraph(item) for item in items]
    parts.append(FOOTER.format(link=link("/settings/notifications/") or NO_LINK))
    return {"subject": _one_line(f"[Kandev] {subject}"), "text": "\n\n".join(parts) + "\n"}


def test_email() -> dict[str, str]:
    """What *send a test* sends."""
    text = f"E-mail from Kandev reaches you. When an agent needs you, you are told here.\n\n{FOOTER}\n"
    where = link("/settings/notifications/") or NO_LINK
    return {"subject": "[Kandev] A test", "text": text.format(link=where)}


def _paragraph(item: AttentionItem) -> str:
    lines = [
        item.what,
        f"Task: {_one_line(item.task.title)} (team {item.task.team.name})",
        f"Why: {item.why}",
        f"Next: {item.next_step}",
    ]
    where = link(page_of(item))
    return "\n".join([*lines, where] if where else lines)


def webhook_of(item: AttentionItem, delivery_id: str) -> dict[str, Any]:
    """What a webhook is told of one item."""
    return {
        "type": "attention.raised",
        "delivery_id": delivery_id,
        "item": {
            "id": str(item.id),
            "key": item.key,
            "kind": item.kind,
            "what": item.what,
            "why": item.why,
            "next_step": item.next_step,
            "created_at": item.created_at.isoformat(),
            "url": link(page_of(item)) or page_of(item),
        },
        "session_id": str(item.session_id),
        "task": {"id": str(item.task_id), "title": item.task.title},
        "team": item.task.team.name,
    }


def test_webhook(webhook: Webhook, delivery_id: str) -> dict[str, Any]:
    """What *send a test* tells."""
    return {"type": "ping", "delivery_id": delivery_id, "webhook_id": str(webhook.id)}


def page_of(item: AttentionItem) -> str:
    """The path of the page where it is settled."""
    return f"/tasks/{item.task_id}/sessions/{item.session_id}/"


def link(path: str) -> str:
    """A path as somebody outside can follow it; empty where nobody said where the pages are."""
    base = settings.KANDEV_SITE_URL or next(iter(settings.CSRF_TRUSTED_ORIGINS), "")
    return f"{base.rstrip('/')}{path}" if base else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
