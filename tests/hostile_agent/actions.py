"""Every action of the control plane on a tampered session; an action may succeed or be refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from executors_app import cleanup
from executors_app.repositories import recovery_refs, workspace_store
from executors_app.runtimes.containers.sites import container_name
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec
from executors_app.wire.launch_tokens import bearer_token
from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.files import clean_journals, clean_recovery_refs
from sessions_app.models import Leftover
from tests.docker.harness import DockerHarness
from tests.executors.harness import client_of, known, observe_one, row_of, spec_for
from tests.hostile_agent.scenario import PLANTED, AttackScenario, SandboxHarness

_TIMEOUT = 240.0
"""Seconds of one action: it may start a Pod and wait for its end, while others do the same."""


@dataclass
class Victim:
    """A session whose agent is hostile."""

    scenario: AttackScenario
    harness: SandboxHarness
    spec: LaunchSpec
    launched: Launched
    refusals: list[str] = field(default_factory=list)
    """The refused actions, with the reasons."""

    @classmethod
    async def start_session(cls, scenario: AttackScenario) -> Victim:
        """Launch a session with a commit and a snapshot that are stored."""
        spec = spec_for(scenario.harness)
        victim = cls(scenario, scenario.harness, spec, await scenario.harness.runtime.launch(spec))
        await victim.client.write_file("work", b"work\n")
        await victim.client.commit({"message": "Work", "author_name": "A", "author_email": "a@example.org"})
        await victim.client.snapshot()
        await victim.harness.runtime.push_work(victim.row)
        return victim

    @property
    def client(self) -> Any:
        """Return the client of its agentctl."""
        return client_of(self.spec, self.launched)

    @property
    def row(self) -> ExecutionFacts:
        """Return its execution, as the database stores it."""
        return row_of(self.harness, self.spec, self.launched)

    @property
    def directory(self) -> Path:
        """Return its workspace on this machine."""
        return self.harness.directory_of(self.spec.session_id)

    async def attempt(self, action: Awaitable[Any]) -> bool:
        """Run an action and record its output, or its error, as users would see it; return whether it succeeded."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                self.scenario.record_output(await action)
        except ExecutorError as error:
            self.refusals.append(f"{type(error).__name__}: {error.message}")
            self.scenario.record_output(f"{error.message} {error.details}")
            return False
        return True

    async def use_live_agentctl(self) -> None:
        """Make every request to a running agentctl; on a remote engine those whose outcome is stored there."""
        client = self.client
        self.scenario.secrets.add(bearer_token(self.spec.auth_token, self.launched.state))
        await self.attempt(client.status())
        await self.attempt(client.snapshot())
        if self.harness.runtime.name == "local_docker":
            await self._use_every_request(client)
        await self.attempt(self.harness.runtime.push_work(self.row))

    async def _use_every_request(self, client: Any) -> None:
        """Make the requests that the same image answers in the same way on every engine."""
        for what in ("status", "diff", "log"):
            await self.attempt(client.git(what))
        await self.attempt(client.list_files())
        for name in ("token", "secret", "secret_key", "link", "work", "environ", "theirs", "journal/epoch"):
            await self.attempt(client.read_file(name))
        for name in ("planted", "token", "ready.json"):
            await self.attempt(client.write_file(name, PLANTED, "*"))
            await self.attempt(client.write_file(name, PLANTED))
        await self.attempt(client.commit({"message": "Commit", "author_name": "A", "author_email": "a@example.org"}))
        await self.attempt(client.make_workspace())

    async def use_stored_state(self) -> None:
        """Kill agentctl and do everything that the control plane does without it."""
        with suppress(Exception):  # it may have ended by itself
            await asyncio.to_thread(self.harness.kill, self.spec)
        row = self.row
        await self.attempt(observe_one(self.harness, row))
        await self.attempt(asyncio.to_thread(self.harness.runtime.unread_journal, row, 0, ""))
        await self.attempt(asyncio.to_thread(self.harness.runtime.resume_token, row))
        await self.attempt(self.harness.runtime.push_work(row))
        await asyncio.to_thread(self.read_saved_work)

    def read_saved_work(self) -> None:
        """Read what the pages show of a session that does not run."""
        try:
            saved = recovery_refs.find_saved_work(
                self.harness.repository, self.spec.session_id, self.launched.worktree_branch
            )
        except ExecutorError as error:
            self.scenario.record_output(error.message)
            return
        self.scenario.record_output(
            [recovery_refs.saved_status(saved), recovery_refs.saved_diff(saved), recovery_refs.saved_log(saved, 50, 0)]
        )
        listed = recovery_refs.list_saved_directory(saved, "")
        for entry in listed["entries"]:
            with suppress(ExecutorError):
                self.scenario.record_output(recovery_refs.read_saved_content(saved, entry["name"]))

    def failure_report(self) -> str:
        """Return the refusals and the end of agentctl's log."""
        if not isinstance(self.harness, DockerHarness):
            return "\n".join(self.refusals)
        with self.harness.client() as client:
            log = client.logs(container_name(self.spec.execution_id), tail=20).decode(errors="replace")
        return "\n".join([*self.refusals, log])

    async def restart(self) -> bool:
        """Start the session again from its stored row; return whether it started."""
        before = self.launched
        spec = known(self.spec, before)

        async def launch() -> str:
            self.launched = await self.harness.runtime.launch(spec)
            return self.launched.worktree_path

        started = await self.attempt(launch())
        if started:
            self.check_mounts()
        return started

    def check_mounts(self) -> None:
        """Assert that the container has only the mounts of a first start."""
        if not isinstance(self.harness, DockerHarness) or self.harness.runtime.name != "local_docker":
            return
        data = self.scenario.data
        allowed = {self.directory, data / "agentctl" / self.spec.execution_id, self.scenario.home_of(self.spec)}
        store = workspace_store.object_store_directory(self.spec)
        for mount in self.harness.inspect(self.spec)["Mounts"]:
            source = Path(mount["Source"])
            assert source.resolve() == source
            assert source in ({store} if not mount["RW"] else allowed), f"{source} is mounted"

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """Run a script as the agent in the container; return its exit code and output."""
        assert self.scenario.other_launch
        values = {
            "W": self.launched.worktree_path,
            "R": "/workspace/repository.git",
            "RECORD": f"/workspace/repository.git/worktrees/{self.spec.session_id}",
            "OWN": self.spec.session_id,
            "BRANCH": self.launched.worktree_branch,
            "HOST": str(self.scenario.host),
            "DATA": str(self.scenario.data),
            "TEAM": str(self.harness.repository),
            "OTHER": self.scenario.other_session,
            "THEIRS": self.scenario.other_launch[1].worktree_branch,
            "STATE": "/var/lib/agentctl/state",
            "SECRET_COMMIT": self.scenario.secret_commit,
            **{
                f"GIT_{who}_{what}": "agent@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
        exports = "export " + " ".join(f"{name}='{value}'" for name, value in values.items())
        return self.harness.run(self.spec, "sh", "-c", f"{exports}; cd $W 2>/dev/null; {script}", "sh", *arguments)

    def delete_worktree(self) -> None:
        """Delete the work tree and nothing else."""
        shutil.rmtree(self.directory / "worktrees", ignore_errors=True)

    async def remove_orphans(self) -> None:
        """Remove the session's container as an orphan, as if no row referred to it."""
        assert self.scenario.other_launch
        assert isinstance(self.harness, DockerHarness)
        configs = [dict(self.spec.config)]
        for orphan in await self.harness.runtime.orphans({self.scenario.other_launch[0].execution_id}, configs):
            self.scenario.record_output(orphan)
            assert orphan.execution_id == self.spec.execution_id
            await self.attempt(self.harness.runtime.remove_orphan(orphan, configs))
        with self.harness.client() as client:
            remaining = {name for one in client.containers(all=True) for name in one["Names"]}
        assert f"/{container_name(self.scenario.other_launch[0].execution_id)}" in remaining

    def delete(self) -> None:
        """Delete the session and run maintenance as if 400 days had passed; needs a database."""
        cleanup.find_redundant_snapshot(self.harness.repository, self.spec.session_id, self.launched.worktree_branch)
        Leftover.objects.create(
            session_id=self.spec.session_id,
            executions=[self.spec.execution_id],
            repository_path=str(self.harness.repository),
            deleted_at=timezone.now() - timedelta(days=400),
        )
        for chore in (clean_recovery_refs, clean_journals):
            work = ChoreRun(chore.__name__)
            chore(work)
            self.scenario.record_output(work.said)
            assert not work.failed, work.said
