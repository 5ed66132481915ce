"""The fake fleet and the demo agent start as their command lines say."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app import plugins
from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.bulk_status import StatusTarget, poll_statuses
from executors_app.wire.errors import AgentctlForeign
from tests.services import ROOT
from tests.support.fake_agentctl import FakeFleet, plan_fleet
from tests.waiting import PATIENCE


def test_fleet_command_prints_members_answers_and_exits() -> None:
    argv = [
        sys.executable,
        "-m",
        "tests.support.fake_agentctl",
        "--count",
        "5",
        "--base",
        "127.66.2.1",
        "--port",
        "47014",
    ]
    with subprocess.Popen([*argv, "--refusing", "1"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            fleet = json.loads(process.stdout.readline())
            targets = [StatusTarget(one["execution_id"], one["url"], one["token"]) for one in fleet]
            seen = asyncio.run(poll_statuses(targets, 5, 5))
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert [one["behaviour"] for one in fleet] == ["answers"] * 4 + ["refuses"]
    assert sum(isinstance(answer, dict) for answer in seen.values()) == 4


async def test_fleet_member_accepts_only_its_own_token() -> None:
    first, second = plan_fleet(2, "127.66.3.1", 47015)
    async with FakeFleet([first, second]):
        assert (await AgentctlClient(first.url, first.token, first.execution_id).status())["status"] == "ok"
        with pytest.raises(AgentctlForeign):
            await AgentctlClient(first.url, second.token, first.execution_id).status()


def test_demo_agent_starts_in_any_directory(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the workspace has shadowed a module')")
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
    argv = plugins.agent_type("demo").argv
    done = subprocess.run(
        argv, cwd=tmp_path, input=hello + "\n", capture_output=True, text=True, env={}, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["result"]["protocolVersion"] == 1


def test_custom_agent_has_its_own_command() -> None:
    assert plugins.agent_type("custom_acp").argv == ()
