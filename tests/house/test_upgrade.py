"""An upgrade from the release with one app, while its web, worker and remote host run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.drills.deployment import ROOT, Session
from tests.drills.session_steps import wait_until_talking
from tests.executors.repositories import make_repository
from tests.history import project_at
from tests.remote.deployment import RemoteDeployment
from tests.waiting import eventually

pytestmark = pytest.mark.database

RELEASE: Final = "57684c0"
JOBS: Final = ("maintenance.maintain", "notifications.notify", "notifications.give", "workflows.start_due")
QUEUE_JOB: Final = """
import uuid
from django_q.tasks import async_task
path = "sessions_app.tasks.JOB"
async_task(path, *([uuid.uuid4()] if path.endswith("give") else []))
"""
WRITE_HISTORY: Final = """
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from sessions_app.models import Workflow
row = Workflow.objects.get()
kind = ContentType.objects.get_for_model(Workflow)
LogEntry.objects.create(user=User.objects.get(), content_type=kind, object_id=row.pk, object_repr="x", action_flag=2)
"""


class Upgrade:
    """A deployment of the old release with a local and a remote executor, and its upgrade."""

    def __init__(self, home: Path):
        self.deployment = RemoteDeployment(home)
        self.older = project_at(RELEASE, home / "older")
        self.executor_on_host = ""

    def begin(self) -> None:
        """Start the release: database, host, web, supervisor and worker."""
        deployment = self.deployment
        deployment.code = deployment.machine.code = self.older
        deployment.make()
        make_repository(deployment.repository)
        deployment.change("UPDATE repositories SET path = ?", str(deployment.repository))
        deployment.machine.start()
        self.executor_on_host = deployment.add_machine()
        deployment.serve()

    def migrate(self) -> None:
        """Run the migrations of the new code."""
        self.run(ROOT, "migrate", "--verbosity", "0")

    def run(self, code: Path, *command: str) -> None:
        """Run a management command of the old or the new code."""
        self.deployment.code = code
        done = self.deployment.manage(*command)
        assert done.returncode == 0, done.stderr

    def queue_by_old_code(self, job: str) -> None:
        """Queue a job of the worker by its dotted path, as the release did."""
        self.run(self.older, "shell", "-v", "0", "-c", QUEUE_JOB.replace("JOB", job))

    def queued_jobs(self) -> set[int]:
        """Return the ids of the jobs that are queued or running; only failures leave a result row."""
        assert self.deployment.rows("SELECT func, result FROM django_q_task") == []
        return {row["id"] for row in self.deployment.rows("SELECT id FROM django_q_ormq")}

    def content_types(self) -> list[dict[str, Any]]:
        """Return the content types of workflows, under whichever label."""
        return self.deployment.rows(
            "SELECT id, app_label FROM django_content_type WHERE model = 'workflow' ORDER BY id"
        )


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[Upgrade]:
    made = Upgrade(tmp_path)
    try:
        yield made
    finally:
        made.deployment.close()


def completed_turns(session: Session) -> int:
    return session.names().count("session.run.completed")


def test_upgrade_under_running_processes_loses_no_work(upgrade: Upgrade) -> None:
    deployment = upgrade.deployment
    upgrade.begin()
    here = deployment.start_session("work 6")
    far = deployment.start_session("work 6", executor=upgrade.executor_on_host)
    wait_until_talking(here)
    wait_until_talking(far)
    agentctls = [session.execution["pid"] for session in (here, far)]
    deployment.api("POST", "workflows/", {"team": deployment.seeded["team"], "name": "flow", "text": "nodes: []"})

    # The database is new, and every running process is old.
    upgrade.migrate()
    (renamed,) = upgrade.content_types()
    assert renamed["app_label"] == "workflows"
    assert [row["name"] for row in deployment.api("GET", "workflows/")["results"]] == ["flow"]
    assert deployment.api("GET", "webhooks/")["results"] == []
    here.prompt("work 1")
    upgrade.queue_by_old_code("workflows.start_due")
    eventually(lambda: not upgrade.queued_jobs(), timeout=60, describe="the old worker has done the jobs")
    upgrade.run(upgrade.older, "shell", "-v", "0", "-c", WRITE_HISTORY)
    assert [row["app_label"] for row in upgrade.content_types()] == ["workflows", "sessions_app"]

    deployment.kill_server()
    # A scheduled job that the killed worker had just taken stays reserved until django-q2's retry, after 15 minutes.
    taken = upgrade.queued_jobs()
    for job in JOBS:
        upgrade.queue_by_old_code(job)
    queued = upgrade.queued_jobs() - taken
    assert len(queued) == len(JOBS)
    upgrade.migrate()
    assert upgrade.content_types() == [renamed]
    (history,) = deployment.rows("SELECT content_type_id FROM django_admin_log")
    assert history["content_type_id"] == renamed["id"]

    swept = deployment.recover("--strict")
    assert {row["receipt_kind"] for row in swept["sessions"]} == {"reattached"}
    deployment.serve()
    eventually(lambda: completed_turns(here) == 2, timeout=90, describe="both turns on this machine have completed")
    eventually(lambda: completed_turns(far) == 1, timeout=90, describe="the turn on the host has completed")
    eventually(
        lambda: not queued & upgrade.queued_jobs(),
        timeout=90,
        describe="the new worker does the jobs of the old release",
    )
    for session, agentctl in zip((here, far), agentctls, strict=True):
        assert session.execution["pid"] == agentctl
        assert session.agent_text() == session.agent_log()
        assert "session.run.interrupted" not in session.names()
