"""The present control plane works with the agentctl of an earlier release, and unknown fields are ignored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.agentctl_answers import check_execution
from executors_app.machine.process import identity
from executors_app.wire.errors import AgentctlForeign, AgentctlOutdated
from executors_app.wire.protocol import GENERATION_HEADER, PROTOCOL_VERSION
from tests.executors.repositories import make_repository
from tests.services import ROOT
from tests.waiting import eventually

RELEASE = ROOT / "tests" / "upgrades" / "1.0.0"
EXECUTION, SESSION = "0c7f1e2a-6d6e-4b2f-9a58-0d3c8f4b1a11", "5b1c9e57-0f3f-4a53-8a1b-7a3c2d9e4f22"
TOKEN = "a token of these tests alone, long enough for anybody"
CONVERSE = """
import asyncio, json, sys
from executors_app.agentctl_client.client import AgentctlClient

async def converse(url, token, execution, home, program):
    client = AgentctlClient(url, token, execution, generation=1)
    start = {"argv": [sys.executable, program], "env": {"KANDEV_DEMO_AGENT_HOME": home}, "cwd": "", "driver": "acp",
             "strategy": "fresh", "mcp_servers": [], "permission_mode": "ask", "launch_id": "first"}
    started = await client.start_agent(start, timeout=60)
    again = await client.start_agent(start, timeout=60)
    prompts = [await client.prompt("m1", "work 1") for _ in range(2)]
    lines = []
    async with client.events(0, "") as stream:
        while not any(line["kind"] == "turn.completed" for line in lines):
            lines += await anext(stream)
    status = await client.status()
    await client.write_file("new.txt", b"new")
    found = {
        "outcomes": [started["outcome"], again["outcome"]],
        "duplicates": [prompt["duplicate"] for prompt in prompts],
        "kinds": sorted({line["kind"] for line in lines}),
        "seqs": [line["seq"] for line in lines] == list(range(1, len(lines) + 1)),
        "state": status["agent"]["state"],
        "token": bool((await client.agent_session())["resume_token"]),
        "files": sorted(entry["name"] for entry in (await client.list_files())["entries"]),
        "git": sorted(await client.git("status")),
        "snapshot": bool(await client.snapshot()),
    }
    await client.shutdown(True, "end")
    print(json.dumps(found))

asyncio.run(converse(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the code of the agentctl of release 1.0.0."""
    code = tmp_path_factory.mktemp("older")
    (wheel,) = RELEASE.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(code)
    return code


def environment_of(code: Path, home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(code), "LANG": "C.UTF-8"}


@contextmanager
def agentctl_of(code: Path, home: Path) -> Iterator[str]:
    """Run an agentctl of that version in a workspace; yield its URL."""
    home.mkdir()
    make_repository(home / "workspace", "README.md", "# Drill\n")
    token, ready = home / "token", home / "ready.json"
    token.touch(0o600)
    token.write_text(TOKEN)
    options = {"workspace": "workspace", "state-dir": "state", "token-file": "token", "ready-file": "ready.json"}
    words = [f"--{name}={home / place}" for name, place in options.items()]
    words += [f"--session-id={SESSION}", f"--execution-id={EXECUTION}"]
    command = [sys.executable, "-P", "-m", "executors_app.agentctl", "serve", *words]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=home, env=environment_of(code, home), stderr=log, start_new_session=True
        )
    try:
        eventually(ready.exists, timeout=60, describe=f"it listens: {(home / 'log').read_text()}")
        yield str(json.loads(ready.read_text())["url"])
    finally:
        identity.kill_all(identity.find_marked(EXECUTION), 10)
        process.kill()
        process.wait(60)


def converse(code: Path, url: str, home: Path) -> dict[str, Any]:
    """Hold a whole conversation with the client of that version."""
    arguments = (url, TOKEN, EXECUTION, str(home / "agent"), str(ROOT / "executors_app" / "demo_agent"))
    command = [sys.executable, "-P", "-W", "error", "-c", CONVERSE, *arguments]
    env = environment_of(code, home)
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(home / 'log').read_text()}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("is_older", [True, False], ids=["older", "present"])
def test_client_can_hold_a_conversation_with_an_agentctl(older: Path, tmp_path: Path, is_older: bool) -> None:
    with agentctl_of(older if is_older else ROOT, tmp_path / "place") as url:
        found = converse(ROOT, url, tmp_path / "place")
    kinds = {"agent.started", "session.created", "prompt.accepted", "prompt.delivered", "message.agent"}
    assert kinds <= set(found.pop("kinds"))
    assert "branch" in found.pop("git")
    assert found == {
        "outcomes": ["created", "created"],
        "duplicates": [False, True],
        "seqs": True,
        "state": "idle",
        "token": True,
        "files": sorted([".git", "README.md", "new.txt"]),
        "snapshot": True,
    }


async def test_agentctl_that_cannot_list_or_search_is_named_as_outdated(older: Path, tmp_path: Path) -> None:
    with agentctl_of(older, tmp_path / "place") as url:
        client = AgentctlClient(url, TOKEN, EXECUTION, generation=1)
        branch = (client.branch_changes("main"), client.branch_hunks("main", ["README.md"], 3))
        for call in (*branch, client.search_files("README")):
            with pytest.raises(AgentctlOutdated, match="newer agentctl"):
                await call


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION, PROTOCOL_VERSION + 1])
def test_neighbouring_versions_are_accepted(version: int) -> None:
    check_execution({"execution_id": EXECUTION, "version": version, "from_the_future": {"x": 1}}, EXECUTION)


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 2, PROTOCOL_VERSION - 2, None, "1", 1.5])
def test_more_distant_version_is_neither_alive_nor_dead(version: Any) -> None:
    status: Mapping[str, Any] = {"execution_id": EXECUTION, "version": version}
    with pytest.raises(AgentctlForeign, match="speaks version") as refused:
        check_execution(status, EXECUTION)
    assert refused.value.details["reason"] == "protocol_version"


def test_unknown_fields_of_a_newer_control_plane_are_ignored(tmp_path: Path) -> None:
    import urllib.request  # noqa: PLC0415 - as a program would

    with agentctl_of(ROOT, tmp_path / "place") as url:
        body = {"intent_id": "i", "stop_agent": True, "from_the_future": [1]}
        headers = {"Authorization": f"Bearer {TOKEN}", GENERATION_HEADER: "1", "Content-Type": "application/json"}
        for path in ("/snapshot", "/shutdown"):
            request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers | {"X-Kandev-New": "1"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
