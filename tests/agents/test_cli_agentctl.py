"""Command-line agents under a real agentctl, which have no process between turns."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.agentctl.processes import REAL, ROOT, Place
from tests.agents.driver_contract import UNKNOWN
from tests.waiting import eventually_async


def _start(place: Place, launch_id: str, agent: str, **more: Any) -> dict[str, Any]:
    env = {"STANDIN_HOME": str(place.base / "home"), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-S", "-m", f"tests.agents.standins.{agent}"]
    values = {"launch_id": launch_id, "argv": argv, "env": env, "cwd": str(place.workspace), "driver": f"{agent}_cli"}
    return {**values, "gone_patterns": ["no rollout found"], **more}


def _agent_text(place: Place) -> str:
    return "".join(line["text"] for line in place.lines() if line["kind"] == "message.agent")


def _last(place: Place, kind: str) -> dict[str, Any]:
    return [line for line in place.lines() if line["kind"] == kind][-1]


async def test_agent_without_a_process_is_idle_and_survives_agentctl_death(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL) as process:
        client = place.client()
        fresh = await client.start_agent(_start(place, "launch-1", "codex", strategy="fresh"), 30)
        assert (fresh["outcome"], fresh["resume_token"]) == ("created", None)
        assert _last(place, "session.created")["fingerprint"] is None
        await client.prompt("m1", "remember the word PELICAN")
        await eventually_async(lambda: "turn.completed" in place.kinds())
        status = await client.status()
        assert (status["agent"]["state"], status["agent"]["pid"]) == ("idle", None)
        assert status["agent"]["session_fingerprint"] == _last(place, "session.identified")["fingerprint"]
        assert status["capabilities"]["supports_session_resume"] is True

        await client.prompt("m2", "hang")
        await eventually_async(lambda: "waiting" in _agent_text(place))
        agent = (await client.status())["agent"]
        assert agent["state"] == "working"
        process.send_signal(signal.SIGKILL)
    await eventually_async(
        lambda: not os.path.lexists(f"/proc/{agent['pid']}"), describe="the agent's process of this turn has ended"
    )

    with place.agentctl(REAL):
        client = place.client()
        token = (await client.agent_session())["resume_token"]
        again = await client.start_agent(_start(place, "launch-2", "codex", strategy="native", resume_token=token), 30)
        assert (again["outcome"], again["resume_token"]) == ("resumed", token)
        await client.prompt("m3", "what was the word?")
        await eventually_async(lambda: "The word was PELICAN." in _agent_text(place))
        assert "agent.exited" not in place.kinds()
        await client.shutdown(stop_agent=True, intent_id="intent-1")

    assert token not in str(place.lines())


async def test_agent_whose_conversation_is_gone_is_stopped_after_its_turn(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL):
        client = place.client()
        await client.start_agent(_start(place, "launch-1", "codex", strategy="native", resume_token=UNKNOWN), 30)
        await client.prompt("m1", "what was the word?")
        await eventually_async(lambda: "agent.exited" in place.kinds())

        failed, exited = _last(place, "turn.failed"), _last(place, "agent.exited")
        assert (failed["message_id"], failed["code"]) == ("m1", "token_rejected")
        assert (exited["expected"], exited["message_id"]) == (True, None)
        assert (await client.status())["agent"]["state"] == "exited"
        assert (await client.agent_session())["resume_token"] == UNKNOWN, "the resume token is kept"


async def test_process_death_in_a_turn_ends_the_agent_and_names_it(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL):
        client = place.client()
        await client.start_agent(_start(place, "launch-1", "codex", strategy="fresh"), 30)
        await client.prompt("m1", "die")
        await eventually_async(lambda: "agent.exited" in place.kinds())

        exited = _last(place, "agent.exited")
        assert (exited["exit_code"], exited["expected"], exited["message_id"]) == (-signal.SIGKILL, False, "m1")
        assert "turn.failed" not in place.kinds()


async def test_last_message_is_passed_on_only_after_a_finished_turn(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL):
        client = place.client()
        await client.start_agent(_start(place, "launch-1", "claude", strategy="fresh"), 30)
        await client.prompt("m1", "remember the word PELICAN")
        await eventually_async(lambda: "turn.completed" in place.kinds())
        kept = await client.agent_session()
        assert kept["last_message_uuid"]

        await client.prompt("m2", "hang")
        await eventually_async(lambda: "waiting" in _agent_text(place))
        assert (await client.agent_session())["last_message_uuid"] is None
        await client.stop_agent(1, "intent-1")

        values = {"strategy": "native", "resume_token": kept["resume_token"]}
        at = {"last_message_uuid": kept["last_message_uuid"]}
        await client.start_agent(_start(place, "launch-2", "claude", **values, **at), 30)
        await client.prompt("m3", "what was the word?")
        await eventually_async(lambda: "The word was PELICAN." in _agent_text(place))
        commands = (place.base / "home" / "commands").read_text()
        assert f"--resume-session-at={kept['last_message_uuid']}" in commands.splitlines()[-1]
