"""Lets the work of sessions arrive at the control plane after each snapshot, so that it outlives their sandboxes."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from typing import Final

from executors_app import workspace_store
from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError, RuntimeUnavailable, SnapshotMissing
from executors_app.plugins import runtime
from executors_app.runtimes import SupportsPush
from sessions_app.domain import acting
from sessions_app.models import LeaseLost
from sessions_app.supervisor import transfers
from sessions_app.supervisor.pace import Pace
from sessions_app.supervisor.threads import DatabaseThread
from sessions_app.supervisor.transfers import Transfer

log = logging.getLogger(__name__)
AT_ONCE: Final = 4
"""Pushes at a time from one place: one that is silent holds up its own sessions and no others."""
MISSING_TRIES: Final = 5
"""Tries until a snapshot counts as lost that the workspace does not contain: its successor may not be announced yet."""


class WorkspaceSync:
    """At most one push at a time for each execution; what becomes due meanwhile follows."""

    def __init__(self, database: DatabaseThread, me: str) -> None:
        self._database, self._me = database, me
        self._due: set[uuid.UUID] = set()
        self._pushes: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._given_up: dict[uuid.UUID, str] = {}
        """Snapshots that can never arrive as things stand; forgotten with this supervisor, so a restart tries again."""

    def request(self, facts: ExecutionFacts) -> None:
        """Push after a snapshot; nothing to do where the work is in the team's repository anyway."""
        if isinstance(runtime(facts.runtime), SupportsPush):
            self._request(uuid.UUID(facts.id))

    async def catch_up(self) -> None:
        """Push whatever has not arrived: a kill may have come between a snapshot and its transfer."""
        due = await self._database(transfers.due, self._me)
        for execution_id, announced in due.items():
            if execution_id not in self._pushes and self._given_up.get(execution_id) != announced:
                self._request(execution_id)

    async def close(self) -> None:
        """Leave the rest to the next supervisor, which compares what has arrived with the newest snapshot."""
        pushes = list(self._pushes.values())
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    def _request(self, execution_id: uuid.UUID) -> None:
        self._due.add(execution_id)
        if execution_id not in self._pushes:
            push = asyncio.create_task(self._push(execution_id), name=f"workspace sync {execution_id}")
            self._pushes[execution_id] = push

    async def _push(self, execution_id: uuid.UUID) -> None:
        acting.begin(cause="workspace sync", execution_id=execution_id)
        backoff, missing = Pace(), 0
        try:
            while execution_id in self._due:
                self._due.discard(execution_id)
                try:
                    if await self._transfer(execution_id, is_lost=missing + 1 >= MISSING_TRIES):
                        backoff, missing = Pace(), 0
                        continue
                except SnapshotMissing:
                    missing += 1
                except Exception:
                    # Where not even the row can be read or written: told once, not at each try.
                    level = logging.ERROR if backoff.is_calm else logging.DEBUG
                    log.log(level, "execution %s: its work could not be transferred", execution_id, exc_info=True)
                self._due.add(execution_id)
                await asyncio.sleep(backoff.failed())
        finally:
            self._due.discard(execution_id)
            del self._pushes[execution_id]

    async def _transfer(self, execution_id: uuid.UUID, *, is_lost: bool) -> bool:
        """Try once; True if there is nothing more to do for now. Raises SnapshotMissing unless ``is_lost``."""
        transfer = await self._database(transfers.begin, self._me, execution_id)
        if transfer is None:
            return True  # another supervisor's, or gone with its session
        try:
            arrived = await self._arrive(transfer)
            return await self._database(transfers.record_arrival, transfer, arrived)
        except LeaseLost:
            return False  # the next try finds out whose it is
        except SnapshotMissing as error:
            if not is_lost:
                raise
            return await self._failed(transfer, error, final=True)
        except ExecutorError as error:
            return await self._failed(transfer, error, final=error.permanent)
        except Exception as error:
            log.debug("session %s: a push failed", transfer.session_id, exc_info=True)
            return await self._failed(transfer, RuntimeUnavailable(f"The transfer failed: {error!r}"), final=False)

    async def _arrive(self, transfer: Transfer) -> str | None:
        """Push, and return what the archive has now: what was announced proves nothing."""
        facts = transfer.facts
        place = runtime(facts.runtime)
        assert isinstance(place, SupportsPush)  # noqa: S101  (asked when it became due)
        async with self._gates[f"{facts.runtime} {sorted(facts.config.items(), key=repr)}"]:
            await place.push_work(facts)
        return await asyncio.to_thread(workspace_store.newest_snapshot, transfer.owner_id)

    async def _failed(self, transfer: Transfer, error: ExecutorError, *, final: bool) -> bool:
        try:
            await self._database(transfers.record_failure, transfer, error)
        except LeaseLost:
            return False
        if final:
            self._given_up[uuid.UUID(transfer.facts.id)] = transfer.announced
        return final
