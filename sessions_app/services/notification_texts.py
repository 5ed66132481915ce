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
        subject = f"{items[0].what}: {items[0].title}"
    else:
        words = "tasks" if all(item.task_id for item in items) else "tasks and workflows"
        subject = f"{len(items)} things need you in {len({item.about.pk for item in items})} {words}"
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
        f"{_named(item)} (team {item.about.team.name})",
        f"Why: {item.why}",
        f"Next: {item.next_step}",
    ]
    where = link(item.path)
    return "\n".join([*lines, where] if where else lines)


def _named(item: AttentionItem) -> str:
    return f"{'Task' if item.workflow is None else 'Workflow'}: {_one_line(item.title)}"


def webhook_of(item: AttentionItem, delivery_id: str) -> dict[str, Any]:
    """What a webhook is told of one item; of a workflow's ``session_id`` and ``task`` are null."""
    task, workflow = item.task, item.workflow
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
            "url": link(item.path) or item.path,
        },
        "session_id": str(item.session_id) if item.session_id else None,
        "task": {"id": str(task.id), "title": task.title} if task else None,
        "workflow": {"id": str(workflow.id), "name": workflow.name} if workflow else None,
        "team": item.about.team.name,
    }


def test_webhook(webhook: Webhook, delivery_id: str) -> dict[str, Any]:
    """What *send a test* tells."""
    return {"type": "ping", "delivery_id": delivery_id, "webhook_id": str(webhook.id)}


def link(path: str) -> str:
    """A path as somebody outside can follow it; empty where nobody said where the pages are."""
    base = settings.KANDEV_SITE_URL or next(iter(settings.CSRF_TRUSTED_ORIGINS), "")
    return f"{base.rstrip('/')}{path}" if base else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
