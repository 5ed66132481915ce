"""The end of a conversation with an ACP agent: close, delete, and requests that are no longer awaited."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import DeletionResult, Driver, SupportsDeletion, acp
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, agent, chunk, error, result
from tests.waiting import eventually_async

ReadByAgent = Callable[[], list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("offers", "grace", "is_closed"),
    [(["close"], 5.0, True), (["close"], 0.5, False), ([], 5.0, False)],
    ids=["offered", "a stop without time", "not offered"],
)
@pytest.mark.parametrize("answer", [result({}), error(-32603, "no")])
async def test_stop_closes_the_conversation_of_an_agent_that_offers_it(
    driver: Driver,
    request_for: MakeRequest,
    read_by_agent: ReadByAgent,
    offers: list[str],
    grace: float,
    is_closed: bool,
    answer: str,
) -> None:
    await driver.start(request_for({**agent(also=offers), "session/close": [[answer]]}))
    await driver.stop(grace)
    closed = [each["params"] for each in read_by_agent() if each["method"] == "session/close"]
    assert closed == ([{"sessionId": SESSION}] if is_closed else [])


async def test_stop_in_a_turn_closes_nothing(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    await driver.start(request_for(agent(also=["close"], session_prompt=[chunk("agent", "hm")])))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    assert await eventually_async(host.agent_text)
    await driver.stop(5.0)
    await asyncio.gather(turn, return_exceptions=True)
    assert [each["method"] for each in read_by_agent()] == ["initialize", "session/new", "session/prompt"]


async def test_idle_agent_ends_by_itself_when_it_is_stopped(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for(agent()))

    assert await driver.stop(5.0) == 0

    assert host.exits == [0]
    assert (tmp_path / "script.json.saved").exists()


async def test_agent_that_survives_the_end_of_its_input_is_terminated(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "_END_TIMEOUT", 0.01)
    await driver.start(request_for("ignores_end_of_input"))

    assert await driver.stop(5.0) == -signal.SIGTERM

    assert host.exits == [-signal.SIGTERM]


async def test_agent_in_a_turn_is_interrupted_instead_of_finishing_it(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for(agent(session_prompt=[chunk("agent", "hm")])))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    assert await eventually_async(host.agent_text)

    assert await driver.stop(5.0) == -signal.SIGTERM

    await asyncio.gather(turn, return_exceptions=True)
    assert not (tmp_path / "script.json.saved").exists()


async def test_unanswered_request_is_cancelled_after_its_timeout(
    driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "_SETTING_TIMEOUT", 0.01)
    modes = {"modes": {"availableModes": [{"id": "plan", "name": "Plan"}]}}
    await driver.start(request_for(agent(session_new=[result({"sessionId": SESSION, **modes})]), mode="plan"))

    def given_up() -> list[Any]:
        return [each["params"] for each in read_by_agent() if each["method"] == "$/cancel_request"]

    assert await eventually_async(given_up) == [{"requestId": 3}]


async def delete(driver: Driver) -> str:
    assert isinstance(driver, SupportsDeletion)
    return (await driver.delete_conversation()).reason


def listing(*ids: str) -> list[str]:
    return [result({"sessions": [{"sessionId": each} for each in ids]})]


@pytest.mark.parametrize(
    ("offers", "lists", "expected"),
    [
        (["delete"], [[]], DeletionResult()),
        (["delete", "list"], [listing(SESSION), listing()], DeletionResult(is_confirmed=True)),
        (["delete", "list"], [listing()], DeletionResult()),
        (["delete", "list"], [listing(SESSION), [error(-32603, "no")]], DeletionResult()),
        (
            ["delete", "list"],
            [listing(SESSION)],
            DeletionResult("the agent reports the deletion, but still lists the conversation"),
        ),
    ],
    ids=["lists nothing", "is gone", "never listed it", "list fails", "still there"],
)
async def test_reported_deletion_is_checked_against_the_list(
    driver: Driver, request_for: MakeRequest, offers: list[str], lists: list[Any], expected: DeletionResult
) -> None:
    await driver.start(request_for({**agent(also=offers), "session/list": lists, "session/delete": [[result({})]]}))
    assert isinstance(driver, SupportsDeletion)
    assert await driver.delete_conversation() == expected


async def test_deletion_in_a_turn_ends_the_turn_first(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    script = {
        **agent(also=["delete", "close"], session_prompt=[chunk("agent", "hm")]),
        "session/delete": [[result({})]],
    }
    # The prompt is the third request; the scripted agent answers it when it is cancelled.
    ended = result({"stopReason": "cancelled"}).replace("$ID", "3")
    await driver.start(request_for({**script, "session/cancel": [[ended]]}))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    assert await eventually_async(host.agent_text)

    assert await delete(driver) == ""
    assert await turn == "cancelled"
    await driver.stop(5.0)

    methods = [each["method"] for each in read_by_agent()]
    assert methods == ["initialize", "session/new", "session/prompt", "session/cancel", "session/delete"]


@pytest.mark.parametrize(
    ("offers", "answer", "reason"),
    [
        (["delete"], [error(-32603, "it is locked")], "it is locked"),
        (["delete"], [1], "the agent ended first"),
        (["delete"], [], "the agent did not answer within 0.2 s"),
        ([], [result({})], "the agent does not offer to delete its transcript"),
    ],
)
async def test_transcript_that_is_not_deleted_has_a_reason(
    driver: Driver,
    request_for: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    offers: list[str],
    answer: list[Any],
    reason: str,
) -> None:
    assert await delete(driver) == "no agent is running"
    monkeypatch.setattr(acp, "_DELETE_TIMEOUT", 0.2 if not answer else 20.0)
    await driver.start(request_for({**agent(also=offers), "session/delete": [answer]}))
    assert await delete(driver) == reason
