"""A chat in a real agentctl that is killed: nothing is lost or repeated, and no key is shown."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.errors import AgentctlRefused
from tests.agentctl.processes import REAL, Place
from tests.agents.chat_server import KEY, ChatServer, answer_of, chat_server, event, refuses, says
from tests.waiting import eventually_async


def start(place: Place, provider: ChatServer, launch_id: str, **more: Any) -> dict[str, Any]:
    chat = {"argv": ["openai-chat"], "driver": "openai_chat", "model": "small", "env": provider.env()}
    return {"launch_id": launch_id, "cwd": str(place.workspace), **chat, **more}


def agent_text(place: Place) -> str:
    return "".join(line["text"] for line in place.lines() if line["kind"] == "message.agent")


async def test_chat_survives_agentctl_killed_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    place = Place(tmp_path)
    answers = (answer_of("I will."), says(event(text="To be"), hangs=True), answer_of("pelican"))
    async with chat_server(*answers) as provider:
        with place.agentctl(REAL) as process:
            client = place.client()
            fresh = await client.start_agent(start(place, provider, "launch-1", strategy="fresh"), 30)
            assert (await client.status())["agent"]["state"] == "idle"
            await client.prompt("m1", "remember pelican")
            await eventually_async(lambda: "turn.completed" in place.kinds())
            await client.prompt("m2", "recite")
            await eventually_async(lambda: "To be" in agent_text(place))
            process.send_signal(signal.SIGKILL)
        with place.agentctl(REAL):
            client = place.client()
            token = (await client.agent_session())["resume_token"]
            native = {"strategy": "native", "resume_token": token}
            loaded = await client.start_agent(start(place, provider, "launch-2", **native), 30)
            assert (await client.prompt("m2", "recite"))["duplicate"] is True
            await client.prompt("m3", "what was the word?")
            await eventually_async(lambda: agent_text(place).endswith("pelican"))

    assert (token, loaded["outcome"]) == (fresh["resume_token"], "loaded")
    assert loaded["replayed_user_texts"] == ["remember pelican", "recite"]
    assert provider.texts() == [
        ("user", "remember pelican"),
        ("assistant", "I will."),
        ("user", "recite\n\nwhat was the word?"),
    ]
    shown = "".join(map(str, place.lines()))
    assert KEY not in shown
    assert token not in shown
    everything = (path for path in place.state_dir.rglob("*") if path.is_file())
    assert not [path for path in everything if KEY.encode() in path.read_bytes()]


async def test_lost_store_is_reported_as_gone_and_a_fresh_start_works(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with chat_server(refuses(429, {"error": {"message": "slow down"}}, Retry_After="30"), answer_of("ok")) as far:
        with place.agentctl(REAL) as process:
            client = place.client()
            token = (await client.start_agent(start(place, far, "launch-1"), 30))["resume_token"]
            await client.prompt("m1", "hello")
            await eventually_async(lambda: "turn.failed" in place.kinds())
            process.send_signal(signal.SIGKILL)
        (place.state_dir / "conversations" / f"{token}.jsonl").unlink()
        with place.agentctl(REAL):
            client = place.client()
            native = {"strategy": "native", "resume_token": token}
            refusal = await client_refusal(client, start(place, far, "launch-2", **native))
            fresh = await client.start_agent(start(place, far, "launch-3", strategy="fresh"), 30)

    failed = next(line for line in place.lines() if line["kind"] == "turn.failed")
    assert (failed["code"], failed["retry_after"]) == ("provider_rate_limited", 30.0)
    assert (refusal["code"], refusal["token_valid"]) == ("token_rejected", False)
    assert (fresh["outcome"], fresh["resume_token"] == token) == ("created", False)


async def client_refusal(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error that agentctl gives for a failed start."""
    with pytest.raises(AgentctlRefused) as refused:
        await client.start_agent(body, 30)
    answer: dict[str, Any] = refused.value.details["answer"]
    return answer
