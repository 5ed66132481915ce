"""A text for a running turn is handed to the agent at most once, and the journal says what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import SteeringRefused
from executors_app.agentctl.drivers.json_rpc import AgentGone
from tests.agentctl.journals import held_syncs
from tests.agentctl.running import Running, agentctl, holds
from tests.waiting import eventually_async

STEER = {"message_id": "s1", "turn": "m1", "text": "use tabs"}
ACCEPTED = (202, {"accepted": True, "duplicate": False})
DUPLICATE = (202, {"accepted": True, "duplicate": True})


class Steerable:
    """Lets the obedient driver take texts during a turn: it refuses "no", breaks at "break" and waits at "wait"."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch):
        self.taken: list[str] = []
        self.go_on = asyncio.Event()
        driver = running.sidecar.agent.driver()
        monkeypatch.setattr(driver, "steers", True, raising=False)
        monkeypatch.setattr(driver, "steer", self.steer, raising=False)

    async def steer(self, text: str, attachments: Sequence[Mapping[str, Any]], sent: Callable[[], Any]) -> None:
        if text == "no":
            raise SteeringRefused("no turn was running")
        self.taken.append(text)
        sent()
        if text == "break":
            raise AgentGone
        if text == "wait":
            await self.go_on.wait()


@pytest.fixture
async def steerable(started: Running, monkeypatch: pytest.MonkeyPatch) -> Steerable:
    """Return an agent in the middle of a turn."""
    agent = Steerable(started, monkeypatch)
    await begin_turn(started)
    return agent


async def begin_turn(running: Running) -> None:
    await running.prompt("hang")
    await running.line("prompt.delivered")
    await running.sidecar.journal.flush()


def steer_lines(running: Running) -> list[str]:
    return [kind for kind in running.kinds() if kind.startswith("steer.")]


async def test_text_is_journaled_and_taken_into_the_turn(started: Running, steerable: Steerable) -> None:
    assert await started.post("/steer", **STEER) == ACCEPTED
    assert holds(await started.line("steer.accepted"), STEER)
    assert holds(await started.line("steer.delivered"), {"message_id": "s1", "turn": "m1"})
    assert steerable.taken == ["use tabs"]
    assert await started.state() == "working"


async def test_repeated_text_is_handed_over_once(started: Running, steerable: Steerable) -> None:
    answers = await asyncio.gather(*(started.post("/steer", **STEER) for _ in range(5)))
    await started.line("steer.delivered")
    answers.append(await started.post("/steer", **{**STEER, "text": "another text, same id"}))
    assert sorted(body["duplicate"] for _, body in answers) == [False, True, True, True, True, True]
    assert steerable.taken == ["use tabs"]


async def test_agent_gets_a_text_after_it_is_on_disk(started: Running, steerable: Steerable) -> None:
    with held_syncs(started.sidecar.journal) as release:
        steering = asyncio.create_task(started.post("/steer", **STEER))
        await eventually_async(lambda: "steer.accepted" in started.kinds())
        assert not steering.done()
        assert steerable.taken == []
        release.set()
        assert await steering == ACCEPTED
    await started.line("steer.delivered")
    assert steerable.taken == ["use tabs"]


async def test_turn_that_ends_while_the_text_is_written_does_not_get_it(started: Running, steerable: Steerable) -> None:
    with held_syncs(started.sidecar.journal) as release:
        steering = asyncio.create_task(started.post("/steer", **STEER))
        await eventually_async(lambda: "steer.accepted" in started.kinds())
        cancelling = asyncio.create_task(started.post("/cancel", message_id="m1"))
        await eventually_async(started.agent.driver.cancelled.is_set)
        release.set()
        assert await steering == ACCEPTED
        await cancelling
    assert holds(await started.line("steer.declined"), {"message_id": "s1", "reason": "the turn had ended"})
    assert steerable.taken == []


async def test_declined_text_can_be_sent_as_a_prompt_once(started: Running, steerable: Steerable) -> None:
    await started.post("/steer", **{**STEER, "text": "no"})
    assert holds(await started.line("steer.declined"), {"message_id": "s1", "reason": "no turn was running"})
    await started.post("/cancel", message_id="m1")
    await started.line("turn.cancelled")
    assert await started.prompt("no", "s1") == ACCEPTED
    await started.line("turn.completed")
    assert await started.prompt("no", "s1") == DUPLICATE
    assert await started.post("/steer", **STEER) == DUPLICATE
    assert started.delivered() == ["m1", "s1"]


@pytest.mark.parametrize("text", ["use tabs", "break"])
async def test_text_that_the_agent_may_have_is_no_prompt_any_more(
    started: Running, steerable: Steerable, text: str
) -> None:
    await started.post("/steer", **{**STEER, "text": text})
    await eventually_async(lambda: len(steer_lines(started)) == 2)
    await started.post("/cancel", message_id="m1")
    await started.line("turn.cancelled")
    assert await started.prompt(text, "s1") == DUPLICATE
    assert started.delivered() == ["m1"]


async def test_error_of_the_agent_leaves_it_unknown(started: Running, steerable: Steerable) -> None:
    await started.post("/steer", **{**STEER, "text": "break"})
    assert (await started.line("steer.unknown"))["message_id"] == "s1"
    assert "steer.declined" not in started.kinds()


async def test_agent_that_does_not_answer_leaves_it_unknown(started: Running, steerable: Steerable) -> None:
    started.sidecar.steering.answer_limit = 0.01
    await started.post("/steer", **{**STEER, "text": "wait"})
    assert "did not answer" in (await started.line("steer.unknown"))["reason"]


@pytest.mark.parametrize(
    ("turn", "code"), [("another", "no_turn"), ("m1", "no_turn")], ids=["another turn", "no turn at all"]
)
async def test_text_without_its_turn_is_refused_and_not_journaled(
    started: Running, monkeypatch: pytest.MonkeyPatch, turn: str, code: str
) -> None:
    agent = Steerable(started, monkeypatch)
    if turn == "another":
        await begin_turn(started)
    status, body = await started.post("/steer", **{**STEER, "turn": turn})
    assert (status, body["code"]) == (409, code)
    assert steer_lines(started) == []
    assert agent.taken == []


async def test_cancelled_turn_takes_no_text(started: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    Steerable(started, monkeypatch)
    await begin_turn(started)
    await started.post("/cancel", message_id="m1")
    assert (await started.post("/steer", **STEER))[1]["code"] == "no_turn"


async def test_agent_that_takes_no_texts_is_not_asked(started: Running) -> None:
    await begin_turn(started)
    status, body = await started.post("/steer", **STEER)
    assert (status, body["code"]) == (409, "steering_unsupported")
    assert steer_lines(started) == []


async def test_texts_are_known_to_the_next_agentctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        Steerable(first, monkeypatch)
        await begin_turn(first)
        for message_id, text in (("s1", "use tabs"), ("s2", "no")):
            await first.post("/steer", **{**STEER, "message_id": message_id, "text": text})
        await first.line("steer.declined")
    memory = tmp_path / "state" / "memory.jsonl"
    memory.write_bytes(b"".join(line for line in memory.read_bytes().splitlines(True) if b'"steer"' not in line))
    async with agentctl(tmp_path) as second:
        await second.start("launch-2")
        assert await second.prompt("use tabs", "s1") == DUPLICATE
        assert await second.prompt("no", "s2") == ACCEPTED
