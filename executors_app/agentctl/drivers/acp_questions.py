"""What ACP agents ask people: permissions, and questions by form or by link (``elicitation/create``)."""

from __future__ import annotations

from typing import Any, Final

from executors_app.agentctl import questions
from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.events import parse_permission_request
from executors_app.agentctl.drivers.json_rpc import INVALID_PARAMS, RpcError
from executors_app.agentctl.questions.schema import parse_question

PERMISSION: Final = "session/request_permission"
CREATE: Final = "elicitation/create"
COMPLETE: Final = "elicitation/complete"
CAPABILITIES: Final[dict[str, Any]] = {"form": {}, "url": {}}
"""What ``initialize`` advertises: both modes. Agents ask in no mode that is not listed."""
_TITLE_LIMIT: Final = 300


async def ask_permission(host: Host, params: Any) -> dict[str, Any]:
    """Ask for a permission and return the result of the request; raises RpcError if it is invalid."""
    try:
        asked = parse_permission_request(params)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    option_id = await host.ask_permission(asked)
    outcome = {"outcome": "cancelled"} if option_id is None else {"outcome": "selected", "optionId": option_id}
    return {"outcome": outcome}


async def ask(host: Host, params: Any) -> dict[str, Any]:
    """Ask a person and return the result of the request; raises RpcError if the question is invalid."""
    asked = params if isinstance(params, dict) else {}
    try:
        if not isinstance(asked.get("sessionId"), str) and asked.get("requestId") is None:
            raise ValueError("a question belongs to a session or to a request")
        question = parse_question(asked)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    title = (question.get("schema") or {}).get("title") or question["message"]
    call_id = asked.get("toolCallId")
    tool_call = {
        "tool_call_id": call_id if isinstance(call_id, str) else "",
        "title": title[:_TITLE_LIMIT],
        "tool_kind": "question",
    }
    action, content = await host.ask_question({"tool_call": tool_call, "question": question})
    is_form = action == questions.ACCEPT and question["mode"] == questions.FORM
    return {"action": action, "content": dict(content)} if is_form else {"action": action}


def complete(host: Host, params: Any) -> bool:
    """Close the question that an ``elicitation/complete`` names; return False if none is open with this id."""
    elicitation_id = params.get("elicitationId") if isinstance(params, dict) else None
    return isinstance(elicitation_id, str) and host.complete_question(elicitation_id)
