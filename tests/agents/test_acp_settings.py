"""Model, mode, directories and MCP servers are sent at every start, however the conversation was opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, StartFailed, acp_session_setup
from tests.agents.conftest import MakeRequest, ReadByAgent, hang
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, Script, agent, chunk, error, result
from tests.waiting import eventually_async, pass_time

MODES = {"modes": {"currentModeId": "build", "availableModes": [{"id": "plan-1", "name": "Plan"}]}}
MODELS = {"models": {"currentModelId": "small", "availableModels": [{"modelId": "big-2", "name": "Big"}]}}
MODE_OPTION = {"configOptions": [{"id": "mode", "type": "select", "options": [{"value": "plan-1", "name": "Plan"}]}]}
OFFERS = {**MODES, **MODELS}
SET: dict[str, Any] = {"session/set_mode": [[result({})]], "session/set_model": [[result({})]]}


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        (agent(session_new=[result({"sessionId": SESSION, **OFFERS})]), {}),
        (agent(load=True, session_load=[result(OFFERS)]), {"strategy": "native", "resume_token": SESSION}),
        (agent(resume=True, session_resume=[result(OFFERS)]), {"strategy": "native", "resume_token": SESSION}),
    ],
    ids=["new", "load", "resume"],
)
async def test_model_and_mode_are_set_however_the_conversation_was_opened(
    script: Script,
    changes: dict[str, Any],
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: ReadByAgent,
) -> None:
    await driver.start(request_for({**script, **SET}, model="big", mode="plan", **changes))

    assert [(message["method"], message["params"]) for message in read_by_agent()[-2:]] == [
        ("session/set_model", {"sessionId": SESSION, "modelId": "big-2"}),
        ("session/set_mode", {"sessionId": SESSION, "modeId": "plan-1"}),
    ]
    assert host.logs() == []


async def test_mode_can_be_a_configuration_option(
    driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    script = agent(session_new=[result({"sessionId": SESSION, **MODE_OPTION})])

    await driver.start(request_for({**script, "session/set_config_option": [[result({})]]}, mode="plan"))

    assert read_by_agent()[-1]["params"] == {"sessionId": SESSION, "configId": "mode", "value": "plan-1"}


@pytest.mark.parametrize(
    ("offers", "answer", "reason"),
    [
        ({}, [], "the agent does not offer it"),
        ({"modes": "none", "models": []}, [], "the agent does not offer it"),
        (OFFERS, [error(-32603, "not now")], "not now"),
        (OFFERS, [], "the agent did not answer within 10 s"),
    ],
    ids=["not offered", "offered in an invalid way", "refused", "no answer"],
)
async def test_unavailable_model_or_mode_is_logged_and_conversation_stays_open(
    offers: dict[str, Any],
    answer: list[Any],
    reason: str,
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: ReadByAgent,
) -> None:
    script = agent(session_new=[result({"sessionId": SESSION, **offers})])
    values = {**script, "session/set_mode": [answer], "session/set_model": [answer]}

    starting = asyncio.create_task(driver.start(request_for(values, model="big", mode="plan")))
    for method in ("session/set_model", "session/set_mode") if offers is OFFERS and not answer else ():
        await eventually_async(lambda method=method: method in [line.get("method") for line in read_by_agent()])  # type: ignore[misc]
        pass_time(10)
    started = await starting

    assert started.resume_token == SESSION
    assert host.logs() == [f"model big was not selected: {reason}", f"mode plan was not selected: {reason}"]
    assert await driver.prompt("m1", "hello", (), lambda: None) == "end_turn"


async def test_unsupported_mcp_servers_are_left_out_and_reported(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    servers = [{"name": name, "type": name, "url": "https://tools.example/"} for name in ("http", "sse")]
    claims = {"agentCapabilities": {"mcpCapabilities": {"http": True, "sse": False}}}
    script = {
        **agent(session_new=[result({"sessionId": SESSION})]),
        "initialize": [[result({"protocolVersion": 1, **claims})]],
    }

    await driver.start(request_for(script, mcp_servers=[*servers, {"name": "files", "command": "files"}]))

    assert [server["name"] for server in read_by_agent()[-1]["params"]["mcpServers"]] == ["http", "files"]
    [line] = host.of("agent.mcp_servers_left_out")
    assert line["servers"] == [{"name": "sse", "reason": "sse_unsupported"}]


@pytest.mark.parametrize("way", ["new", "load", "resume"])
async def test_directories_and_mcp_servers_are_sent_at_every_start(
    way: str, driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent, tmp_path: Path
) -> None:
    script = agent(load=way == "load", resume=way == "resume", also=["additionalDirectories"])
    opened = {f"session/{way}": [[result({"sessionId": SESSION})]]}
    changes = {} if way == "new" else {"strategy": "native", "resume_token": SESSION}
    servers = [{"name": "files", "command": "/bin/files"}]

    await driver.start(
        request_for({**script, **opened}, mcp_servers=servers, additional_directories=["/srv/docs"], **changes)
    )

    received = read_by_agent()[-1]
    assert received["method"] == f"session/{way}"
    assert received["params"].pop("sessionId", SESSION) == SESSION
    assert received["params"] == {
        "cwd": str(tmp_path),
        "mcpServers": [{"name": "files", "command": "/bin/files", "args": [], "env": []}],
        "additionalDirectories": ["/srv/docs"],
    }


async def test_unsupported_additional_directories_are_withheld_and_logged(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    await driver.start(request_for(agent(), additional_directories=["/srv/docs"]))

    assert "additionalDirectories" not in read_by_agent()[-1]["params"]
    assert host.logs() == ["the agent does not support additional directories, so none were passed to it"]


async def test_replayed_messages_of_a_resume_are_not_journalled(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    replay = [chunk("user", "fix it"), chunk("agent", "done")]
    script = agent(resume=True, session_resume=[*replay, result({}), chunk("agent", "new")])

    resumed = await driver.start(request_for(script, strategy="native", resume_token=SESSION))
    await driver.prompt("m1", "hello", (), lambda: None)

    assert (resumed.outcome, resumed.replayed, resumed.replayed_user_texts) == ("resumed", 2, ["fix it"])
    assert host.agent_text() == "new"


def listed(*ids: str, cursor: str | None = None) -> str:
    sessions = [{"sessionId": each, "cwd": "/"} for each in ids]
    return result({"sessions": sessions, **({"nextCursor": cursor} if cursor else {})})


GONE = ("the drawer is empty",)
LOST, LOCKED = error(-32602, "the drawer is empty"), error(-32603, "the database is locked")


@pytest.mark.parametrize(
    ("answer", "patterns", "pages", "is_gone"),
    [
        (LOST, GONE, [[listed("other")]], True),
        (LOST, GONE, [[listed("other", cursor="2")], [listed(SESSION)]], False),
        (LOST, GONE, [[LOCKED]], True),
        (LOST, GONE, [[3]], True),
        (LOCKED, GONE, [[listed("other")]], False),
        (LOST, (), [[listed("other")]], True),
        (LOST, (), [[listed("other", cursor="2")], [listed()]], True),
        (LOST, (), [[listed()]], False),
        (LOST, (), [[listed()], [listed("other")]], True),
        (LOST, (), [[listed()], [listed("other", SESSION)]], False),
        (LOST, (), [[listed(SESSION)]], False),
        (LOST, (), [[LOCKED]], False),
        (LOST, (), [[result({"sessions": "many"})]], False),
        (LOST, (), [[listed(cursor="again")]], False),
        (LOST, (), [[3]], False),
        (error(-32000, "Authentication required"), (), [[listed()]], False),
    ],
    ids=[
        *("says gone, not listed", "says gone, yet listed", "says gone, no list", "says gone, ends over the list"),
        *("other words, not listed", "no words known, not listed", "no words known, on no page"),
        *("an empty list", "others elsewhere", "listed elsewhere", "listed"),
        *("listing fails", "not a list", "an endless list", "ends over the list", "wants a login"),
    ],
)
async def test_session_list_distinguishes_lost_conversation_from_failed_load(
    answer: str,
    patterns: tuple[str, ...],
    pages: list[list[Any]],
    is_gone: bool,
    driver: Driver,
    request_for: MakeRequest,
) -> None:
    script: Script = {**agent(load=True, also=["list"], session_load=[answer]), "session/list": pages}
    request = request_for(script, strategy="native", resume_token=SESSION, gone_patterns=patterns)

    with pytest.raises(StartFailed) as failed:
        await driver.start(request)

    assert failed.value.token_valid is not is_gone
    assert (failed.value.code == "token_rejected") is is_gone
    assert driver.pid is None


@pytest.mark.parametrize(
    ("replay", "pages", "is_listed"),
    [
        ([], [[listed("other")]], False),
        ([], [[listed(SESSION)]], True),
        ([], [[listed()]], None),
        ([], [[LOCKED]], None),
        ([chunk("user", "fix it")], [[3]], None),
    ],
    ids=["not listed", "listed", "an empty list", "no list", "replayed: not asked"],
)
async def test_session_list_is_asked_for_a_load_that_replays_nothing(
    replay: list[str], pages: list[list[Any]], is_listed: bool | None, driver: Driver, request_for: MakeRequest
) -> None:
    opened = agent(load=True, also=["list"], session_load=[*replay, result({})])
    request = request_for({**opened, "session/list": pages}, strategy="native", resume_token=SESSION)
    assert (await driver.start(request)).listed is is_listed


async def test_missing_session_list_proves_nothing_and_has_a_short_timeout(
    driver: Driver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_session_setup, "LIST_TIMEOUT", 0.3)
    script: Script = {**agent(load=True, also=["list"], session_load=[LOST]), "session/list": [[]]}

    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script, strategy="native", resume_token=SESSION))

    assert (failed.value.code, failed.value.token_valid) == ("handshake_failed", True)
    assert "the drawer is empty" in failed.value.message


LIMIT_HINT = "; KANDEV_START_TIMEOUT sets this limit"
LOAD_LIMIT_HINT = "; KANDEV_START_TIMEOUT, or load_timeout of its agent type, sets this limit"


@pytest.mark.parametrize(
    ("script", "changes", "step", "method"),
    [
        (agent(initialize=[]), {}, f"the agent did not complete initialize within 45 s{LIMIT_HINT}", "initialize"),
        (agent(session_new=[]), {}, f"the agent did not complete session setup within 60 s{LIMIT_HINT}", "session/new"),
        (
            agent(load=True, session_load=[chunk("user", "old")]),
            {"strategy": "native", "resume_token": SESSION, "load_timeout": 90.0},
            f"the agent did not load its conversation within 90 s{LOAD_LIMIT_HINT}",
            "session/load",
        ),
        (
            agent(resume=True, session_resume=[]),
            {"strategy": "native", "resume_token": SESSION},
            f"the agent did not load its conversation within 60 s{LOAD_LIMIT_HINT}",
            "session/resume",
        ),
    ],
    ids=["initialize", "new", "a load that stops in its replay", "resume"],
)
async def test_hanging_step_is_named_and_the_token_stays_valid(
    script: Script,
    changes: dict[str, Any],
    step: str,
    method: str,
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: ReadByAgent,
) -> None:
    failed = await hang(driver, request_for(script, **changes), method, read_by_agent)

    assert (failed.code, failed.message) == ("start_timeout", step)
    assert failed.token_valid
    assert not failed.permanent
    assert (driver.pid, len(host.exits), host.tokens, host.agent_text()) == (None, 1, [], "")
