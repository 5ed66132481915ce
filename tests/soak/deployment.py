"""The deployment of the soak test: a real web, supervisor and worker, real agents, and hundreds of fake agentctls."""

from __future__ import annotations

import json
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final

from tests.chaos.control_plane import ControlPlane, Role
from tests.chaos.deployment import ChaosDeployment
from tests.environment import DATABASE_URL
from tests.soak.fake_runtime_process import ADDRESS, NO_DATABASE

MAX_RESTARTS: Final = "50"
"""Failed starts that are allowed, for sessions that are killed again and again."""
START_TIMEOUT: Final = "180"
"""Seconds for a start and its prompt, on a machine that is busy with other restarts."""
RESTART_DELAY: Final = "0.5"
"""Seconds of the first backoff after a failed start. It grows to sixty times that, and a session with the longest
backoff must still restart before the soak test stops waiting."""
CREATE_SESSIONS_SCRIPT: Final = """
import json, sys
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.models import Repository, Task, TaskSession

team, user = Group.objects.get(id=TEAM), get_user_model().objects.order_by("id").first()
repository = Repository.objects.get(id="REPOSITORY")
profile = AgentProfile.objects.create(name="fake agentctl", agent_type="demo")
executor = Executor.objects.create(name="fake agentctls", runtime="fake_agentctls")
created = []
for number in range(COUNT):
    task = Task.objects.create(title=f"Soak {number}", team=team, repository=repository)
    session = TaskSession.objects.create(
        task=task, agent_profile=profile, executor=executor, owner=user, state="WAITING_FOR_INPUT", policy="auto"
    )
    execution = ExecutorRunning.objects.create(
        session=session, task=task, executor=executor, runtime="fake_agentctls", status="ready"
    )
    TaskSession.objects.filter(id=session.id).update(agent_execution_id=execution.id)
    created.append([str(task.id), str(session.id), str(execution.id)])
print(json.dumps(created))
"""


def remaining_processes(home: Path) -> list[str]:
    """Return the processes of a deployment in ``home``, found by command line, environment or working directory."""
    known = str(home).encode()
    return [
        f"process {path.name} still runs"
        for path in Path("/proc").glob("[0-9]*")
        if known in _process_description(path)
    ]


def _process_description(process: Path) -> bytes:
    try:
        directory = bytes((process / "cwd").readlink())
        return b"\n".join((directory, (process / "cmdline").read_bytes(), (process / "environ").read_bytes()))
    except OSError:  # it has ended, or belongs to another user
        return b""


class SoakControlPlane(ControlPlane):
    """A control plane whose web and supervisor have the runtime of the fake agentctls."""

    def _argv(self, role: Role) -> list[str]:
        argv = super()._argv(role)
        if role == "web":
            return ["-m", "tests.soak.fake_runtime_process", "web", *argv[2:]]
        return ["-m", "tests.soak.fake_runtime_process", "supervisor"] if role == "supervisor" else argv

    def _died(self, role: Role, code: int) -> None:
        """Count no failure if a process cannot use the database when it starts: the test also stops the database."""
        expected = role != "web" and code == NO_DATABASE and DATABASE_URL in self.deployment.env
        super()._died(role, 0 if expected else code)

    def pids(self) -> dict[str, int]:
        """Return the pids of the running processes by role."""
        with self._lock:
            return {role: one.pid for role, one in self._processes.items() if one.poll() is None}


class FakeSession:
    """A session on a fake agentctl, with its API path and its ids."""

    behaviour = "fake agentctl"

    def __init__(self, deployment: SoakDeployment, task_id: str, session_id: str, execution_id: str):
        self.deployment, self.task_id, self.id, self.execution_id = deployment, task_id, session_id, execution_id
        self.path = f"tasks/{task_id}/sessions/{session_id}"

    @property
    def key(self) -> str:
        """Return its id as 32 hexadecimal digits, as the database stores it."""
        return uuid.UUID(self.id).hex


class SoakDeployment(ChaosDeployment):
    """A deployment with fake agentctls at ``url``."""

    def __init__(self, home: Path, url: str, **settings: str):
        defaults = {
            "KANDEV_MAX_RESTARTS": MAX_RESTARTS,
            "KANDEV_START_TIMEOUT": START_TIMEOUT,
            "KANDEV_RESTART_DELAY": RESTART_DELAY,
        }
        super().__init__(home, **defaults, **settings)
        self.env |= {ADDRESS: url, "DJANGO_SETTINGS_MODULE": "kandev.settings"}
        self.fakes_url = url
        self.control_plane: SoakControlPlane = SoakControlPlane(self)

    def create_sessions(self, count: int) -> list[FakeSession]:
        """Create ``count`` sessions that should run, on fake agentctls that are not started yet."""
        values = {"TEAM": str(self.seeded["team"]), "REPOSITORY": str(self.seeded["repository"]), "COUNT": str(count)}
        script = CREATE_SESSIONS_SCRIPT
        for name, value in values.items():
            script = script.replace(name, value)
        completed = self.manage("shell", "-v", "0", "-c", script, timeout=300)
        assert completed.returncode == 0, completed.stderr
        return [FakeSession(self, *one) for one in json.loads(completed.stdout.strip().splitlines()[-1])]

    def request_fakes(self, path: str, *, post: bool = False) -> Any:
        """Send a request to the process of the fake agentctls and return its JSON answer."""
        request = urllib.request.Request(f"{self.fakes_url}/{path}", method="POST" if post else "GET")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
