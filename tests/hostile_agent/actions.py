"""Every action of the control plane on a session, whatever was done to it; a refusal is an answer too."""

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

from executors_app import cleanup, recovery_refs, workspace_store
from executors_app.agentctl.local_runtime.storage import bearer_token
from executors_app.containers.sites import container_name
from executors_app.domain import ExecutionFacts, Launched, LaunchSpec
from executors_app.errors import ExecutorError
from sessions_app.models import Leftover
from sessions_app.services.maintenance.chore_run import ChoreRun
from sessions_app.services.maintenance.files import clean_journals, clean_recovery_refs
from tests.docker.harness import DockerHarness
from tests.executors.harness import client_of, known, look, row_of, spec_for
from tests.hostile_agent.world import PLANTED, World

_WITHIN = 60.0


@dataclass
class Victim:
    """A session whose agent is hostile."""

    world: World
    harness: DockerHarness
    spec: LaunchSpec
    launched: Launched
    refusals: list[str] = field(default_factory=list)
    """What was refused, and why."""

    @classmethod
    async def begin(cls, world: World) -> Victim:
        """Launched, with a commit and a snapshot that have arrived."""
        spec = spec_for(world.harness)
        found = cls(world, world.harness, spec, await world.harness.runtime.launch(spec))
        await found.client.write_file("work", b"work\n")
        await found.client.commit({"message": "Work", "author_name": "A", "author_email": "a@example.org"})
        await found.client.snapshot()
        await found.harness.runtime.push_work(found.row)
        return found

    @property
    def client(self) -> Any:
        """Of its agentctl."""
        return client_of(self.spec, self.launched)

    @property
    def row(self) -> ExecutionFacts:
        """As the database has it."""
        return row_of(self.harness, self.spec, self.launched)

    @property
    def directory(self) -> Path:
        """The workspace."""
        return self.harness.directory_of(self.spec.session_id)

    async def attempt(self, action: Awaitable[Any]) -> bool:
        """Carry it out; what it answers, or the reason of its refusal, is what people would see."""
        try:
            async with asyncio.timeout(_WITHIN):
                self.world.say(await action)
        except ExecutorError as error:
            self.refusals.append(f"{type(error).__name__}: {error.message}")
            self.world.say(f"{error.message} {error.details}")
            return False
        return True

    async def look_alive(self) -> None:
        """All that is asked of a live agentctl."""
        client = self.client
        self.world.secrets.add(bearer_token(self.spec.auth_token, self.launched.state))
        await self.attempt(client.status())
        await self.attempt(client.snapshot())
        for what in ("status", "diff", "log"):
            await self.attempt(client.git(what))
        await self.attempt(client.list_files())
        for name in ("token", "secret", "secret_key", "link", "work", "environ", "theirs", "journal/epoch"):
            await self.attempt(client.read_file(name))
        for name in ("planted", "token", "ready.json"):
            await self.attempt(client.write_file(name, PLANTED, "*"))
            await self.attempt(client.write_file(name, PLANTED))
        await self.attempt(client.commit({"message": "Commit", "author_name": "A", "author_email": "a@example.org"}))
        await self.attempt(client.restore_snapshot())
        await self.attempt(client.make_workspace())
        await self.attempt(self.harness.runtime.push_work(self.row))

    async def look_dead(self) -> None:
        """All that is done where no agentctl answers."""
        with suppress(Exception):  # it may have ended by itself
            self.harness.kill(self.spec)
        row = self.row
        await self.attempt(look(self.harness, row))
        await self.attempt(asyncio.to_thread(self.harness.runtime.unread_journal, row, 0, ""))
        await self.attempt(asyncio.to_thread(self.harness.runtime.resume_token, row))
        await self.attempt(self.harness.runtime.push_work(row))
        await asyncio.to_thread(self.read_kept)

    def read_kept(self) -> None:
        """What pages show of a session that does not run."""
        try:
            kept = recovery_refs.find_saved_work(
                self.harness.repository, self.spec.session_id, self.launched.worktree_branch
            )
        except ExecutorError as error:
            self.world.say(error.message)
            return
        self.world.say(
            [recovery_refs.saved_status(kept), recovery_refs.saved_diff(kept), recovery_refs.saved_log(kept, 50, 0)]
        )
        listed = recovery_refs.list_saved_directory(kept, "")
        for entry in listed["entries"]:
            with suppress(ExecutorError):
                self.world.say(recovery_refs.read_saved_content(kept, entry["name"]))

    def failure_report(self) -> str:
        """What was refused, and the last words of agentctl."""
        with self.harness.client() as client:
            log = client.logs(container_name(self.spec.execution_id), tail=20).decode(errors="replace")
        return "\n".join([*self.refusals, log])

    async def start_again(self) -> bool:
        """The next start, as the row knows the session."""
        before = self.launched
        spec = known(self.spec, before)

        async def launch() -> str:
            self.launched = await self.harness.runtime.launch(spec)
            return self.launched.worktree_path

        started = await self.attempt(launch())
        if started:
            self.inspect_mounts()
        return started

    def inspect_mounts(self) -> None:
        """Nothing is mounted but what a first start mounts."""
        if self.harness.runtime.name != "local_docker":
            return
        data = self.world.data
        allowed = {self.directory, data / "agentctl" / self.spec.execution_id, self.world.home_of(self.spec)}
        store = workspace_store.object_store_directory(self.harness.repository)
        for mount in self.harness.inspect(self.spec)["Mounts"]:
            source = Path(mount["Source"])
            assert source.resolve() == source
            assert source in ({store} if not mount["RW"] else allowed), f"{source} is mounted"

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """As the agent, in the container."""
        assert self.world.other
        values = {
            "W": self.launched.worktree_path,
            "R": "/workspace/repository.git",
            "RECORD": f"/workspace/repository.git/worktrees/{self.spec.session_id}",
            "OWN": self.spec.session_id,
            "BRANCH": self.launched.worktree_branch,
            "HOST": str(self.world.host),
            "DATA": str(self.world.data),
            "TEAM": str(self.harness.repository),
            "OTHER": self.world.other_session,
            "THEIRS": self.world.other[1].worktree_branch,
            "STATE": "/var/lib/agentctl/state",
            "SECRET_COMMIT": self.world.secret_commit,
            **{
                f"GIT_{who}_{what}": "agent@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
        words = "export " + " ".join(f"{name}='{value}'" for name, value in values.items())
        return self.harness.run(self.spec, "sh", "-c", f"{words}; cd $W 2>/dev/null; {script}", "sh", *arguments)

    def lose_tree(self) -> None:
        """The work tree is deleted, and nothing else."""
        shutil.rmtree(self.directory / "worktrees", ignore_errors=True)

    async def remove_orphans(self) -> None:
        """As if no row knew the session's container."""
        assert self.world.other
        configs = [dict(self.spec.config)]
        for orphan in await self.harness.runtime.orphans({self.world.other[0].execution_id}, configs):
            self.world.say(orphan)
            assert orphan.execution_id == self.spec.execution_id
            await self.attempt(self.harness.runtime.remove_orphan(orphan, configs))
        with self.harness.client() as client:
            left = {name for one in client.containers(all=True) for name in one["Names"]}
        assert f"/{container_name(self.world.other[0].execution_id)}" in left

    def delete(self) -> None:
        """The session is deleted, and maintenance comes by a month later; needs a database."""
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
            self.world.say(work.said)
            assert not work.failed, work.said
