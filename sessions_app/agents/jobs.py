"""The job of agent setup: stop and delete finished tests of agents, and start sessions whose agent was installed."""

from __future__ import annotations

import asyncio

from sessions_app.agents import finished_tests
from sessions_app.agents.installed_programs import InstalledPrograms
from sessions_app.agents.services import agent_setup
from sessions_app.supervisor.job import Job, Supervisor

AGENT_SETUP_EVERY = 5.0
"""Minimum seconds between two checks for finished tests of agents and for programs that were installed."""


class AgentSetupJob(Job):
    """Stops and deletes finished tests of agents, and starts sessions again whose agent has been installed."""

    name = "agent setup"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._installed_programs = InstalledPrograms()

    async def run_step(self) -> None:
        """Wait, then check both."""
        changes = self.registry.changes.count
        await asyncio.sleep(AGENT_SETUP_EVERY)
        if not self._installed_programs.is_watching:
            await self.registry.changes.rest(changes)
        stopped = await self.registry.database(agent_setup.stop_finished_tests)
        await self._delete_finished_tests()
        retried = await self.registry.database(self._installed_programs.retry_sessions)
        if stopped + retried:
            self.supervisor.dispatcher.announce_work()

    async def _delete_finished_tests(self) -> None:
        deleted = await self.registry.database(finished_tests.delete_finished_tests)
        if deleted:
            gone = await asyncio.to_thread(finished_tests.remove_files, deleted)
            await self.registry.database(finished_tests.forget_leftovers, gone)
