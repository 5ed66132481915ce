"""Helpers to write scripts for the scripted agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Action = str | int
Script = dict[str, list[list[Action]]]

SESSION = "conversation-1"


def result(value: Any) -> str:
    return f'{{"jsonrpc": "2.0", "id": $ID, "result": {json.dumps(value)}}}'


def error(code: int, message: str, data: Any = None) -> str:
    values = {"code": code, "message": message, **({"data": data} if data is not None else {})}
    return f'{{"jsonrpc": "2.0", "id": $ID, "error": {json.dumps(values)}}}'


def update(kind: str, **body: Any) -> str:
    params = {"sessionId": SESSION, "update": {"sessionUpdate": kind, **body}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})


def notification(method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def chunk(role: str, text: str, **body: Any) -> str:
    return update(f"{role}_message_chunk", content={"type": "text", "text": text}, **body)


def request(request_id: Any, method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def agent(
    *,
    load: bool = False,
    resume: bool = False,
    also: Sequence[str] = (),
    name: str = "scripted",
    version: str = "",
    title: str = "",
    **methods: list[Action],
) -> Script:
    """Build a script; ``session_new`` is ``session/new``. Methods that are not given succeed.

    ``also`` names further capabilities beside load and resume, such as ``list``.
    """
    info = {"name": name, **({"version": version} if version else {}), **({"title": title} if title else {})}
    of_sessions: dict[str, Any] = {name: {} for name in (*(["resume"] if resume else []), *also)}
    claims: dict[str, Any] = {"loadSession": load, "sessionCapabilities": of_sessions}
    script: dict[str, list[Action]] = {
        "initialize": [result({"protocolVersion": 1, "agentCapabilities": claims, "agentInfo": info})],
        "session/new": [result({"sessionId": SESSION})],
        "session/prompt": [result({"stopReason": "end_turn"})],
    }
    values = {name.replace("session_", "session/", 1): actions for name, actions in methods.items()}
    return {name: [actions] for name, actions in {**script, **values}.items()}
