"""What only the workspace knows of a turn that was cut short: looked for before the next agent changes anything."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Final

from executors_app.errors import ExecutorError
from sessions_app.models import Lease, TaskSession, session_transaction
from sessions_app.services import prompt_context
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream

log = logging.getLogger(__name__)
WORKSPACE_TIMEOUT: Final = 20.0
"""Seconds: no start waits longer for it."""
MAX_LISTED: Final = 200
"""Changed files and ended processes that are kept of each; a prompt names fewer."""


async def record_interrupted_work(registry: ExecutionRegistry, stream: ExecutionStream, since: str | None) -> None:
    """Add the files that changed and the processes that ended; what cannot be learned in time is left out.

    ``since`` is what ``wanted`` has said.
    """
    if since is None:
        return
    client = stream.client
    changed: list[str] = []
    processes: list[str] = []
    try:
        async with asyncio.timeout(WORKSPACE_TIMEOUT):
            processes = await client.ended_with_agent()
            changed = list((await client.git("changes", {"since": since})).get("files", ())) if since else []
    except (ExecutorError, TimeoutError) as error:
        log.info("session %s: what its last turn left is not wholly known: %s", stream.session_id, error)
    await registry.database(
        _add_findings, stream.session_id, stream.lease, changed[:MAX_LISTED], processes[:MAX_LISTED]
    )


def snapshot_to_compare(session: TaskSession) -> str | None:
    """The snapshot to compare with; None where nothing is unfinished, or somebody has looked already."""
    known = prompt_context.unfinished_of(session)
    return None if known is None or "changed" in known else str(known.get("since", ""))


def _add_findings(session_id: uuid.UUID, lease: Lease, changed: list[str], processes: list[str]) -> None:
    with session_transaction(session_id, lease) as transaction:
        prompt_context.add_workspace_findings(transaction, changed, processes)
