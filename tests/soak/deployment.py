"""The deployment of a soak: a real web, supervisor and worker, real agents, and hundreds of fake agentctls."""

from __future__ import annotations

import json
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final

from tests.chaos.control_plane import ControlPlane, Role
from tests.chaos.deployment import ChaosDeployment
from tests.environment import DATABASE_URL
from tests.soak.fake_runtime_process import ADDRESS, NO_DATABASE

MANY: Final = "50"
"""Starts that may fail, for whoever is killed again and again."""
PATIENT: Final = "180"
"""Seconds of a start and its prompt: a machine that is busy with deaths is no broken agent."""
SOON: Final = "0.5"
"""Seconds of the first pause after a start that failed. Pauses grow to sixty times that; who is killed again and again
has the longest, and shall be back while the soak still waits."""
SEED: Final = """
import json, sys
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.models import Repository, Task, TaskSession

team, user = Group.objects.get(id=TEAM), get_user_model().objects.order_by("id").first()
repository = Repository.objects.get(id="REPOSITORY")
profile = AgentProfile.objects.create(name="fake agentctl", agent_type="demo")
executor = Executor.objects.create(name="fake agentctls", runtime="fake_agentctls")
made = []
for number in range(COUNT):
    task = Task.objects.create(title=f"Soak {number}", team=team, repository=repository)
    session = TaskSession.objects.create(
        task=task, agent_profile=profile, executor=executor, owner=user, state="WAITING_FOR_INPUT", policy="auto"
    )
    execution = ExecutorRunning.objects.create(
        session=session, task=task, executor=executor, runtime="fake_agentctls", status="ready"
    )
    TaskSession.objects.filter(id=session.id).update(agent_execution_id=execution.id)
    made.append([str(task.id), str(session.id), str(execution.id)])
print(json.dumps(made))
"""


def left_running(home: Path) -> list[str]:
    """Processes of whatever was deployed in ``home``: by their words, their environment or where they are."""
    known = str(home).encode()
    return [
        f"process {path.name} still runs" for path in Path("/proc").glob("[0-9]*") if known in _description_of(path)
    ]


def _description_of(process: Path) -> bytes:
    try:
        where = bytes((process / "cwd").readlink())
        return b"\n".join((where, (process / "cmdline").read_bytes(), (process / "environ").read_bytes()))
    except OSError:  # it has ended, or is somebody else's
        return b""


class SoakControlPlane(ControlPlane):
    """The same processes; those that run sessions know the fake agentctls."""

    def _argv(self, role: Role) -> list[str]:
        argv = super()._argv(role)
        if role == "web":
            return [sys.executable, "-m", "tests.soak.fake_runtime_process", "web", *argv[3:]]
        return [sys.executable, "-m", "tests.soak.fake_runtime_process", "supervisor"] if role == "supervisor" else argv

    def _died(self, role: Role, code: int) -> None:
        """Who begins while the database is away says so and is started again: that is no failure where it dies, too."""
        expected = role != "web" and code == NO_DATABASE and DATABASE_URL in self.deployment.env
        super()._died(role, 0 if expected else code)

    def pids(self) -> dict[str, int]:
        """By role, of those that live."""
        with self._lock:
            return {role: one.pid for role, one in self._processes.items() if one.poll() is None}


class FakeSession:
    """One of the many: where it is asked, and where it runs."""

    behaviour = "fake agentctl"

    def __init__(self, world: SoakDeployment, task_id: str, session_id: str, execution_id: str):
        self.world, self.task_id, self.id, self.execution_id = world, task_id, session_id, execution_id
        self.path = f"tasks/{task_id}/sessions/{session_id}"

    @property
    def key(self) -> str:
        """Its id as the database writes it."""
        return uuid.UUID(self.id).hex


class SoakDeployment(ChaosDeployment):
    """One Kandev with fake agentctls at ``url``."""

    def __init__(self, home: Path, url: str, **settings: str):
        patience = {"KANDEV_MAX_RESTARTS": MANY, "KANDEV_START_TIMEOUT": PATIENT, "KANDEV_RESTART_DELAY": SOON}
        super().__init__(home, **patience, **settings)
        self.env |= {ADDRESS: url, "DJANGO_SETTINGS_MODULE": "kandev.settings"}
        self.fakes_url = url
        self.control_plane: SoakControlPlane = SoakControlPlane(self)

    def fill(self, count: int) -> list[FakeSession]:
        """So many sessions that should run, on fake agentctls that nobody has started yet."""
        words = {"TEAM": str(self.seeded["team"]), "REPOSITORY": str(self.seeded["repository"]), "COUNT": str(count)}
        script = SEED
        for name, value in words.items():
            script = script.replace(name, value)
        done = self.manage("shell", "-v", "0", "-c", script, timeout=300)
        assert done.returncode == 0, done.stderr
        return [FakeSession(self, *one) for one in json.loads(done.stdout.strip().splitlines()[-1])]

    def request_fakes(self, what: str, *, post: bool = False) -> Any:
        """An answer of their process."""
        request = urllib.request.Request(f"{self.fakes_url}/{what}", method="POST" if post else "GET")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
