"""MCP over the official SDK: lists the tools, checks arguments, runs tools, and turns errors into results.

Only this module imports the SDK, which takes a second and 30 MB: ``endpoint`` imports it with the first request.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError
from rest_framework.exceptions import PermissionDenied

from sessions_app.accounts.api.authentication import READ_ONLY_MESSAGE
from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.errors import VALIDATION_ERROR, ErrorResponse, error_response
from sessions_app.kernel.database_threads import run_for_user
from sessions_app.mcp_server.endpoint import Caller
from sessions_app.mcp_server.tools import INSTRUCTIONS, TOOLS, TOOLS_BY_NAME, Tool
from sessions_app.mcp_server.turns import wait_for_turn

CALLER: Final = "kandev_caller"
"""Key of the request's ``Caller`` in its ASGI scope."""
Context = ServerRequestContext[Any, Any]


async def serve_request(scope: Any, receive: Any, send: Any) -> None:
    """Answer one HTTP request, whose scope has the caller.

    Nothing outlives the request, so that a restart of the web process is a non-event for clients.
    """
    manager = StreamableHTTPSessionManager(SERVER, stateless=True, max_request_body_size=MAX_BODY)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def _list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=_LISTED)


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    tool = TOOLS_BY_NAME.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, "There is no such tool.")
    try:
        values = params.arguments or {}
        unknown = values.keys() - tool.arguments_type.model_fields.keys()
        if unknown:
            return _failure(_unknown_arguments(unknown))
        arguments = tool.arguments_type.model_validate(values)
        result = await _run(tool, context, arguments)
    except ValidationError as error:
        return _failure(_argument_error(error))
    except Exception as error:  # noqa: BLE001 - every error becomes a result with a code
        return _failure(error_response(error, "an MCP tool"))
    content = result.model_dump(mode="json")
    return types.CallToolResult(content=[_as_text(content)], structured_content=content)


async def _run(tool: Tool, context: Context, arguments: Any) -> BaseModel:
    request: Any = context.request
    caller: Caller = request.scope[CALLER]
    if not tool.reads_only and getattr(caller.user, "only_reads", True):
        raise PermissionDenied(READ_ONLY_MESSAGE)
    if tool.run is None:
        return await wait_for_turn(caller, arguments, context.session.report_progress)
    return await run_for_user(caller.user.pk, tool.run, caller.user, arguments)


SHOWN_NAMES: Final = 10
"""Number of unknown arguments that an error names."""


def _unknown_arguments(names: Collection[str]) -> ErrorResponse:
    """Return the error of arguments that the tool does not have.

    Pydantic would report each of them, at a hundred times the cost, on the event loop.
    """
    shown = sorted(names)[:SHOWN_NAMES]
    details = {name[:100]: ["There is no such argument."] for name in shown}
    listed = ", ".join(name[:100] for name in shown)
    if len(names) > SHOWN_NAMES:
        listed += f" and {len(names) - SHOWN_NAMES} more"
    return ErrorResponse.from_code(VALIDATION_ERROR, f"Unknown arguments: {listed}.", details)


def _argument_error(error: ValidationError) -> ErrorResponse:
    """Return the error of arguments that do not fit the schema, in the shape of the REST API's."""
    details: dict[str, Any] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = "arguments"
        if problem["loc"]:
            name = str(problem["loc"][0])[:100]
        details.setdefault(name, []).append(problem["msg"])
    name, messages = next(iter(details.items()))
    return ErrorResponse.from_code(VALIDATION_ERROR, f"{name}: {messages[0]}", details)


def _failure(answer: ErrorResponse) -> types.CallToolResult:
    # Without structured content: clients may validate it against the schema of a successful result.
    return types.CallToolResult(content=[_as_text(answer.body)], is_error=True)


def _as_text(content: Mapping[str, Any]) -> types.TextContent:
    return types.TextContent(text=json.dumps(content, ensure_ascii=False, default=str))


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments_type.model_json_schema(),
        output_schema=tool.result_type.model_json_schema(mode="serialization"),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads_only,
            destructive_hint=tool.is_destructive,
            idempotent_hint=tool.is_idempotent,
            open_world_hint=not tool.reads_only,
        ),
    )


_LISTED: Final = [_described(tool) for tool in TOOLS]

SERVER: Final[Server[Any]] = Server(
    "kandev",
    title="Kandev",
    version="1",
    instructions=INSTRUCTIONS,
    on_list_tools=_list_tools,
    on_call_tool=_call_tool,
)
