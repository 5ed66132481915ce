"""One supervisor: what it holds, and how it takes an execution over."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from django.conf import settings

from executors_app import crash_points
from executors_app.agentctl.protocol import ALIVE_AGENT_STATES
from executors_app.client import AgentctlClient, open_http
from executors_app.domain import ExecutionFacts
from executors_app.errors import AgentctlUnreachable, ExecutorError, StaleGeneration
from sessions_app.supervisor import leases
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.grace import Grace
from sessions_app.supervisor.ingest.trouble import TROUBLES
from sessions_app.supervisor.ingest.writer import Writer
from sessions_app.supervisor.outage import Outage
from sessions_app.supervisor.rows import facts_of, present_execution, session_of
from sessions_app.supervisor.start.admission import Doors
from sessions_app.supervisor.taking_over import Taken, Wanted, take_over
from sessions_app.supervisor.threads import DatabaseThread
from sessions_app.supervisor.together import Together

log = logging.getLogger(__name__)
ATTACH_TIMEOUT = 10.0
"""Seconds until a stream must be open, and its journal in the log."""


class Core:
    """Leases, streams and threads of one supervisor process; the registry is a cache, never trusted."""

    def __init__(self) -> None:
        self.boot_id = uuid.uuid4().hex
        self.writer = DatabaseThread("ingest")
        self.ingest = Writer(self.writer)
        self.database = DatabaseThread("orders")
        self.outage = Outage(self.database)
        self._taking_over: Together[Wanted, Taken | None] = Together(
            self.database, lambda wanted: take_over(self.boot_id, wanted)
        )
        self.attachments: dict[uuid.UUID, Attachment] = {}
        self.starts = asyncio.Semaphore(settings.KANDEV_START_CONCURRENCY)
        self.doors = Doors()
        self.grace = Grace()
        self.on_change: Callable[[uuid.UUID], None] = lambda session_id: None
        self.on_loss: Callable[[Attachment], None] = lambda attachment: None
        self.damage_said: dict[uuid.UUID, str] = {}
        self._http: aiohttp.ClientSession | None = None
        self._attaching: dict[uuid.UUID, asyncio.Lock] = {}

    @property
    def http(self) -> aiohttp.ClientSession:
        """The one connection pool to all agentctls."""
        if self._http is None:
            self._http = open_http()
        return self._http

    def attached(self, session_id: uuid.UUID) -> Attachment | None:
        """The live stream of a session."""
        found = self.attachments.get(session_id)
        return found if found is not None and not found.ended else None

    async def attach(self, session_id: uuid.UUID, report: Mapping[str, Any] | None = None) -> Attachment | None:
        """Lease a live execution and stream its journal until the log has what ``report`` names.

        Returns None where another supervisor holds the lease. Raises ExecutorError where agentctl
        does not answer. The take-over counts once agentctl has confirmed the generation (rule 17).
        """
        async with self._attaching.setdefault(session_id, asyncio.Lock()):
            found = self.attached(session_id)
            if found is None:
                try:
                    found = await self._take_over(session_id, report)
                except StaleGeneration:  # somebody commanded it with a newer one: exactly once more
                    found = await self._take_over(session_id, None)
            return found

    async def _take_over(self, session_id: uuid.UUID, report: Mapping[str, Any] | None) -> Attachment | None:
        if report is None:
            facts = await self.database(_present_facts, session_id)
            if facts is None:
                return None
            report = await AgentctlClient.of(facts, self.http).status(timeout=ATTACH_TIMEOUT)
        serves = report.get("capabilities", {}).get("supports_workspace_only")
        wanted = Wanted(session_id, int(report["generation"]), serves if isinstance(serves, bool) else None)
        taken = await self._taking_over(wanted)
        if taken is None:
            return None
        crash_points.reached("supervisor.leased", session_id)
        journal = report["journal"]
        attachment = await self._stream(session_id, taken, journal["epoch"])
        crash_points.reached("supervisor.attached", session_id)
        await attachment.heed([journal])
        attachment.found_agent = report["agent"]["state"] in ALIVE_AGENT_STATES
        attachment.found_launch = str(report["agent"].get("launch_id") or "") if attachment.found_agent else ""
        if journal["last_seq"] and not await attachment.reach(journal["epoch"], journal["last_seq"], ATTACH_TIMEOUT):
            log.warning("session %s: its journal is not in the log yet", session_id)
        return attachment

    async def _stream(self, session_id: uuid.UUID, taken: Taken, journal_epoch: str) -> Attachment:
        attachment = Attachment(
            session_id=session_id,
            facts=taken.facts,
            lease=taken.lease,
            client=AgentctlClient.of(taken.facts, self.http),
            writer=self.ingest,
            database=self.database,
            on_change=self.on_change,
            on_end=self._forget,
            journal_epoch=journal_epoch,
            epoch=taken.epoch,
            seq=taken.seq,
            shown_trouble=taken.error_code if taken.error_code in TROUBLES else "",
        )
        await _open(attachment)
        self.attachments[session_id] = attachment
        return attachment

    def _forget(self, attachment: Attachment) -> None:
        if self.attachments.get(attachment.session_id) is attachment:
            del self.attachments[attachment.session_id]
            self.on_loss(attachment)

    async def detach(self, session_id: uuid.UUID) -> None:
        """End the stream of a session without anybody looking for the reason."""
        attachment = self.attachments.pop(session_id, None)
        if attachment is not None:
            await attachment.stop()

    async def drain_starts(self) -> None:
        """Let the log have what the agents that were started here have written by now.

        Else the next supervisor finds those lines and says that it has taken something over, which is no news.
        """
        started = [attachment for attachment in self.attachments.values() if attachment.has_started]
        await asyncio.gather(*map(_drain, started))

    async def give_back(self) -> None:
        """End the streams and give the leases back (rule 18). Agents go on."""
        for session_id in list(self.attachments):
            await self.detach(session_id)
        await self.database.at_the_end(leases.release, self.boot_id)

    async def close(self) -> None:
        """Give everything back: streams, leases, connections."""
        await self.outage.close()
        await self.give_back()
        if self._http is not None:
            await self._http.close()
        await self.ingest.close()
        self.writer.close()
        self.database.close()


async def _open(attachment: Attachment) -> None:
    """Start its stream; one that does not open, or that nobody waits for any more, is ended: nobody knows of it."""
    attachment.start()
    try:
        await asyncio.wait_for(attachment.connected.wait(), ATTACH_TIMEOUT)
    except TimeoutError:
        raise AgentctlUnreachable("agentctl did not open its event stream in time.", reason="timeout") from None
    finally:
        if not attachment.connected.is_set():
            await attachment.stop()
    if attachment.ended:
        raise attachment.error or ExecutorError("The event stream of agentctl ended at once.")


async def _drain(attachment: Attachment) -> None:
    """Who does not answer is left as it is."""
    with suppress(ExecutorError):
        journal = (await attachment.client.status(timeout=ATTACH_TIMEOUT))["journal"]
        await attachment.reach(journal["epoch"], journal["last_seq"], ATTACH_TIMEOUT)


def _present_facts(session_id: uuid.UUID) -> ExecutionFacts | None:
    session = session_of(session_id)
    execution = present_execution(session)
    return None if execution is None or not execution.agentctl_url else facts_of(execution, session)
