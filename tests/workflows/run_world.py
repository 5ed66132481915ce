"""Workflow runs in the database, driven as by a supervisor, with scripted agents and a fake agentctl."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group, User
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from executors_app.wire.errors import AgentctlRefused, AgentctlUnreachable
from executors_app.wire.protocol import Code, Job
from sessions_app.models import Prompt, Repository, TaskSession
from sessions_app.supervisor.database_outage import DatabaseOutage
from sessions_app.workflows.driver.driver import WorkflowDriver
from sessions_app.workflows.driver.run_snapshot import RunSnapshot
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import runs
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, execution_of, fresh, make_user

Script = Mapping[str, Any]


class InlineDatabase:
    """Database thread that uses the test's own connection instead."""

    async def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    def close(self) -> None:
        """Do nothing; there is no thread to close."""


@dataclass
class Scripts:
    """Fake agentctl for jobs and files; ``answer`` returns the result of a script, or None while it runs."""

    answer: Callable[[Script], Mapping[str, Any] | None] = lambda script: {"exit_code": 0, "stdout": "done\n"}
    begun: dict[str, Script] = field(default_factory=dict)
    requested_jobs: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    is_up: bool = True

    async def start_job(self, job_id: str, request: Script, *, wait: float = 0.0, tail: int | None = None) -> Job:
        self._check()
        self.requested_jobs.append(job_id)
        self.begun.setdefault(job_id, request)
        return await self.job(job_id)

    async def job(self, job_id: str, *, wait: float = 0.0, tail: int | None = None) -> Job:
        self._check()
        if job_id not in self.begun:
            raise AgentctlRefused("There is none.", status=404, refusal=Code.JOB_UNKNOWN)
        ended = self.answer(self.begun[job_id])
        state = {"state": "running"} if ended is None else {"state": "ended", **ended}
        job = {"stdout": "so far\n", "stderr": "", "exit_code": None, "error": "", "truncated": False, **state}
        return cast("Job", {"job_id": job_id, "started_at": "", "ended_at": None, **job})

    async def cancel_job(self, job_id: str) -> Job:
        self.cancelled.append(job_id)
        return await self.job(job_id)

    async def read_file(self, path: str) -> dict[str, Any]:
        self._check()
        if path not in self.files:
            raise AgentctlRefused("There is no such file.", status=404, refusal=Code.NOT_FOUND)
        return {"path": path, "content": self.files[path], "binary": False, "truncated": False}

    def _check(self) -> None:
        if not self.is_up:
            raise AgentctlUnreachable


class TestDriver(WorkflowDriver):
    """Workflow driver whose workspaces all reach the fake agentctl ``scripts``."""

    __test__ = False

    def __init__(self, name: str, scripts: Scripts):
        here: Any = InlineDatabase()
        registry: Any = SimpleNamespace(boot_id=name, outage=DatabaseOutage(here))
        super().__init__(registry, database=here)
        self._scripts = scripts

    def _client(self, seen: RunSnapshot) -> Any:
        return self._scripts


class World:
    """One run of a text, its user and its profile."""

    def __init__(self, text: str, scripts: Scripts | None = None, **values: Any):
        self.scripts = scripts or Scripts()
        self.user = staff()
        values = {"team": team(), "repository": repository(), "executor": place(), **values}
        self.profile, _ = AgentProfile.objects.get_or_create(name="Demo", agent_type="demo")
        self.run, _ = runs.start_run(
            self.user,
            text=text,
            **{"agent_profile": self.profile, **values},
        )
        self.drivers: dict[str, TestDriver] = {}
        self._journals: dict[uuid.UUID, Journal] = {}

    def drive(self, times: int = 1, supervisor: str = "me") -> WorkflowRun:
        """Let a supervisor drive its runs ``times`` times, and return the run anew."""
        driver = self.drivers.setdefault(supervisor, TestDriver(supervisor, self.scripts))

        async def passes() -> None:
            for _ in range(times):
                await driver.drive_runs()
                await driver.settle()

        async_to_sync(passes)()
        return fresh(self.run)

    def __getitem__(self, path: str) -> NodeRun:
        return self.run.node_runs.get(path=path)

    @property
    def states(self) -> dict[str, str]:
        return dict(self.run.node_runs.order_by("position").values_list("path", "state"))

    @property
    def agents(self) -> list[TaskSession]:
        """Return the run's sessions with agents, in the order in which they started."""
        return list(TaskSession.objects.filter(task=self.run.task_id, has_agent=True).order_by("created_at"))

    @property
    def prompts(self) -> list[str]:
        return list(Prompt.objects.filter(session__task=self.run.task_id).order_by("id").values_list("text", flat=True))

    def prompt(self, path: str) -> Prompt:
        row = self[path]
        return Prompt.objects.get(session=row.session, message_id=row.message_id)

    def ingest(self, session: TaskSession, *lines: Mapping[str, Any]) -> None:
        ingest(session, [dict(line) for line in lines])

    def journal(self, session: TaskSession) -> Journal:
        """Return the journal of the session's agent, and mark the agent as running on first use."""
        if session.id not in self._journals:
            session.intents.update(done_at=timezone.now(), outcome="fresh", claimed_generation=1)
            change(execution_of(session), status="ready", owner=MINE.owner, generation=1, resume_token="it")
            change(session, state="WAITING_FOR_INPUT", launch_id=f"launch-{session.id}")
            self._journals[session.id] = Journal()
        return self._journals[session.id]

    def begin_turn(self, prompt: Prompt) -> Journal:
        journal = self.journal(prompt.session)
        self.ingest(prompt.session, *journal.turn_begins(prompt.message_id, prompt.text))
        return journal

    def answer(self, prompt: Prompt, *says: str) -> None:
        """Journal a turn of ``prompt`` that completes with the answer ``says``."""
        journal = self.begin_turn(prompt)
        self.ingest(prompt.session, *journal.says(*says), journal.completes(prompt.message_id))

    def answer_all(self, answer: Callable[[list[str]], str]) -> None:
        """Answer every queued prompt; ``answer`` gets the prompts of its session so far."""
        for prompt in Prompt.objects.filter(session__task=self.run.task_id, state="queued").order_by("id"):
            earlier = prompt.session.prompts.filter(id__lte=prompt.id).order_by("id").values_list("text", flat=True)
            self.answer(prompt, answer(list(earlier)))

    def run_to_end(
        self, answer: Callable[[list[str]], str] = lambda prompts: prompts[-1], passes: int = 60
    ) -> WorkflowRun:
        for _ in range(passes):
            run = self.drive()
            if run.is_over:
                return run
            self.answer_all(answer)
        raise AssertionError(f"the run has not ended: {self.states}")


def team() -> Group:
    return Group.objects.get_or_create(name="team")[0]


def repository() -> Repository:
    return Repository.objects.get_or_create(team=team(), path="/srv/repository", defaults={"name": "it"})[0]


def place(runtime: str = "local_standalone") -> Executor:
    return Executor.objects.get_or_create(name=runtime, defaults={"runtime": runtime})[0]


def staff() -> User:
    return change(make_user("root"), is_staff=True)
