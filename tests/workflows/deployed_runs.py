"""Workflow runs in a deployment of real processes, requested over the API, and their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.drills.deployment import ROOT, Deployment
from tests.waiting import eventually

END_STATES: Final = ("succeeded", "failed", "cancelled")
EXAMPLES: Final = ROOT / "docs/examples/workflows"


class Run:
    """One run, seen through the API and the database; nothing is cached."""

    def __init__(self, deployed: DeployedWorkflows, run_id: str):
        self.deployed, self.id = deployed, run_id

    def document(self) -> dict[str, Any]:
        """Return the answer of ``GET workflow-runs/{id}/``."""
        answer: dict[str, Any] = self.deployed.deployment.api("GET", f"workflow-runs/{self.id}/")
        return answer

    def wait_for_end(self, timeout: float = 180) -> dict[str, Any]:
        """Wait up to ``timeout`` seconds for the end of the run and return its document."""
        last: dict[str, Any] = {}

        def is_over() -> bool:
            last.update(self.document())
            return last["state"] in END_STATES

        try:
            eventually(is_over, timeout=timeout, describe="the run has ended")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last}\n{self.deployed.deployment.log()[-3000:]}") from None
        return last

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return its node runs by path, except for skipped ones."""
        return {one["path"]: one for one in self.document()["nodes"] if one["state"] != "skipped"}

    def sessions(self) -> list[dict[str, Any]]:
        """Return the session rows of its agents, oldest first."""
        return self.deployed.deployment.rows(
            "SELECT s.* FROM task_sessions s JOIN workflow_runs r ON r.task_id = s.task_id WHERE r.id = ? "
            "AND s.has_agent ORDER BY s.created_at",
            self.id.replace("-", ""),
        )

    def workspace(self) -> dict[str, Any]:
        """Return the row of its workspace session."""
        (found,) = self.deployed.deployment.rows(
            "SELECT s.* FROM task_sessions s JOIN workflow_runs r ON r.workspace_id = s.id WHERE r.id = ?",
            self.id.replace("-", ""),
        )
        return found

    def prompts(self) -> list[dict[str, Any]]:
        """Return the prompts of all its sessions, oldest first."""
        return self.deployed.deployment.rows(
            "SELECT p.* FROM session_prompts p JOIN task_sessions s ON s.id = p.session_id "
            "JOIN workflow_runs r ON r.task_id = s.task_id WHERE r.id = ? ORDER BY p.id",
            self.id.replace("-", ""),
        )


class DeployedWorkflows:
    """A served deployment in which runs are started, with agents that need no API key."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.home = deployment.home / "agents"
        self.home.mkdir()
        self._profiles: dict[str, str] = {}

    def profile(self, name: str, agent_type: str = "demo", **values: Any) -> str:
        """Return the id of an agent profile, created on first use."""
        if name not in self._profiles:
            home = self.home / name.replace(" ", "-")
            env = {"KANDEV_DEMO_AGENT_HOME": str(home), "STANDIN_HOME": str(home), "PYTHONPATH": str(ROOT)}
            env |= values.pop("env", {})
            body = {"name": name, "agent_type": agent_type, "env": env, **values}
            self._profiles[name] = str(self.deployment.api("POST", "agent-profiles/", body)["id"])
        return self._profiles[name]

    def scripted(self, name: str, says: Sequence[str], rules: Sequence[tuple[str, str]] = (), **values: Any) -> str:
        """Return a profile of a fake Claude Code whose answers are scripted."""
        script = json.dumps({"says": list(says), "if": list(rules)})
        return self.stand_in(name, "claude_cli", "claude", env={"STANDIN_SCRIPT": script}, **values)

    def stand_in(self, name: str, agent_type: str, module: str, **values: Any) -> str:
        """Return a profile whose agent is a module of ``tests.agents.standins``."""
        argv = [sys.executable, "-S", "-m", f"tests.agents.standins.{module}"]
        return self.profile(name, agent_type, command=argv, **values)

    def start(
        self, text: str, inputs: str = "T", *, name: str = "", files: Mapping[str, str] | None = None, profile: str = ""
    ) -> Run:
        """Save ``text`` as a workflow and start a run of it with the trigger text ``inputs``."""
        seeded = self.deployment.seeded
        body = {
            "team": seeded["team"],
            "text": text,
            "name": name or f"workflow {len(list(self._made()))}",
            "files": dict(files or {}),
            "repository": seeded["repository"],
            "executor": seeded["executor"],
            "agent_profile": profile or self.profile("demo"),
        }
        made = self.deployment.api("POST", "workflows/", body)
        assert made["is_valid"], made["problems"]
        run = self.deployment.api("POST", f"workflows/{made['id']}/runs/", {"text": inputs})
        return Run(self, str(run["id"]))

    def _made(self) -> list[dict[str, Any]]:
        return self.deployment.rows("SELECT id FROM workflows")


def example(name: str) -> str:
    """Return the text of a shipped example."""
    return Path(EXAMPLES / f"{name}.yaml").read_text()
