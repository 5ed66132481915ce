"""What a session's agent asks, as the session's page shows it."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from sessions_app.domain.tokens import TokenState
from sessions_app.models import PermissionRequest, ResumeToken, Run, TaskSession
from sessions_app.models.derived import newest_run
from sessions_app.services.permissions import name_of
from sessions_app.services.tokens import of_permissions, shown
from sessions_app.views.tool_calls import tool_call

AGENT_ENDED = "The agent ended before it got an answer, so this question is closed."
TOO_LATE = "Nobody answered in time, so the agent is told that it was cancelled."
OVERRULED = "A new message came instead of an answer, so the agent is told that it was cancelled."


def permissions_shown(session: TaskSession) -> list[dict[str, Any]]:
    """The questions that are open, and those of the newest run that closed without an answer."""
    rows = list(session.permissions.filter(state__in=("pending", "expired", "cancelled")))
    run, keys = newest_run(session), of_permissions(rows)
    told = [_permission(asked, keys.get(asked.id)) for asked in rows if asked.state == "pending" or _of(asked, run)]
    return [one for one in told if one["asked"].state != "cancelled" or one["closed"] == TOO_LATE]


def _of(asked: PermissionRequest, run: Run | None) -> bool:
    return run is not None and asked.run_id == run.id


def _permission(asked: PermissionRequest, token: ResumeToken | None) -> dict[str, Any]:
    """One question: its tool call, its key and options, or the answer that is on its way, or why it is closed."""
    state = token.state(timezone.now()) if token else None
    given = str((token.first_answer or {}).get("option_id", "")) if token and state is TokenState.CONSUMED else ""
    return {
        "asked": asked,
        "title": asked.tool_call.get("title") or "Do something",
        "kind": asked.tool_call.get("tool_kind") or "",
        "call": tool_call(asked.tool_call),
        "options": [_option(asked, option, given) for option in asked.options],
        "given": given,
        "answered_by": token.consumed_by.get_username() if token and token.consumed_by else "",
        "deadline": token.expires_at if token else None,
        "closed": _why_closed(asked, state),
        "resume_token": shown(token) or "",
    }


def _option(asked: PermissionRequest, option: dict[str, Any], given: str) -> dict[str, Any]:
    option_id = option.get("option_id", "")
    return {
        "id": option_id,
        "name": name_of(asked, option_id),
        "allows": str(option.get("kind", "")).startswith("allow"),
        "given": bool(given) and option_id == given,
    }


def _why_closed(asked: PermissionRequest, state: TokenState | None) -> str:
    if asked.state == "expired":
        return AGENT_ENDED
    return {TokenState.EXPIRED: TOO_LATE, TokenState.REVOKED: OVERRULED}.get(state, "") if state else ""


def without_keys(permissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for somebody who may not answer."""
    return [{**permission, "options": [], "resume_token": ""} for permission in permissions]
