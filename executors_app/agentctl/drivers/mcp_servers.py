"""Which MCP servers an agent takes: those that it does not are left out, and reported in a journal line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from executors_app.agentctl.drivers import StartRequest
from executors_app.agentctl.protocol import JournalKind, LeftOutReason

Server = Mapping[str, Any]


def accepted_servers(servers: Sequence[Server], transports: Collection[str]) -> list[Server]:
    """Return the programs, which every ACP agent starts, and the servers of ``transports``: *http*, *sse*."""
    return [server for server in servers if _refusal(server, transports) is None]


def report_left_out(record: Callable[..., Any], request: StartRequest, transports: Collection[str] | None) -> None:
    """Record which servers of a start the agent does not take; ``transports`` is None if it takes none."""
    left_out = [
        {"name": str(server.get("name", "")), "reason": str(reason)}
        for server in request.mcp_servers
        if (reason := LeftOutReason.UNSUPPORTED if transports is None else _refusal(server, transports)) is not None
    ]
    if left_out:
        record(JournalKind.MCP_SERVERS_LEFT_OUT, launch_id=request.launch_id, servers=left_out)


def _refusal(server: Server, transports: Collection[str]) -> LeftOutReason | None:
    if "url" not in server:
        return None
    transport = server.get("type", "http")
    if transport in transports:
        return None
    return LeftOutReason.SSE_UNSUPPORTED if transport == "sse" else LeftOutReason.HTTP_UNSUPPORTED
