"""Database rows of one execution without any process."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.models import Task, TaskSession


def make_execution(**fields: Any) -> ExecutorRunning:
    team, _ = Group.objects.get_or_create(name="team")
    task = Task.objects.create(title="Task", team=team)
    profile = AgentProfile.objects.create(name="Demo", agent_type="demo")
    executor, _ = Executor.objects.get_or_create(name="Here", runtime="local_standalone")
    session = TaskSession.objects.create(task=task, agent_profile=profile, executor=executor)
    return ExecutorRunning.objects.create(session=session, task=task, executor=executor, runtime="local", **fields)
