"""Login and logout of an agent before its conversation, by the methods that it publishes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, LoginRequest, StartFailed
from executors_app.agentctl.drivers.json_rpc import RpcError
from executors_app.wire.auth_methods import parse_auth_methods
from tests.agents.conftest import MakeRequest, ReadByAgent, hang
from tests.agents.scripts import agent, result
from tests.waiting import PATIENCE, eventually_async, pass_time


def login(method: str = "demo", timeout: float = 60) -> LoginRequest:
    return LoginRequest("login", method, timeout)


@pytest.fixture
def logged_out(request_for: MakeRequest) -> MakeRequest:
    """Return a function that builds start requests for the demo agent, which requires a login."""
    return partial(request_for, "login")


async def test_logged_out_agent_reports_its_methods(driver: Driver, logged_out: MakeRequest) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(logged_out())

    assert failed.value.code == "auth_required"
    auth = failed.value.told["auth"]
    assert [(each["id"], each["type"]) for each in auth["methods"]] == [
        ("demo", "agent"),
        ("expired", "agent"),
        ("terminal", "terminal"),
    ]
    assert auth["logout"] is True
    assert "login" not in failed.value.told


async def test_login_precedes_the_conversation(driver: Driver, logged_out: MakeRequest) -> None:
    started = await driver.start(logged_out(login=login()))

    assert (started.outcome, started.login) == ("created", {"state": "succeeded", "code": "", "reason": ""})
    await driver.stop(0)
    assert (await driver.start(logged_out())).login == {}, "the agent stays logged in"


async def test_logout_ends_the_start(driver: Driver, logged_out: MakeRequest) -> None:
    await driver.start(logged_out(login=login()))
    await driver.stop(0)

    with pytest.raises(StartFailed) as failed:
        await driver.start(logged_out(login=LoginRequest("logout", "", 60)))

    assert (failed.value.code, failed.value.told["login"]["state"]) == ("auth_required", "succeeded")
    assert driver.pid is None
    with pytest.raises(StartFailed, match="Authentication required"):
        await driver.start(logged_out())


@pytest.mark.parametrize(
    ("args", "requested", "code", "reason"),
    [
        ((), login("expired"), "login_failed", "This account has expired"),
        ((), login("terminal"), "login_unsupported", "no longer offers"),
        ((), login("other"), "login_unsupported", "no longer offers"),
        (("--login-hangs",), login(timeout=0.2), "login_timeout", "did not finish within 0.2 s"),
    ],
)
async def test_failed_login_has_a_reason(
    args: tuple[str, ...], requested: LoginRequest, code: str, reason: str, driver: Driver, logged_out: MakeRequest
) -> None:
    with pytest.raises(StartFailed, match="the login failed") as failed:
        await driver.start(logged_out(*args, login=requested))

    outcome = failed.value.told["login"]
    assert (failed.value.code, outcome["state"], outcome["code"]) == ("auth_required", "failed", code)
    assert reason in outcome["reason"]
    assert driver.pid is None


async def test_login_has_its_own_limit_beside_that_of_the_handshake(driver: Driver, logged_out: MakeRequest) -> None:
    request = logged_out("--login-hangs", login=login(timeout=2 * PATIENCE), timeout=PATIENCE)
    starting = asyncio.create_task(driver.start(request))
    await eventually_async(lambda: driver._step == "login")  # type: ignore[attr-defined]
    pass_time(1.5 * PATIENCE)
    await asyncio.wait([starting], timeout=0.1)
    assert not starting.done()
    pass_time(PATIENCE)
    with pytest.raises(StartFailed, match=r"the login failed: the agent did not finish within 120 s"):
        await starting


async def test_session_setup_after_a_login_is_still_limited(
    driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    opened = {"protocolVersion": 1, "authMethods": [{"id": "a", "name": "A"}]}
    script = agent(initialize=[result(opened)], authenticate=[result({})], session_new=[])
    failed = await hang(driver, request_for(script, login=login("a")), "session/new", read_by_agent)
    assert "did not complete session setup within 60 s" in failed.message


async def test_agent_that_ends_during_the_login_has_failed_it(driver: Driver, request_for: MakeRequest) -> None:
    opened = {"protocolVersion": 1, "authMethods": [{"id": "a", "name": "A"}]}
    script = agent(initialize=[result(opened)], authenticate=[3])
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script, login=login("a")))

    assert (failed.value.code, failed.value.told["login"]["state"]) == ("agent_exited", "failed")


async def test_logout_that_the_agent_does_not_offer_is_not_sent(driver: Driver, request_for: MakeRequest) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for("demo", login=LoginRequest("logout", "", 60)))
    assert failed.value.code == "login_unsupported"


@pytest.mark.parametrize(
    "method",
    [
        "text",
        {"id": "", "name": "No id"},
        {"id": "a\nb", "name": "Two lines"},
        {"id": "a", "type": "browser"},
        {"id": "a", "type": "terminal", "args": "--login"},
        {"id": "a", "type": "terminal", "args": ["x\x1b[2J"]},
        {"id": "a", "type": "terminal", "args": ["right\u202eleft"]},
        {"id": "a", "type": "terminal", "args": ["x" * 501]},
        {"id": "a", "type": "terminal", "args": ["x"] * 33},
        {"id": "a", "type": "terminal", "args": ["x\ny"]},
        {"id": "a", "type": "terminal", "args": ["zero\u200bwidth"]},
        {"id": "a", "type": "terminal", "args": ["filler\u3164"]},
        {"id": "a", "type": "terminal", "args": ["--p\u0430th"]},
        {"id": "a", "type": "terminal", "env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"id": "a", "type": "terminal", "env": {"BROWSER": "/tmp/x"}},
        {"id": "a", "type": "terminal", "env": {"npm_config_node_options": "--require=/tmp/x.js"}},
        {"id": "a", "type": "terminal", "env": {"OPENSSL_CONF": "/tmp/x"}},
        {"id": "a", "type": "terminal", "env": {"HTTPS_PROXY": "http://127.0.0.1:1"}},
        {"id": "a", "type": "terminal", "env": {"HARMLESS": "1"}},
        {"id": "a", "type": "terminal", "env": "LD_PRELOAD=/tmp/x.so"},
        {"id": "a", "type": "env_var"},
        {"id": "a", "type": "env_var", "vars": [{"name": "not a name"}]},
    ],
)
def test_malformed_method_is_dropped(method: Any) -> None:
    assert parse_auth_methods([method]) == []


def test_method_keeps_only_what_its_type_may_have() -> None:
    given = {"id": "a", "name": "Log\x07in", "args": ["x"], "env": {}, "_meta": {"command": "/tmp/evil"}}
    [agent_method] = parse_auth_methods([given])
    assert agent_method == {
        "id": "a",
        "name": "Log in",
        "description": "",
        "type": "agent",
        "args": [],
        "env": {},
        "variables": [],
        "link": "",
    }
    [terminal] = parse_auth_methods([{**given, "type": "terminal"}, {**given, "name": "again"}])
    assert (terminal["args"], terminal["env"]) == (["x"], {})
    [variables] = parse_auth_methods(
        [{"id": "k", "type": "env_var", "vars": [{"name": "KEY"}], "link": "javascript:1"}]
    )
    assert (variables["variables"], variables["link"]) == (["KEY"], "")
    assert parse_auth_methods([variables]) == [variables], "stored methods are read back unchanged"
    for address in ("https://ok.example@evil.example/", "https://evil.example/\u202ekod", "http://example.org/"):
        [method] = parse_auth_methods([{"id": "k", "type": "env_var", "vars": ["KEY"], "link": address}])
        assert method["link"] == "", "an address that does not read as what it is"
    assert len(parse_auth_methods([{"id": str(number)} for number in range(100)])) == 16


def test_login_error_names_the_ways_to_log_in_in_words() -> None:
    methods = [
        {"id": "browser", "name": "Browser", "description": "Opens a browser"},
        {"id": "key", "name": "API key", "type": "env_var", "vars": [{"name": "PI_KEY"}]},
    ]
    text = RpcError(-32000, "Authentication required", {"authMethods": methods}).text
    assert text == "Authentication required. The agent offers: Browser (Opens a browser); API key (needs PI_KEY)"
    assert RpcError(-32000, "No", {"authMethods": 5, "at": "x"}).text == 'No ({"at":"x"})'
