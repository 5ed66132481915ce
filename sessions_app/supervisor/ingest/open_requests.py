"""Open permission requests learn what the agent reports about their tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.orm import PreparedQuery
from sessions_app.domain import attention
from sessions_app.domain.states import PermissionState
from sessions_app.models import PermissionRequest, SessionTransaction
from sessions_app.models.attention import update_wording

_DETAIL_FIELDS: Final = ("title", "tool_kind", "content", "locations", "raw_input")
"""Fields of a tool call that a person needs to see before answering a permission request."""
_EMPTY_VALUES: Final[tuple[object, ...]] = (None, "", [], {})
OPEN_REQUEST = PreparedQuery(
    lambda key: PermissionRequest.objects.filter(session_id=key, state=PermissionState.PENDING)
)


def complete_tool_call(asked: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool call of a permission request, with its empty fields filled in from what the log knows."""
    more = {
        name: known[name]
        for name in _DETAIL_FIELDS
        if known.get(name) not in _EMPTY_VALUES and asked.get(name) in _EMPTY_VALUES
    }
    return {**asked, **more}


def update_open_requests(transaction: SessionTransaction, key: str, known: Mapping[str, Any]) -> None:
    """Add what the agent has since reported about a tool call to its open permission requests and inbox items."""
    for row in OPEN_REQUEST.all(transaction.session.id):
        if str(row.tool_call.get("tool_call_id", ""))[:200] != key:
            continue
        tool_call = complete_tool_call(row.tool_call, known)
        if tool_call != row.tool_call:
            row.tool_call = tool_call
            row.save(update_fields=["tool_call"])
            update_wording(attention.request_notice(row.id, tool_call, row.question))
