"""A second witness: whether the agent lists a conversation that it could not open.

It has to be heard with care, for some agents leave out of their list what they have (measured);
``acp_opening`` says what it counts for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from executors_app.agentctl.drivers.acp_wire import AgentGone, RpcError, Wire
from executors_app.agentctl.pipes import PipeStuck

LIST_LIMIT: Final = 5.0
"""Seconds for the whole list."""
_MOST_PAGES: Final = 50


async def is_listed(wire: Wire, cwd: str, conversation_id: str) -> bool | None:
    """Whether the agent lists the conversation, under its directory or at all.

    None: nobody can tell, for the list could not be had to its end, or has nothing in it.
    """
    try:
        async with asyncio.timeout(LIST_LIMIT):
            ids = await _ids(wire, {"cwd": cwd}, conversation_id)
            if conversation_id not in ids:
                ids |= await _ids(wire, {}, conversation_id)
    except (RpcError, AgentGone, PipeStuck, TimeoutError, _NoList):
        return None
    return conversation_id in ids if ids else None


class _NoList(Exception):
    """The answer is no list, or has no end."""


async def _ids(wire: Wire, params: dict[str, Any], until: str) -> set[str]:
    """The ids of a list, page by page to its end or to the one that is looked for; RpcError, AgentGone, _NoList."""
    ids: set[str] = set()
    for _ in range(_MOST_PAGES):
        page = await wire.call("session/list", params)
        sessions = page.get("sessions") if isinstance(page, dict) else None
        if not isinstance(sessions, list):
            raise _NoList
        ids |= {str(each.get("sessionId")) for each in sessions if isinstance(each, dict)}
        cursor = page.get("nextCursor")
        if until in ids or not isinstance(cursor, str) or not cursor:
            return ids
        params = {**params, "cursor": cursor}
    raise _NoList
