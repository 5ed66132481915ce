"""A launch happens once, and its agent lives until it is stopped or dies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.process import background
from tests.agentctl.journals import held_syncs
from tests.agentctl.running import Running, agentctl, holds
from tests.waiting import PATIENCE, eventually_async


async def test_start_returns_and_journals_the_conversation(running: Running) -> None:
    status, answer = await running.start(strategy="native", resume_token="conversation-1")

    assert status == 200
    assert holds(answer, {"launch_id": "launch-1", "outcome": "loaded", "resume_token": "conversation-1"})
    assert answer["replayed_user_texts"] == ["hello"]
    assert running.kinds() == ["agent.starting", "session.identified", "agent.started", "session.loaded"]
    session = await running.get("/agent/session")
    assert session["resume_token"] == "conversation-1"
    assert running.lines()[-1]["fingerprint"] == session["fingerprint"]
    assert not any("conversation-1" in str(line) for line in running.lines())
    assert (running.state_dir / "token.json").stat().st_mode & 0o777 == 0o600
    assert (running.state_dir / "memory.jsonl").stat().st_mode & 0o777 == 0o600
    assert running.agent.driver.marker == {"KANDEV_EXECUTION_ID": "execution-1"}


async def test_output_outside_a_turn_looks_for_processes(started: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SETTLE_SECONDS", 0.0)
    left = background.BackgroundProcess("make all", "2026-01-31T12:00:00+00:00")
    monkeypatch.setattr(background.BackgroundProcesses, "running", lambda *_, **__: background.BackgroundWork([left]))

    started.agent.driver.host.record("message.agent", text="I build it now.")

    await eventually_async(lambda: "agent.processes" in started.kinds())


async def test_status_before_a_start_reports_no_agent(running: Running) -> None:
    status = await running.get("/status")

    assert holds(status["agent"], {"state": "none", "pid": None, "active_turn": None, "launch_id": None})
    assert status["capabilities"]["supports_session_resume"] is None
    assert status["capabilities"]["supports_workspace_only"] is True


async def test_missing_workspace_supports_no_workspace_only_session(running: Running) -> None:
    running.workspace.rmdir()
    assert (await running.get("/capabilities"))["supports_workspace_only"] is False


async def test_status_after_a_start_is_complete(started: Running) -> None:
    status = await started.get("/status")

    assert holds(status, {"execution_id": "execution-1", "session_id": "session-1", "generation": 1, "version": 1})
    assert holds(status["agent"], {"state": "idle", "pid": 4711, "launch_id": "launch-1", "exit_code": None})
    assert holds(status["capabilities"], {"supports_session_resume": True, "requires_new_session": False})
    assert status["journal"]["last_seq"] == started.lines()[-1]["seq"]
    assert holds(status["workspace"], {"path": str(started.workspace), "exists": True, "branch": None})


async def test_repeated_launch_returns_the_first_result(running: Running) -> None:
    answers = await asyncio.gather(*(running.start(argv=["x"]) for _ in range(4)))
    answers.append(await running.start(argv=["refuses"]))

    assert [status for status, _ in answers] == [200] * 5
    assert len({str(body) for _, body in answers}) == 1
    assert len(running.agent.made) == 1


async def test_another_launch_is_refused_while_an_agent_runs(started: Running) -> None:
    status, body = await started.start("launch-2")

    assert (status, body["code"]) == (409, "already_running")


@pytest.mark.parametrize("end", ["stop", "death", "restart"])
async def test_launch_whose_agent_has_ended_is_never_started_again(tmp_path: Path, end: str) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        match end:
            case "stop":
                await first.post("/agent/stop", grace=0)
            case "death":
                first.agent.driver.die(9)
        if end != "restart":
            status, body = await first.start()
            assert (status, body["code"]) == (409, "launch_ended")

    async with agentctl(tmp_path) as second:
        assert await second.state() == "none"
        status, body = await second.start()
        assert (status, body["code"]) == (409, "launch_ended")
        assert (await second.start("launch-2"))[0] == 200


async def test_repeated_failed_start_returns_the_same_error_and_token_validity(running: Running) -> None:
    first = await running.start(argv=["refuses"])
    again = await running.start(argv=["x"])

    assert first == again
    status, body = first
    assert status == 502
    assert holds(body, {"code": "token_rejected", "permanent": True, "token_valid": False})
    assert holds(await running.line("agent.failed"), {"code": "token_rejected", "token_valid": False})
    assert await running.state() == "failed"
    assert (await running.start("launch-2"))[0] == 200


async def test_driver_exception_is_a_failed_start(running: Running) -> None:
    status, body = await running.start(argv=["breaks"])

    assert (status, body["code"], body["token_valid"]) == (502, "internal_error", True)
    assert await running.state() == "failed"


async def test_agent_that_exits_during_its_start_is_reported_as_exited(running: Running) -> None:
    assert (await running.start(argv=["dies at once"]))[0] == 200

    assert await running.state() == "exited"
    assert running.kinds()[-3:] == ["agent.started", "session.created", "agent.exited"]


async def test_cancel_during_a_start_is_answered(running: Running) -> None:
    start = asyncio.create_task(running.start(argv=["slow"]))
    await running.reaches("starting")

    assert await running.post("/cancel", message_id="m1") == (200, {"cancelled": False})

    await running.post("/agent/stop", grace=0)
    await start


async def test_stop_ends_a_hanging_start(running: Running) -> None:
    start = asyncio.create_task(running.start(argv=["slow"]))
    await running.reaches("starting")

    assert (await running.post("/agent/stop", grace=0))[0] == 200

    status, body = await start
    assert (status, body["code"]) == (502, "agent_exited")
    assert await running.state() == "failed"


async def test_repeated_stop_does_not_stop_the_next_agent(started: Running) -> None:
    first = await started.post("/agent/stop", grace=0, intent_id="intent-1")
    assert first == (200, {"stopped": True, "exit_code": -15})
    await started.start("launch-2")

    assert await started.post("/agent/stop", grace=0, intent_id="intent-1") == first

    assert await started.state() == "idle"
    assert (await started.post("/agent/stop", grace=0, intent_id="intent-2"))[1]["stopped"]


async def test_shutdown_spares_a_running_agent_unless_asked_to_stop_it(started: Running) -> None:
    status, body = await started.post("/shutdown", stop_agent=False)
    assert (status, body["code"]) == (409, "already_running")
    assert not started.sidecar.ended.is_set()

    status, body = await started.post("/shutdown", stop_agent=True, intent_id="intent-1")
    assert (status, body["stopped"]) == (200, True)
    assert started.sidecar.ended.is_set()


async def test_shutdown_already_obeyed_does_not_end_the_next_agentctl(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as first:
        answer = await first.post("/shutdown", stop_agent=True, intent_id="intent-1")

    async with agentctl(tmp_path) as second:
        assert await second.post("/shutdown", stop_agent=True, intent_id="intent-1") == answer
        assert not second.sidecar.ended.is_set()


async def test_abandoned_agentctl_ends_by_itself(running: Running) -> None:
    attached = iter([True, False])
    running.sidecar.last_contact = time.monotonic()

    await asyncio.wait_for(running.sidecar.end_when_abandoned(lambda: next(attached), after=0.05), PATIENCE)

    assert running.sidecar.ended.is_set()
    assert next(attached, "asked twice") == "asked twice"
    await running.line("agentctl.abandoned")


BAD_STARTS: dict[str, dict[str, Any]] = {
    "no launch id": {"launch_id": None},
    "no command": {"argv": []},
    "a command that is not a list": {"argv": "sh"},
    "U+0000 in the command": {"argv": ["a\0b"]},
    "an environment that is not a map": {"env": ["A=b"]},
    "an invalid variable name": {"env": {"A=": "b"}},
    "a relative directory": {"cwd": "."},
    "a missing directory": {"cwd": "/none/such"},
    "a missing additional directory": {"additional_directories": ["/none/such"]},
    "additional directories that are not a list": {"additional_directories": "/tmp"},
    "a mode that is not text": {"mode": 7},
    "an unknown strategy": {"strategy": "clever"},
    "native without a token": {"strategy": "native"},
    "an unknown driver": {"driver": "none-such"},
    "an unknown mode": {"permission_mode": "yolo"},
    "an invalid pattern": {"gone_patterns": ["("]},
    "a timeout of zero": {"timeout": -1},
    "servers that are not objects": {"mcp_servers": ["x"]},
}


@pytest.mark.parametrize("wrong", BAD_STARTS.values(), ids=BAD_STARTS)
async def test_invalid_start_is_refused(running: Running, wrong: dict[str, Any]) -> None:
    status, body = await running.start(**{"launch_id": "launch-1", **wrong})

    assert (status, body["code"]) == (400, "validation_error")
    assert (await running.start())[0] == 200


async def test_start_is_answered_after_it_is_on_disk(running: Running) -> None:
    with held_syncs(running.sidecar.journal) as release:
        starting = asyncio.create_task(running.start())
        await eventually_async(lambda: "agent.started" in running.kinds())
        await running.reaches("idle")
        assert not starting.done()
        release.set()
        assert (await starting)[0] == 200


async def test_agent_is_not_started_while_the_process_of_an_earlier_one_lives(started: Running) -> None:
    started.agent.driver.die(9)
    started.agent.driver.alive = True  # its exit was reported, but the process is still there
    status, body = await started.start("launch-2")
    assert (status, body["code"], body["details"]["pid"]) == (409, "already_running", 4711)
    started.agent.driver.alive = False
    assert (await started.start("launch-3"))[0] == 200
