"""The end of an agent's log, for whoever has to find out why it does not start."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from typing import Final

from django.db import DatabaseError

from executors_app.agentctl.protocol import Kind
from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.rows import execution_facts

log = logging.getLogger(__name__)
LINES: Final = 60
BEHIND: Final = 2000
"""Lines of the journal, the youngest, among which they are looked for."""
PATIENCE: Final = 5.0


async def of_session(core: Core, session_id: uuid.UUID) -> str:
    """The last lines that its agents have written; empty where they cannot be had in time. Raises nothing."""
    try:
        facts = await core.database(execution_facts, session_id)
        if facts is None:
            return ""
        seq, epoch = await core.database(_cursor, facts.id)
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(_read, facts, max(seq - BEHIND, 0), epoch)
    except (ExecutorError, DatabaseError, OSError, ValueError, TimeoutError) as error:
        log.info("session %s: the end of its log cannot be had: %s", session_id, error)
        return ""


def _cursor(execution_id: str) -> tuple[int, str]:
    columns = ("journal_seq", "journal_epoch")
    found: tuple[int, str] = ExecutorRunning.objects.values_list(*columns).get(id=execution_id)
    return found


def _read(facts: ExecutionFacts, after: int, epoch: str) -> str:
    lines = runtime(facts.runtime).left_journal(facts, after, epoch)
    told = deque((str(line.get("text", "")) for line in lines if line.get("kind") == Kind.LOG), maxlen=LINES)
    return "\n".join(told)
