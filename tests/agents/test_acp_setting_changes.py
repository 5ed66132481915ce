"""Settings, commands and title of an ACP agent: what is recorded, and how a setting is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, SettingRefused, SupportsSettings
from executors_app.agentctl.drivers.acp_settings import AcpSettings
from executors_app.wire.agent_settings import MAX_CHOICES, MAX_COMMANDS, MAX_SETTINGS, TITLE_LIMIT
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, Action, agent, chunk, error, result, update
from tests.waiting import eventually_async

ReadByAgent = Callable[[], list[dict[str, Any]]]
Recorded = list[tuple[str, dict[str, Any]]]

MODES = {
    "modes": {"currentModeId": "act", "availableModes": [{"id": "act", "name": "Act"}, {"id": "plan", "name": "Plan"}]}
}
SWITCH = {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": False}
EFFORT = {
    "id": "effort",
    "name": "Effort",
    "type": "select",
    "currentValue": "low",
    "options": [{"group": "g", "name": "G", "options": [{"value": "low"}, {"value": "high", "name": "High"}]}],
}
OFFERS = {**MODES, "configOptions": [SWITCH, EFFORT]}
MODE_OPTION = {"id": "m", "category": "mode", "type": "select", "currentValue": "act", "options": [{"value": "act"}]}


def settings(*answers: dict[str, Any]) -> tuple[AcpSettings, Recorded]:
    """Return settings that read these answers, and the list that they record to."""
    recorded: Recorded = []
    made = AcpSettings(lambda kind, **body: recorded.append((str(kind), body)))
    for answer in answers:
        made.open(answer)
    made.publish()
    return made, recorded


def values(made: AcpSettings) -> dict[str, Any]:
    return {each["id"]: each["value"] for each in made.settings}


def report(made: AcpSettings, kind: str, **body: Any) -> None:
    made.handle_update({"sessionUpdate": kind, **body})


def test_modes_and_options_of_an_answer_are_recorded_in_one_shape() -> None:
    made, recorded = settings(OFFERS)
    assert values(made) == {"fast": False, "effort": "low", "mode": "act"}
    assert [(kind, body["reason"]) for kind, body in recorded] == [("agent.settings", "opened")]
    assert [each["value"] for each in made.settings[1]["choices"]] == ["low", "high"]


def test_mode_that_is_an_option_too_is_that_option() -> None:
    made, _ = settings({**MODES, "configOptions": [MODE_OPTION]})
    assert values(made) == {"m": "act"}


def test_updates_are_recorded_once_for_each_change() -> None:
    made, recorded = settings(OFFERS)
    for _ in range(2):
        report(made, "current_mode_update", currentModeId="plan")
        report(made, "config_option_update", configOptions=[{**SWITCH, "currentValue": True}])
        report(made, "available_commands_update", availableCommands=[{"name": "work", "input": {"hint": "s"}}])
        report(made, "session_info_update", title="Fences")
        report(made, "session_info_update", updatedAt="2026-01-01")
    assert [kind for kind, _ in recorded] == ["agent.settings"] * 3 + ["agent.commands", "agent.title"]
    assert recorded[-2][1]["commands"] == [{"name": "work", "description": "", "hint": "s"}]
    report(made, "session_info_update", title=None)
    assert recorded[-1] == ("agent.title", {"title": ""})


def test_updates_before_the_conversation_is_open_are_recorded_with_it() -> None:
    recorded: Recorded = []
    made = AcpSettings(lambda kind, **body: recorded.append((str(kind), body)))
    report(made, "current_mode_update", currentModeId="long past")
    report(made, "available_commands_update", availableCommands=[{"name": "work"}])
    assert recorded == []
    made.open(OFFERS)
    made.publish()
    assert [kind for kind, _ in recorded] == ["agent.settings", "agent.commands"]
    assert values(made)["mode"] == "act"


@pytest.mark.parametrize(
    "value", [None, 7, "text", [None, 7, {}], [{"id": 7, "type": "boolean"}], [{"id": "x", "type": "date"}]]
)
def test_malformed_reports_are_left_out(value: Any) -> None:
    made, recorded = settings({"configOptions": value, "modes": value})
    report(made, "config_option_update", configOptions=value)
    report(made, "available_commands_update", availableCommands=value)
    report(made, "current_mode_update", currentModeId=value)
    report(made, "session_info_update", title=value if not isinstance(value, str) else None)
    assert made.settings == []
    assert all(not any(body.values()) or "reason" in body for _, body in recorded)


def test_counts_and_sizes_of_reports_are_bounded() -> None:
    choices = [{"value": str(number), "name": "x" * 9999} for number in range(5000)]
    options = [{"id": f"o{number}", "type": "select", "options": choices} for number in range(500)]
    made, recorded = settings({"configOptions": [*options, *({**SWITCH, "id": f"s{number}"} for number in range(500))]})
    report(made, "available_commands_update", availableCommands=[{"name": f"c{number}"} for number in range(5000)])
    report(made, "session_info_update", title="t\n" * 9999)
    assert len(made.settings) == MAX_SETTINGS
    assert sum(len(each["choices"]) for each in made.settings) <= MAX_CHOICES
    assert len(recorded[1][1]["commands"]) == MAX_COMMANDS
    assert len(recorded[2][1]["title"]) <= TITLE_LIMIT


async def change(driver: Driver, setting: str, value: str | bool) -> None:
    assert isinstance(driver, SupportsSettings)
    await driver.change_setting(setting, value, lambda: None)


SET = {
    "session/set_mode": [[result({})]],
    "session/set_config_option": [[result({"configOptions": [{**SWITCH, "currentValue": True}, EFFORT]})]],
}
NEW: list[Action] = [result({"sessionId": SESSION, **OFFERS})]


async def test_mode_and_switch_are_changed_during_a_turn(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    await driver.start(request_for({**agent(session_new=NEW, session_prompt=[chunk("agent", "hm")]), **SET}))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    assert await eventually_async(host.agent_text)

    await change(driver, "mode", "plan")
    await change(driver, "fast", True)
    await change(driver, "fast", True)  # it has this value already: nothing is sent

    sent = [(each["method"], each["params"]) for each in read_by_agent() if each["method"].startswith("session/set")]
    assert sent == [
        ("session/set_mode", {"sessionId": SESSION, "modeId": "plan"}),
        ("session/set_config_option", {"sessionId": SESSION, "configId": "fast", "value": True, "type": "boolean"}),
    ]
    last = host.of("agent.settings")[-1]
    assert {each["id"]: each["value"] for each in last["settings"]} == {"fast": True, "effort": "low", "mode": "plan"}
    assert last["reason"] == "asked"
    await driver.stop(0)
    await asyncio.gather(turn, return_exceptions=True)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("mode", "plan", "not on this plan"),
        ("effort", "high", "the agent kept another value"),
        ("nothing", "x", "the agent does not offer it"),
        ("mode", "yolo", "the agent does not offer this value"),
        ("fast", "true", "the agent does not offer this value"),
    ],
)
async def test_refused_change_has_its_reason(
    driver: Driver, request_for: MakeRequest, setting: str, value: str, reason: str
) -> None:
    script = {**agent(session_new=NEW), **SET, "session/set_mode": [[error(-32602, "not on\n this plan")]]}
    await driver.start(request_for(script))
    with pytest.raises(SettingRefused, match=reason):
        await change(driver, setting, value)


async def test_start_applies_what_users_chose_before_it_is_ready(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    chosen = [
        {"change_id": "c1", "setting": "mode", "value": "plan"},
        {"change_id": "c2", "setting": "fast", "value": False},
        {"change_id": "c3", "setting": "gone", "value": "x"},
    ]
    await driver.start(request_for({**agent(session_new=NEW), **SET}, settings=chosen))

    assert [each["method"] for each in read_by_agent()] == ["initialize", "session/new", "session/set_mode"]
    assert [each["change_id"] for each in host.of("setting.applied")] == ["c1", "c2"]
    assert [(each["change_id"], each["code"]) for each in host.of("setting.refused")] == [("c3", "unknown_setting")]
    assert {each["id"]: each["value"] for each in host.of("agent.settings")[0]["settings"]}["mode"] == "plan"


async def test_reports_during_a_replay_are_not_lost(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    replay = [chunk("user", "fix it"), update("available_commands_update", availableCommands=[{"name": "work"}])]
    await driver.start(
        request_for(agent(load=True, session_load=[*replay, result(OFFERS)]), strategy="native", resume_token=SESSION)
    )
    assert host.of("agent.commands")[0]["commands"][0]["name"] == "work"
