"""What ACP agents ask people: permissions, and questions by form or by link (``elicitation/create``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.acp_updates import acp_tool_call, tool_call_id
from executors_app.agentctl.drivers.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from executors_app.agentctl.drivers.json_values import list_of, object_of
from executors_app.wire import questions
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.protocol import JournalKind
from executors_app.wire.questions.schema import parse_question

PERMISSION_METHOD: Final = "session/request_permission"
QUESTION_METHOD: Final = "elicitation/create"
QUESTION_COMPLETED: Final = "elicitation/complete"
QUESTION_CAPABILITIES: Final[dict[str, Any]] = {"form": {}, "url": {}}
"""What ``initialize`` advertises: both modes. Agents ask in no mode that is not listed."""
_TITLE_LIMIT: Final = 300
_MAX_OWN_QUESTIONS: Final = 10


async def answer_request(host: Host, method: str, params: Any, name_asker: Callable[[Any], str]) -> dict[str, Any]:
    """Return the result of an agent's request once people have answered it; raises RpcError if it is none of ours.

    ``name_asker`` returns the name of the sub-agent that asks with these parameters; empty for the agent itself.
    """
    if method == QUESTION_METHOD:
        return await ask_question(host, params, name_asker(params))
    if method == PERMISSION_METHOD:
        return await ask_permission(host, params, name_asker(params))
    if asks_in_own_form(method):
        decline_question(host, params)
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")


async def ask_permission(host: Host, params: Any, sub_agent: str = "") -> dict[str, Any]:
    """Ask for a permission and return the result of the request; raises RpcError if it is invalid.

    ``sub_agent`` is the name of the sub-agent that asks; empty for the agent itself.
    """
    try:
        request = parse_permission_request(params)
    except ValueError as error:
        text = f"the agent asked for a permission that nobody could answer, so it was refused: {error}"
        host.record(JournalKind.LOG, level="warning", text=text, data={})
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    if sub_agent:
        request["tool_call"]["sub_agent"] = sub_agent
    option_id = await host.ask_permission(request)
    if option_id is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


def parse_permission_request(params: Any) -> dict[str, Any]:
    """Return the agent's question in the shape of ``Host.ask_permission``; raises ValueError if it is invalid."""
    request = object_of(params)
    offered = request.get("options")
    options: dict[str, dict[str, str]] = {}
    for option in list_of(offered):
        parsed = _permission_option(option)
        # An answer names an option by its id alone. With two of them, nobody knows which one the agent takes it for.
        if parsed and options.setdefault(parsed["option_id"], parsed) != parsed:
            raise ValueError("two different options of a permission request have the same id")
    call = request.get("toolCall")
    if offered and not options:
        raise ValueError("none of its options has an id that is a text")
    if not options or not isinstance(call, dict):
        raise ValueError("a permission request needs a tool call and options")
    return {"tool_call": acp_tool_call(call), "options": list(options.values())}


def _permission_option(option: Any) -> dict[str, str] | None:
    """Return an option that can be chosen; None if it has no id. One without a name is shown by its id."""
    option_id = object_of(option).get("optionId")
    if not isinstance(option_id, str) or not option_id.strip():
        return None
    name, kind = option.get("name"), option.get("kind")
    if not isinstance(name, str) or not name.strip():
        name = option_id
    if not isinstance(kind, str):
        kind = ""
    return {"option_id": option_id, "name": name, "kind": kind}


async def ask_question(host: Host, params: Any, sub_agent: str = "") -> dict[str, Any]:
    """Ask a person and return the result of the request; raises RpcError if the question is invalid.

    ``sub_agent`` is the name of the sub-agent that asks; empty for the agent itself.
    """
    request = object_of(params)
    try:
        if not isinstance(request.get("sessionId"), str) and request.get("requestId") is None:
            raise ValueError("a question belongs to a session or to a request")
        question = parse_question(request)
    except ValueError as error:
        text = f"the agent asked a question that cannot be shown, so it was refused: {error}"
        host.record(JournalKind.LOG, level="warning", text=text, data={})
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    title = (question.get("schema") or {}).get("title") or question["message"]
    tool_call = {
        "tool_call_id": tool_call_id(request) or "",
        "title": title[:_TITLE_LIMIT],
        "tool_kind": "question",
    }
    if sub_agent:
        tool_call["sub_agent"] = sub_agent
    action, content = await host.ask_question({"tool_call": tool_call, "question": question})
    is_form = action == questions.ACCEPT and question["mode"] == questions.FORM
    if is_form:
        return {"action": action, "content": dict(content)}
    return {"action": action}


def complete_question(host: Host, params: Any) -> bool:
    """Close the question that an ``elicitation/complete`` names; return False if none is open with this id."""
    elicitation_id = object_of(params).get("elicitationId")
    return isinstance(elicitation_id, str) and host.complete_question(elicitation_id)


def asks_in_own_form(method: str) -> bool:
    """Whether an extension of an agent asks its user something, like grok's ``_x.ai/ask_user_question``."""
    return method.startswith("_") and method.endswith("/ask_user_question")


def decline_question(host: Host, params: Any) -> NoReturn:
    """Record what the agent asked in a form of its own, and raise the RpcError that tells the agent what to do."""
    request = object_of(params)
    questions_of_form = [*list_of(request.get("questions"))[:_MAX_OWN_QUESTIONS], request]
    words = [question.get("question") for question in questions_of_form if isinstance(question, dict)]
    quoted = clean_text(" ".join(text for text in words if isinstance(text, str)), REASON_LIMIT)
    text = "the agent asked a question in a form of its own, which Kandev cannot show, so it was declined"
    if quoted:
        text = f"{text}: {quoted}"
    host.record(JournalKind.LOG, level="warning", text=text, data={})
    raise RpcError(METHOD_NOT_FOUND, "This client does not show such questions. Ask in your answer, and end the turn.")
