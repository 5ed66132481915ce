"""Capabilities that an agent claims are tested at a start, and failures are reported."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, StartFailed
from tests.agents.conftest import MakeRequest, ReadByAgent, hang
from tests.agents.scripts import SESSION, Script, agent, error, result

NOT_FOUND = error(-32601, "Method not found")
WENT_WRONG = error(-32603, "the database is locked")


def ways(unkept: Any) -> dict[str, str]:
    return {name: failure["how"] for name, failure in unkept.items()}


async def test_capability_kept_another_way_is_reported_with_the_success(
    driver: Driver, request_for: MakeRequest
) -> None:
    script = agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[result({})])
    started = await driver.start(request_for(script, strategy="native", resume_token=SESSION))
    assert started.outcome == "resumed"
    assert started.unkept == {"load_session": {"how": "unimplemented", "said": "Method not found"}}


@pytest.mark.parametrize(
    ("script", "unkept"),
    [
        (agent(), {}),
        (agent(load=True, session_load=[NOT_FOUND]), {"load_session": "unimplemented"}),
        (
            agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[NOT_FOUND]),
            {"load_session": "unimplemented", "resume_session": "unimplemented"},
        ),
        (agent(load=True, session_load=[WENT_WRONG]), {"load_session": "error"}),
        (agent(resume=True, session_resume=[WENT_WRONG]), {"resume_session": "error"}),
        (agent(load=True, session_load=[error(-32000, "Authentication required")]), {}),
        (agent(load=True, session_load=[error(-32002, "conversation is gone")]), {}),
        (agent(load=True, session_load=[3]), {"load_session": "ended"}),
        (agent(load=True, session_load=[]), {"load_session": "no_answer"}),
    ],
    ids=[
        *("not claimed", "no such method", "neither of two", "an error", "an error over resume"),
        *("wants a login", "says gone", "ends", "is silent"),
    ],
)
async def test_failed_start_reports_which_claimed_capability_failed(
    script: Script, unkept: dict[str, str], driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    request = request_for(script, strategy="native", resume_token=SESSION, gone_patterns=("is gone",))
    if "no_answer" in unkept.values():
        failed = await hang(driver, request, "session/load", read_by_agent)
    else:
        with pytest.raises(StartFailed) as raised:
            await driver.start(request)
        failed = raised.value
    assert failed.told["agent"] == {"name": "scripted", "version": ""}
    assert ways(failed.told["unkept"]) == unkept


@pytest.mark.parametrize("title", ["", "Scripted Agent"])
async def test_title_of_the_agent_is_reported_beside_its_name(
    title: str, driver: Driver, request_for: MakeRequest
) -> None:
    started = await driver.start(request_for(agent(title=title)))
    assert started.agent == {"name": "scripted", "version": "", **({"title": title} if title else {})}


async def test_new_conversation_does_not_test_resume_capabilities(driver: Driver, request_for: MakeRequest) -> None:
    script = agent(load=True, session_new=[WENT_WRONG])
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script))
    assert failed.value.told["capabilities"]["load_session"] is True
    assert failed.value.told["unkept"] == {}


async def test_agent_failing_at_initialize_is_not_confused_with_its_predecessor(
    driver: Driver, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))
    await driver.stop(0)
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(agent(initialize=[WENT_WRONG])))
    assert failed.value.told == {}
