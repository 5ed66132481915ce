"""A database full of sessions, and the fake agentctls that they run on according to their rows."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection
from django.utils import timezone

from executors_app.machine.git import worktrees
from executors_app.machine.git.repository_git import run_git
from executors_app.machine.process import identity
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.sessions.services import intents
from tests import databases
from tests.migrated_database import copy_migrated
from tests.services import ROOT
from tests.support.fake_agentctl import FakeAgentctl
from tests.waiting import eventually

AT_ONCE = 500
SILENT_FOR = timedelta(minutes=1)
"""How long those that refuse or hang have been silent: two periodic sweeps."""


class World:
    """One team with a repository, a demo agent and this machine as its executor."""

    def __init__(self) -> None:
        copy_migrated(databases.database_named(str(connection.settings_dict["NAME"])))
        self.home = Path(settings.KANDEV_DATA_DIR) / "bench"
        self.home.mkdir()
        self.team = Group.objects.create(name="Bench team")
        self.user: Any = get_user_model().objects.create_user("bench")
        self.user.groups.add(self.team)
        path = self.home / "repository"
        _make_repository(path)
        self.repository = Repository.objects.create(name="bench", team=self.team, path=str(path))
        self.executor = Executor.objects.create(name="here", runtime="local_standalone")
        self.profile = AgentProfile.objects.create(
            name="demo", agent_type="demo", env={"KANDEV_DEMO_AGENT_HOME": str(self.home / "agent")}
        )

    @cached_property
    def worktree(self) -> str:
        """Return a real worktree, shared by sessions that never work in it."""
        place = worktrees.Worktree(self.home / "worktree", "bench")
        worktrees.make_worktree(Path(self.repository.path), "", place, existed=False)
        return str(place.path)

    def task(self, title: str) -> Task:
        """Return an unsaved task."""
        return Task(title=title, team=self.team, repository=self.repository)

    def empty(self) -> None:
        """Delete all tasks and sessions, so that a supervisor finds nothing to start."""
        Task.objects.all().delete()

    def stop(self, session: TaskSession) -> None:
        """Stop a session and end all processes of it."""
        intents.request_stop(session.id, self.user)
        executions = ExecutorRunning.objects.filter(session=session)
        try:
            eventually(lambda: executions.get().status == "stopped", timeout=30, describe="the session is stopped")
        finally:
            for execution in executions:
                identity.kill_all(identity.find_marked(str(execution.id)), 10)

    def fill(self, fleet: Sequence[FakeAgentctl], **session: Any) -> None:
        """Create a session with a ready execution for each member, and delete all other sessions."""
        self.empty()
        tasks = [self.task(f"Task {number}") for number in range(len(fleet))]
        Task.objects.bulk_create(tasks)
        sessions = [self._session(one, task, session) for one, task in zip(fleet, tasks, strict=True)]
        TaskSession.objects.bulk_create(sessions)
        pairs = zip(fleet, sessions, strict=True)
        ExecutorRunning.objects.bulk_create([self._execution(one, session) for one, session in pairs])

    @staticmethod
    def end(session_ids: Iterable[uuid.UUID]) -> None:
        """Mark sessions as completed, with stopped executions."""
        ended = list(session_ids)
        for start in range(0, len(ended), AT_ONCE):
            some = ended[start : start + AT_ONCE]
            TaskSession.objects.filter(id__in=some).update(state=SessionState.COMPLETED)
            ExecutorRunning.objects.filter(session_id__in=some).update(status=ExecutorRunning.Status.STOPPED)

    def _session(self, one: FakeAgentctl, task: Task, values: dict[str, Any]) -> TaskSession:
        return TaskSession(
            id=one.session_id,
            task=task,
            agent_profile=self.profile,
            executor=self.executor,
            agent_execution_id=one.execution_id,
            owner=self.user,
            launch_id="fake",
            **{"state": SessionState.WAITING_FOR_INPUT, **values},
        )

    def _execution(self, one: FakeAgentctl, session: TaskSession) -> ExecutorRunning:
        return ExecutorRunning(
            id=one.execution_id,
            session=session,
            task=session.task,
            executor=self.executor,
            runtime=self.executor.runtime,
            host_id=identity.host_id(),
            last_seen_at=timezone.now() - (timedelta() if one.behaviour == "answers" else SILENT_FOR),
            agentctl_url=one.url,
            auth_token=one.token,
            state={"process": dict(one.process)} if one.process else {},
            resume_token=f"conversation of {one.session_id}",
            status=ExecutorRunning.Status.READY,
            workspace_path=self.worktree,
            worktree_path=self.worktree,
            worktree_branch="bench",
        )


def _make_repository(path: Path) -> None:
    path.mkdir()
    run_git(path, "init", "--quiet", "--initial-branch=main")
    author = ("-c", "user.name=Bench", "-c", "user.email=bench@example.invalid")
    run_git(path, *author, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message=First")


@contextmanager
def fleet_of(
    count: int, base: str, *, refusing: int = 0, hanging: int = 0, at_sockets: bool = True
) -> Iterator[list[FakeAgentctl]]:
    """Yield a fake fleet in a separate process, on Unix sockets like agentctls, or on TCP addresses."""
    options = {"count": count, "base": base, "port": _free_port(), "refusing": refusing, "hanging": hanging}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with (
        tempfile.TemporaryDirectory(prefix="kandev-fleet-") as directory,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_agentctl", *words, *["--directory", directory] * at_sockets],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield [FakeAgentctl(**one) for one in json.loads(process.stdout.readline())]
        finally:
            process.send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
