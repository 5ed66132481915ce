"""A prompt is accepted once, delivered at most once, and its turn ends once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from executors_app.agentctl import turns
from executors_app.agentctl.drivers import acp
from executors_app.agentctl.journal import JournalLimits
from tests.agentctl.journals import held_syncs
from tests.agentctl.running import Running, agentctl, holds
from tests.waiting import eventually_async

ROOT = Path(__file__).resolve().parents[2]


async def test_turn_is_recorded_from_prompt_to_end(started: Running) -> None:
    assert await started.prompt("hello") == (202, {"accepted": True, "duplicate": False})

    end = await started.line("turn.completed")

    turn = started.lines()[-4:]
    assert [line["kind"] for line in turn] == ["prompt.accepted", "prompt.delivered", "message.agent", "turn.completed"]
    assert holds(turn[0], {"message_id": "m1", "text": "hello", "prompt_kind": "user"})
    assert holds(end, {"message_id": "m1", "stop_reason": "end_turn"})
    assert await started.state() == "idle"


async def test_duplicate_delivery_of_a_prompt_does_nothing(started: Running) -> None:
    answers = await asyncio.gather(*(started.prompt("hello") for _ in range(5)))
    await started.line("turn.completed")
    answers.append(await started.prompt("another text, same id"))

    assert sorted(body["duplicate"] for _, body in answers) == [False, True, True, True, True, True]
    assert {status for status, _ in answers} == {202}
    assert started.delivered() == ["m1"]


async def test_duplicate_prompt_is_recognised_after_restart_and_truncated_journal(tmp_path: Path) -> None:
    tiny = JournalLimits(segment=1)  # one segment for each batch
    async with agentctl(tmp_path, tiny) as first:
        await first.start()
        await first.prompt("hello")
        await first.line("turn.completed")
        first.sidecar.journal.ack(first.sidecar.journal.last_seq)
        assert "prompt.accepted" not in first.kinds()

    async with agentctl(tmp_path, tiny) as second:
        await second.start("launch-2")
        assert await second.prompt("hello") == (202, {"accepted": True, "duplicate": True})
        assert second.delivered() == ["m1"]


async def test_prompt_found_only_in_the_journal_is_a_duplicate(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        await first.prompt("hello")
    memory = tmp_path / "state" / "memory.jsonl"
    memory.write_bytes(b"".join(line for line in memory.read_bytes().splitlines(True) if b'"prompt"' not in line))

    async with agentctl(tmp_path) as second:
        await second.start("launch-2")
        assert (await second.prompt("hello"))[1]["duplicate"]


async def test_prompt_found_in_the_journal_is_a_duplicate_after_the_line_is_gone(tmp_path: Path) -> None:
    tiny = JournalLimits(segment=1)
    async with agentctl(tmp_path, tiny) as first:
        await first.start()
        await first.prompt("hello")
        await first.line("turn.completed")
    memory = tmp_path / "state" / "memory.jsonl"
    memory.write_bytes(b"".join(line for line in memory.read_bytes().splitlines(True) if b'"prompt"' not in line))
    async with agentctl(tmp_path, tiny) as second:
        second.sidecar.journal.ack(second.sidecar.journal.last_seq)
        assert "prompt.accepted" not in second.kinds()

    async with agentctl(tmp_path, tiny) as third:
        await third.start("launch-2")
        assert (await third.prompt("hello"))[1]["duplicate"]


async def test_agent_gets_a_prompt_after_it_is_on_disk(started: Running) -> None:
    with held_syncs(started.sidecar.journal) as release:
        prompting = asyncio.create_task(started.prompt("hello"))
        await eventually_async(lambda: "prompt.accepted" in started.kinds())

        await started.reaches("working")
        assert not prompting.done()
        assert started.delivered() == []

        release.set()
        assert await prompting == (202, {"accepted": True, "duplicate": False})
        await started.line("turn.completed")
        assert started.delivered() == ["m1"]


async def test_agent_that_exits_while_its_prompt_is_written_does_not_get_it(started: Running) -> None:
    with held_syncs(started.sidecar.journal) as release:
        prompting = asyncio.create_task(started.prompt("hello"))
        await eventually_async(lambda: "prompt.accepted" in started.kinds())
        started.agent.driver.die(9)

        release.set()
        await prompting
        assert holds(await started.line("agent.exited"), {"message_id": "m1"})
        await started.reaches("exited")
        assert started.delivered() == []


async def test_prompt_during_a_turn_is_refused(started: Running) -> None:
    await started.prompt("hang")

    status, body = await started.prompt("me too", "m2")

    assert (status, body["code"], body["details"]) == (409, "busy", {"message_id": "m1"})
    report = (await started.get("/status"))["agent"]
    assert report["state"] == "working"
    assert report["active_turn"]["message_id"] == "m1"
    assert started.kinds().count("prompt.accepted") == 1


async def test_prompt_without_an_agent_is_refused_and_not_remembered(running: Running) -> None:
    assert (await running.prompt("hello"))[1]["code"] == "not_running"

    await running.start()
    assert await running.prompt("hello") == (202, {"accepted": True, "duplicate": False})


@pytest.mark.parametrize("text", ["hang", "hang, then fail", "hang, then end"])
async def test_cancelled_turn_is_cancelled_whatever_the_agent_answers(started: Running, text: str) -> None:
    await started.prompt(text)

    assert await started.post("/cancel", message_id="m1") == (200, {"cancelled": True})

    assert holds(await started.line("turn.cancelled"), {"message_id": "m1", "stop_reason": "cancelled"})
    assert "turn.completed" not in started.kinds()
    assert await started.post("/cancel", message_id="m1") == (200, {"cancelled": True})
    assert await started.prompt("hello", "m2") == (202, {"accepted": True, "duplicate": False})


async def test_cancel_of_work_that_the_agent_began_spares_the_turn_of_a_prompt(
    started: Running,
) -> None:
    assert await started.post("/cancel", message_id="agent:1") == (200, {"cancelled": True})
    assert await started.post("/cancel", message_id="agent:1") == (200, {"cancelled": True})
    assert started.agent.driver.asked_to_end_own_work == 1

    await started.prompt("hang")
    assert await started.post("/cancel", message_id="agent:2") == (200, {"cancelled": False})
    assert started.agent.driver.asked_to_end_own_work == 1
    assert not started.agent.driver.cancelled.is_set()


async def test_prompt_that_is_cancelled_during_the_snapshot_before_it_never_reaches_the_agent(started: Running) -> None:
    snapshot_taken = asyncio.Event()

    async def take_slow_snapshot() -> None:
        await snapshot_taken.wait()

    started.sidecar.turns.before_turn = take_slow_snapshot
    await started.prompt("hello")
    await started.post("/cancel", message_id="m1")
    assert not started.agent.driver.cancelled.is_set(), "there is nothing that it could cancel"

    snapshot_taken.set()
    await started.line("turn.cancelled")
    assert started.delivered() == []


async def test_request_that_is_open_at_the_end_of_its_turn_is_cancelled(started: Running) -> None:
    await started.prompt("ask, then end")
    await started.line("turn.completed")

    kinds = [line["kind"] for line in started.lines()][-3:]
    assert kinds == ["permission.requested", "permission.cancelled", "turn.completed"]
    assert started.agent.driver.asking is not None
    assert await started.agent.driver.asking is None


async def test_disk_that_is_full_twice_fails_a_turn_once(started: Running) -> None:
    await started.prompt("hang")
    for _ in range(2):
        started.sidecar.turns.stop_for_full_disk()

    await started.reaches("idle")
    await started.sidecar.journal.flush()
    assert [kind for kind in started.kinds() if kind.startswith("turn.")] == ["turn.failed"]


async def test_turn_that_the_agent_cancels_on_its_own_is_marked(started: Running) -> None:
    await started.prompt("cancel it")

    assert holds(await started.line("turn.cancelled"), {"message_id": "m1", "by_agent": True})


@pytest.mark.parametrize("text", ["hang", "ask"])
async def test_turn_is_not_cancelled_by_its_agent_if_kandev_cancels_the_turn_or_a_request(
    started: Running, text: str
) -> None:
    await started.prompt(text)
    if text == "ask":
        permission_id = (await started.line("permission.requested"))["permission_id"]
        await started.post(f"/permissions/{permission_id}", option_id=None)
    else:
        await started.post("/cancel", message_id="m1")

    assert "by_agent" not in await started.line("turn.cancelled")


@pytest.mark.parametrize("message_id", ["m0", "m2"])
async def test_cancel_names_its_turn_and_ends_no_other(started: Running, message_id: str) -> None:
    await started.prompt("hello", "m0")
    await started.line("turn.completed")
    await started.prompt("hang", "m1")

    assert await started.post("/cancel", message_id=message_id) == (200, {"cancelled": False})

    assert await started.state() == "working"


async def test_prompt_to_an_agent_whose_process_has_just_ended_ends_with_its_exit(started: Running) -> None:
    started.agent.driver.alive = False  # its exit is not recorded yet
    await started.prompt("die before the prompt")

    exited = await started.line("agent.exited")

    assert holds(exited, {"message_id": "m1", "expected": False})
    await started.sidecar.journal.flush()
    assert "turn.failed" not in started.kinds()


@pytest.mark.parametrize(("text", "code"), [("fail", "overloaded"), ("break", "internal_error")])
async def test_failed_turn_has_a_reason_and_leaves_the_agent_idle(started: Running, text: str, code: str) -> None:
    await started.prompt(text)

    assert holds(await started.line("turn.failed"), {"message_id": "m1", "code": code})
    await started.reaches("idle")


@pytest.mark.parametrize("has_process", [True, False])
async def test_failed_turn_of_an_agent_that_stays_is_recorded_at_once(
    started: Running, has_process: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "_LAST_OUTPUT_TIMEOUT", 0.0)
    started.agent.driver.alive = has_process  # some agents have a process only in a turn, a chat model has none
    await started.prompt("fail")

    await started.line("turn.failed")

    assert "its process did not" not in caplog.text, "nobody waited for the exit of an agent"


@pytest.mark.parametrize("text", ["die", "break off, then die", "fail, then die", "die before the prompt"])
async def test_agent_death_in_a_turn_is_recorded_without_a_turn_end(started: Running, text: str) -> None:
    await started.prompt(text)

    exited = await started.line("agent.exited")

    assert holds(exited, {"message_id": "m1", "exit_code": 9, "expected": False})
    await started.reaches("exited")
    await started.sidecar.journal.flush()
    assert not [kind for kind in started.kinds() if kind.startswith("turn.")]
    assert (await started.prompt("hello", "m2"))[1]["code"] == "not_running"


@pytest.mark.parametrize(
    ("text", "lines", "stop_reason"),
    [
        ("answer, then say the rest", ["the answer ", "and its end"], "end_turn"),
        ("stop early, then say it", ["late"], "max_tokens"),
    ],
)
async def test_output_right_after_the_answer_belongs_to_the_turn(
    started: Running, text: str, lines: list[str], stop_reason: str
) -> None:
    await started.prompt(text)
    end = await started.line("turn.completed")

    before = [line for line in started.lines() if line["seq"] < end["seq"]]
    assert [line["text"] for line in before if line["kind"] == "message.agent"] == lines
    assert holds(end, {"stop_reason": stop_reason, "output": True})


@pytest.mark.parametrize(("text", "expected"), [("lose the conversation", True), ("close the conversation", False)])
async def test_agent_without_its_conversation_ends_and_is_expected_to_only_if_that_is_lost(
    started: Running, text: str, expected: bool
) -> None:
    await started.prompt(text)

    exited = await started.line("agent.exited")

    assert holds(exited, {"message_id": None, "expected": expected})
    assert "turn.failed" in started.kinds()


async def test_agent_that_dies_after_its_answer_interrupts_no_turn(started: Running) -> None:
    await started.prompt("answer, then die")

    exited = await started.line("agent.exited")

    assert exited["message_id"] is None
    assert [kind for kind in started.kinds() if kind.startswith("turn.")] == ["turn.completed"]
    assert holds(await started.line("turn.completed"), {"message_id": "m1", "stop_reason": "end_turn", "output": True})


@pytest.mark.parametrize(
    ("behaviour", "stop_reason", "output"),
    [("honest", "end_turn", True), ("says_nothing", "end_turn", False), ("refuses_turns", "refusal", False)],
)
async def test_end_of_a_turn_records_whether_the_agent_said_anything(
    tmp_path: Path, behaviour: str, stop_reason: str, output: bool
) -> None:
    argv = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", behaviour, "--home", str(tmp_path)]
    async with agentctl(tmp_path, drivers={"acp": acp.create}) as place:
        status, answer = await place.start(driver="acp", argv=argv, env={"PYTHONPATH": str(ROOT)})
        assert status == 200, answer
        await place.prompt("hello")
        end = await place.line("turn.completed")
        await place.post("/agent/stop", grace=1, intent_id="i")
    assert holds(end, {"stop_reason": stop_reason, "output": output})
