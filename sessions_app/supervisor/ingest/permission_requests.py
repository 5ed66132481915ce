"""What a permission is asked for: a request may name its tool call by id alone, and the log knows the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.prepared import Prepared
from sessions_app.domain import attention
from sessions_app.models import Draft, PermissionRequest
from sessions_app.models.attention import retell

_TOLD: Final = ("title", "tool_kind", "content", "locations", "raw_input")
"""What somebody has to see before answering."""
_NOTHING: Final[tuple[object, ...]] = (None, "", [], {})
_OPEN = Prepared(lambda key: PermissionRequest.objects.filter(session_id=key, state="pending"))


def with_known(asked: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The tool call of a request, completed with what is known of it; what the request itself tells goes first."""
    more = {name: known[name] for name in _TOLD if known.get(name) not in _NOTHING and asked.get(name) in _NOTHING}
    return {**asked, **more}


def tell_more(draft: Draft, key: str, known: Mapping[str, Any]) -> None:
    """The agent has told more of this tool call: complete what is still asked of it, and its item in the inbox."""
    for row in _OPEN.all(draft.session.id):
        if str(row.tool_call.get("tool_call_id", ""))[:200] != key:
            continue
        tool_call = with_known(row.tool_call, known)
        if tool_call != row.tool_call:
            row.tool_call = tool_call
            row.save(update_fields=["tool_call"])
            retell(attention.permission(row.id, tool_call))
