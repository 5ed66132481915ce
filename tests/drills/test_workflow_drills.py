"""A workflow run survives the death of all processes: finished nodes do not run again, and one session continues."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.process import identity
from tests.drills.deployment import Deployment
from tests.waiting import eventually
from tests.workflows.workflow_builder import node, workflow

ITERATIONS = 5
START = """
import json, sys
from django.contrib.auth.models import Group, User
from executors_app.models import AgentProfile
from sessions_app.workflows.services import runs
from sessions_app.models import Repository
given = json.loads({given!r})
profile = AgentProfile.objects.create(name="drill", agent_type="demo", env={{"KANDEV_DEMO_AGENT_HOME": given["home"]}})
run, _ = runs.start_run(
    User.objects.get(), team=Group.objects.get(), text=given["text"], repository=Repository.objects.get(),
    agent_profile=profile,
)
print(json.dumps(str(run.id)))
"""
ASK = """
import json
from {module} import {models}
from sessions_app.prompts import services as prompts; from sessions_app.workflows.services import runs
from sessions_app.workflows.services.run_documents import run_document
{code}
"""
CANCEL = """
from django.contrib.auth.models import User
runs.cancel_run(User.objects.get(), WorkflowRun.objects.get())
print("1")
"""


def looping(work: str) -> str:
    """Return a workflow with five iterations: an agent that keeps its session, and a script that appends a line."""
    slots = [{"name": "number", "type": "iteration"}, {"name": "on", "type": "continue"}]
    return workflow(
        [
            node("loop", "loop", maxIterations=ITERATIONS, dockSlots=slots),
            node("coder", "agent", "loop", prompt=work, resumable=True, timeout=300),
            node("note", "shell", "loop", script='echo "$INPUT_NUMBER" >> notes.txt', inputs=["number"], timeout=60),
            node("always", "constant", "loop", value=True, valueType="boolean"),
        ],
        ["coder > note.input", "loop@dock:number:output > note.number", "always.value > loop@dock:on:input"],
    )


class Drill:
    """One workflow run of a deployment."""

    def __init__(self, deployment: Deployment, text: str):
        self.deployment = deployment
        self.home = deployment.home / "agent"
        self.home.mkdir()
        code = START.format(given=json.dumps({"text": text, "home": str(self.home)}))
        self.id = str(self.shell(code))

    def shell(self, code: str) -> Any:
        done = self.deployment.manage("shell", "-v", "0", "-c", code)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    @property
    def row(self) -> dict[str, Any]:
        return self.deployment.rows("SELECT * FROM workflow_runs")[0]

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        rows = self.deployment.rows("SELECT * FROM workflow_node_runs ORDER BY position")
        return {row["path"]: row for row in rows}

    @property
    def agents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.deployment.rows("SELECT * FROM task_sessions ORDER BY created_at")
        return [row for row in found if row["has_agent"]]

    def is_in(self, path: str) -> bool:
        """Return whether a node is running and its agent is in its turn."""
        row = self.nodes.get(path)
        stored = row and self.deployment.rows(
            "SELECT state FROM session_prompts WHERE message_id = ?", row["message_id"]
        )
        return bool(stored and stored[0]["state"] == "delivered")

    def kill_everything(self) -> None:
        """Kill the control plane, every agentctl and every agent."""
        self.deployment.kill_server()
        for row in self.deployment.rows("SELECT id FROM executors_running"):
            for one in identity.find_marked(_dashed(row["id"])):
                identity.send_signal(one, signal.SIGKILL)

    def send_again(self) -> None:
        """Resend all held prompts, as a user does."""
        code = """
for one in Prompt.objects.filter(state__in=["held"]):
    prompts.resend(one.session_id, one.message_id, None)
print("1")
"""
        self.shell(ASK.format(module="sessions_app.models", models="Prompt", code=code))

    def wait_for_end(self) -> dict[str, Any]:
        """Wait for the end of the run, resending held prompts."""

        def is_over() -> bool:
            row = self.row
            if row["state"] in ("succeeded", "failed", "cancelled"):
                return True
            if any(one["waiting_for"] == "user" for one in self.nodes.values()):
                self.send_again()
            return False

        eventually(is_over, timeout=180, describe="the run has ended")
        return self.row

    @property
    def notes(self) -> list[str]:
        """Return the lines that the scripts appended in the worktree of the run."""
        (path,) = {row["worktree_path"] for row in self.agents}
        return (Path(path) / "notes.txt").read_text().split()


def _dashed(key: str) -> str:
    return str(uuid.UUID(key))


def check(drill: Drill) -> None:
    """Check a correct end: each iteration ran once, in order, in one session, and no prompt was sent twice."""
    row = drill.wait_for_end()
    assert (row["state"], row["error"]) == ("succeeded", "")
    assert drill.notes == [str(number) for number in range(1, ITERATIONS + 1)]
    assert len(drill.agents) == 1
    expected = {f"loop[{number}]/{name}" for number in range(1, ITERATIONS + 1) for name in ("coder", "note", "always")}
    assert expected <= drill.nodes.keys()
    stored = drill.deployment.rows("SELECT * FROM session_prompts WHERE kind = 'user' AND resent_as_id IS NULL")
    assert len(stored) == ITERATIONS
    assert {one["desired_state"] for one in drill.deployment.rows("SELECT * FROM task_sessions")} == {"stopped"}


@pytest.mark.any_database
def test_run_killed_with_all_its_agents_in_mid_loop_ends_correctly(deployment: Deployment) -> None:
    deployment.serve()
    drill = Drill(deployment, looping("remember walrus\nwork 2"))
    eventually(lambda: drill.is_in("loop[3]/coder"), timeout=120, describe="the third iteration's agent works")
    drill.kill_everything()
    done = {path: row["ended_at"] for path, row in drill.nodes.items() if row["ended_at"]}
    deployment.serve()
    check(drill)
    assert {path: drill.nodes[path]["ended_at"] for path in done} == done, "a finished node ran again"


@pytest.mark.any_database
@pytest.mark.parametrize("point", ["workflow.step_written:4", "workflow.step_committed:3", "workflow.job_asked:2"])
def test_supervisor_killed_at_a_crash_point_loses_nothing(deployment: Deployment, point: str) -> None:
    reached = deployment.home / "reached"
    reached.mkdir()
    deployment.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached)})
    drill = Drill(deployment, looping("work 0.2"))
    name = point.partition(":")[0]
    eventually((reached / name).exists, timeout=120, describe=f"the supervisor dies at {name}")
    deployment.kill_server()
    deployment.serve()
    check(drill)


@pytest.mark.any_database
def test_cancel_interrupted_by_a_supervisor_crash_is_completed_by_the_next(
    deployment: Deployment,
) -> None:
    reached = deployment.home / "reached"
    reached.mkdir()
    deployment.serve({"KANDEV_CRASH_AT": "workflow.jobs_ended", "KANDEV_CRASH_DIR": str(reached)})
    drill = Drill(deployment, workflow([node("note", "shell", script=f"touch {deployment.home}/begun; sleep 600")]))
    eventually((deployment.home / "begun").exists, timeout=120, describe="the script runs")
    execution = _dashed(deployment.rows("SELECT id FROM executors_running")[0]["id"])

    drill.shell(ASK.format(module="sessions_app.workflows.models", models="WorkflowRun", code=CANCEL))
    eventually((reached / "workflow.jobs_ended").exists, timeout=60, describe="the supervisor dies")
    deployment.kill_server()
    deployment.serve()

    row = drill.wait_for_end()
    assert (row["state"], row["error"]) == ("cancelled", "a user cancelled it")
    eventually(lambda: not identity.find_marked(execution), timeout=60, describe="no process of the run is left")
