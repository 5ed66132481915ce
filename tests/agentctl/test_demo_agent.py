"""agentctl, the ACP driver and a real agent process together."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.agentctl.processes import REAL, ROOT, Place
from tests.waiting import eventually, eventually_async


def _start(place: Place, launch_id: str, **more: Any) -> dict[str, Any]:
    env = {"KANDEV_DEMO_AGENT_HOME": str(place.base / "conversations"), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "executors_app.demo_agent"]
    return {"launch_id": launch_id, "argv": argv, "env": env, "cwd": str(place.workspace), "driver": "acp", **more}


def _agent_text(place: Place) -> str:
    return "".join(line["text"] for line in place.lines() if line["kind"] == "message.agent")


async def test_conversation_survives_its_agent_and_its_agentctl(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL) as process:
        client = place.client()
        fresh = await client.start_agent(_start(place, "launch-1", strategy="fresh"), 30)
        assert fresh["outcome"] == "created"
        await client.prompt("m1", "remember heron")
        await eventually_async(lambda: "turn.completed" in place.kinds())
        await client.prompt("m2", "work 30")
        await eventually_async(lambda: "tick 2" in _agent_text(place))
        agent = (await client.status())["agent"]
        assert agent["state"] == "working"
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{agent['pid']}/cwd").exists(), describe="the agent has ended")

    with place.agentctl(REAL) as process:
        client = place.client()
        token = (await client.agent_session())["resume_token"]
        assert token == fresh["resume_token"]
        again = await client.start_agent(_start(place, "launch-2", strategy="native", resume_token=token), 30)
        assert again["outcome"] == "loaded"
        assert "remember heron" in " ".join(again["replayed_user_texts"])
        assert (await client.prompt("m2", "work 30"))["duplicate"] is True
        await client.prompt("m3", "what was the word?")
        await eventually_async(lambda: place.kinds().count("turn.completed") == 2)
        assert "The word was heron." in _agent_text(place)

        await client.prompt("m4", "ask")
        await eventually_async(lambda: "permission.requested" in place.kinds())
        pending = (await client.status())["pending_permissions"]
        await client.answer(pending[0]["permission_id"], "allow")
        await eventually_async(lambda: place.kinds().count("turn.completed") == 3)
        assert "The answer was allow." in _agent_text(place)

        await client.prompt("m5", "work 30")
        await eventually_async(lambda: place.lines()[-1]["kind"] == "message.agent")
        await client.cancel("m5", "intent-1")
        await eventually_async(lambda: "turn.cancelled" in place.kinds())
        agent = (await client.status())["agent"]
        await client.shutdown(stop_agent=True, intent_id="intent-2")
        eventually(lambda: process.poll() is not None)

    assert not os.path.lexists(f"/proc/{agent['pid']}")
    seqs = [line["seq"] for line in place.lines()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert token not in (tmp_path / "state" / "journal" / f"{1:020d}.jsonl").read_text()
