"""Starting an agent: new and restored conversations, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, StartFailed, StartRequest
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, Script, agent, chunk, error, result, update
from tests.waiting import eventually_async

GONE = ("(?i)resource not found", "is gone$")
NOT_FOUND = error(-32601, "Method not found")


async def _talk(driver: Driver, *texts: str) -> None:
    for number, text in enumerate(texts):
        await driver.prompt(f"message-{number}", text, (), lambda: None)


async def test_new_conversation_id_is_stored_before_the_start_is_reported(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    started = await driver.start(request_for("demo"))

    assert started.outcome == "created"
    assert host.tokens == [started.resume_token]
    assert started.agent == {"name": "kandev-demo-agent", "version": "1.0"}
    assert started.capabilities == {
        "load_session": True,
        "resume_session": False,
        "history": True,
        "protocol": "acp/1",
        "prompt": ["image", "resource"],
        "steering": True,
    }
    assert set(started.timings) == {"spawn", "initialize", "session"}
    assert driver.pid is not None


async def test_conversation_is_loaded_after_the_agent_was_killed(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    started = await driver.start(request_for("demo"))
    await _talk(driver, "remember pelican", "hello")
    await driver.stop(0)
    host.lines.clear()

    loaded = await driver.start(request_for("demo", strategy="native", resume_token=started.resume_token))

    assert (loaded.outcome, loaded.resume_token) == ("loaded", started.resume_token)
    assert loaded.replayed == 4
    assert loaded.replayed_user_texts == ["remember pelican", "hello"]
    assert [line for line in host.lines if not line["kind"].startswith("agent.")] == [], (
        "the replay is not reported as new output"
    )
    await _talk(driver, "what was the word?")
    assert host.agent_text() == "The word was pelican.\n"


async def test_replay_of_another_conversation_is_reported_unchanged(driver: Driver, request_for: MakeRequest) -> None:
    loaded = await driver.start(request_for("lies_about_load", strategy="native", resume_token="conversation-7"))

    assert loaded.outcome == "loaded"
    assert loaded.replayed_user_texts == ["paint the shed green"]


async def test_empty_replay_is_reported_unchanged(driver: Driver, request_for: MakeRequest) -> None:
    loaded = await driver.start(request_for("forgets", strategy="native", resume_token="conversation-7"))

    assert (loaded.outcome, loaded.replayed, loaded.replayed_user_texts) == ("loaded", 0, [])


async def test_only_the_last_twenty_user_texts_are_kept_and_truncated(driver: Driver, request_for: MakeRequest) -> None:
    replay = [line for n in range(30) for line in (chunk("user", f"{n} " + "ä" * 4096), chunk("agent", "yes"))]
    script = agent(load=True, session_load=[*replay, result(None)])

    loaded = await driver.start(request_for(script, strategy="native", resume_token=SESSION))

    assert loaded.replayed == 60
    assert [text.split()[0] for text in loaded.replayed_user_texts] == [str(n) for n in range(10, 30)]
    assert all(4090 < len(text.encode()) <= 4096 for text in loaded.replayed_user_texts)


async def test_chunks_of_one_replayed_message_are_joined(driver: Driver, request_for: MakeRequest) -> None:
    replay = [
        *(chunk("user", "fix ", messageId="m1"), chunk("user", "the roof", messageId="m1")),
        chunk("user", "and the door", messageId="m2"),
    ]
    script = agent(load=True, session_load=[*replay, result({})])

    loaded = await driver.start(request_for(script, strategy="native", resume_token=SESSION))

    assert loaded.replayed_user_texts == ["fix the roof", "and the door"]
    assert loaded.replayed == 2


async def test_message_right_after_the_load_response_is_new(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    lines = "\n".join([chunk("user", "old"), result({}), chunk("agent", "new")])
    script = agent(load=True, session_load=[lines])

    loaded = await driver.start(request_for(script, strategy="native", resume_token=SESSION))

    assert loaded.replayed == 1
    assert host.agent_text() == "new"


@pytest.mark.parametrize(
    ("script", "prefer_load", "outcome", "requests"),
    [
        (agent(load=True, resume=True, session_load=[result({})]), True, "loaded", ["load"]),
        (agent(load=True, resume=True, session_resume=[result({})]), False, "resumed", ["resume"]),
        (agent(resume=True, session_resume=[result({})]), True, "resumed", ["resume"]),
        (agent(load=True, session_load=[result({})]), False, "loaded", ["load"]),
        (
            agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[result({})]),
            True,
            "resumed",
            ["load", "resume"],
        ),
    ],
    ids=["load first", "resume first", "only resume", "only load", "load only claimed"],
)
async def test_restore_method_follows_capabilities_and_preference(
    script: Script,
    prefer_load: bool,
    outcome: str,
    requests: list[str],
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
) -> None:
    request = request_for(script, strategy="native", resume_token=SESSION, prefer_load=prefer_load)

    started = await driver.start(request)

    assert (started.outcome, started.resume_token) == (outcome, SESSION)
    assert host.tokens == [SESSION]
    assert [message["method"] for message in read_by_agent()] == ["initialize", *(f"session/{way}" for way in requests)]


@pytest.mark.parametrize(
    "script",
    [
        agent(),
        agent(load=True, session_load=[NOT_FOUND]),
        agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[NOT_FOUND]),
    ],
    ids=["nothing offered", "load only claimed", "both only claimed"],
)
async def test_unrestorable_conversation_is_never_replaced_by_a_new_one(
    script: Script,
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script, strategy="native", resume_token=SESSION))

    assert (failed.value.code, failed.value.token_valid) == ("resume_unsupported", True)
    assert "session/new" not in [message.get("method") for message in read_by_agent()]
    assert host.tokens == []


@pytest.mark.parametrize(
    ("answer", "patterns", "code", "token_valid"),
    [
        (error(-32002, "Resource not found: abc"), GONE, "token_rejected", False),
        (error(-32603, "conversation abc is gone"), GONE, "token_rejected", False),
        (error(-32603, "Internal error", {"details": "Resource not found"}), GONE, "token_rejected", False),
        (error(-32002, "Resource not found: abc"), (), "handshake_failed", True),
        (error(-32002, f"Resource not found: {SESSION}"), (), "token_rejected", False),
        (error(-32002, "Not found", {"sessionId": SESSION}), ("no such words",), "token_rejected", False),
        (error(-32602, f"Unknown sessionId: {SESSION}"), (), "token_rejected", False),
        (error(-32602, f"Session not found: {SESSION}"), (), "token_rejected", False),
        (error(-1, f"cannot load {SESSION}"), (), "token_rejected", False),
        (error(-32603, "OpenCode service failure", {"service": "session"}), (), "token_rejected", False),
        (error(-32603, "Unknown session identifier"), (), "token_rejected", False),
        (error(-32603, "Path not found", {"code": "FS_NOT_FOUND"}), (), "token_rejected", False),
        (error(-32002, "Resource not found"), (), "handshake_failed", True),
        (error(-32002, "Resource not found", {"uri": "mcp://files"}), (), "handshake_failed", True),
        (error(-32603, "Resource not found"), (), "handshake_failed", True),
        (error(-32602, "Invalid session ID"), (), "token_rejected", False),
        (error(-32603, "The session has been deleted"), (), "token_rejected", False),
        (error(-32603, "Session is not live"), (), "token_rejected", False),
        (error(-32603, "Conversation no longer available"), (), "token_rejected", False),
        (error(-32603, "The requested session could not be located"), (), "token_rejected", False),
        (error(-32603, "Unable to find session"), (), "token_rejected", False),
        (error(-32603, "Chat history not found"), (), "token_rejected", False),
        (error(-32603, "会话不存在"), (), "token_rejected", False),
        (error(-32603, "Session expired"), (), "handshake_failed", True),
        (error(-32603, "You are not signed in"), (), "auth_required", True),
        (error(-32603, f"{SESSION} is already in use"), (), "handshake_failed", True),
        (error(-32603, f"timed out while {SESSION} was read"), (), "handshake_failed", True),
        (error(-32603, f"Please log in to open {SESSION}"), (), "auth_required", True),
        (error(-32603, "cannot open"), (), "handshake_failed", True),
        (error(-32603, "Session 42 not found"), (), "token_rejected", False),
        (error(-32603, "Conversation '7' does not exist"), (), "token_rejected", False),
        (error(-32602, "No session found"), (), "token_rejected", False),
        (error(-32600, "session/load: No saved sessions found"), (), "token_rejected", False),
        (error(-32603, "No previous conversations were found in this directory"), (), "token_rejected", False),
        (error(-32603, "No session token found"), (), "handshake_failed", True),
        (error(-32603, "No sessions directory found"), (), "handshake_failed", True),
        (error(-32602, "Could not find the session"), (), "token_rejected", False),
        (error(-32603, "SessionNotFoundError"), (), "token_rejected", False),
        (error(-32603, "Internal error", {"code": "session_not_found"}), (), "token_rejected", False),
        (error(-32603, f"Nothing is known of {SESSION.upper()}"), (), "token_rejected", False),
        (error(-32603, f"HTTP 404 Not Found: GET /sessions/{SESSION}"), (), "token_rejected", False),
        (error(-32603, f"HTTP 500 Internal Server Error: GET /sessions/{SESSION}"), (), "handshake_failed", True),
        (error(-32603, f"status code: 429 for /sessions/{SESSION}"), (), "handshake_failed", True),
        (error(-32603, f"HTTP 401 Unauthorized: GET /sessions/{SESSION}"), (), "handshake_failed", True),
        (error(-32603, f"SQLITE_BUSY: {SESSION}"), (), "handshake_failed", True),
        (error(-32603, f"{SESSION} is in use by another process"), (), "handshake_failed", True),
        (error(-32603, f"{SESSION} is being used by process 44"), (), "handshake_failed", True),
        (error(-32603, f"{SESSION} is attached to another client"), (), "handshake_failed", True),
        (error(-32603, f"EROFS: read-only file system, open '{SESSION}.json'"), (), "handshake_failed", True),
        (error(-32603, "Session store not found"), (), "handshake_failed", True),
        (error(-32603, "Internal error: no such thread"), (), "token_rejected", False),
        (error(-32602, "The conversation could not be found"), (), "token_rejected", False),
        (error(-32603, f"{SESSION}: model big-1 is not available"), (), "handshake_failed", True),
        (error(-32603, f"MCP server files failed to start for {SESSION}"), (), "handshake_failed", True),
        (error(-32603, f"cannot read {SESSION}", {"code": "ECONNREFUSED"}), (), "handshake_failed", True),
        (error(-32603, f"{SESSION}: disk quota exceeded"), (), "handshake_failed", True),
        (error(-32603, f"loading of {SESSION} was cancelled"), (), "handshake_failed", True),
        (error(-32603, f"{SESSION} is locked"), (), "handshake_failed", True),
        (error(-32603, "the database is locked"), GONE, "handshake_failed", True),
        (error(-32603, "is gone"), ("(", "is gone"), "token_rejected", False),
        (error(-32000, "Authentication required"), GONE, "auth_required", True),
        ('{"id": $ID, "error": "no object"}', GONE, "handshake_failed", True),
    ],
)
async def test_resource_not_found_and_known_messages_mean_conversation_is_gone(
    answer: str,
    patterns: tuple[str, ...],
    code: str,
    token_valid: bool,
    driver: Driver,
    request_for: MakeRequest,
) -> None:
    script = agent(load=True, session_load=[answer])

    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script, strategy="native", resume_token=SESSION, gone_patterns=patterns))

    assert (failed.value.code, failed.value.token_valid) == (code, token_valid)


@pytest.mark.parametrize(
    ("script", "code", "permanent"),
    [
        (agent(initialize=[result({"protocolVersion": 2})]), "handshake_failed", True),
        (agent(initialize=[result({"protocolVersion": "0.9"})]), "handshake_failed", True),
        (agent(initialize=[result("hello")]), "handshake_failed", True),
        (agent(initialize=[error(-32603, "no")]), "handshake_failed", False),
        (agent(session_new=[error(-32000, "Authentication required")]), "auth_required", True),
        (agent(session_new=[result({})]), "handshake_failed", False),
        (agent(session_new=[result({"sessionId": 7})]), "handshake_failed", True),
        (agent(session_new=[3]), "agent_exited", False),
    ],
)
async def test_failed_handshake_is_reported_and_leaves_no_process(
    script: Script, code: str, permanent: bool, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(script))

    assert (failed.value.code, failed.value.permanent, failed.value.token_valid) == (code, permanent, True)
    assert driver.pid is None
    assert len(host.exits) == 1


@pytest.mark.parametrize(
    ("behaviour", "changes"),
    [("hangs_at_initialize", {}), ("hangs_at_load", {"strategy": "native", "resume_token": SESSION})],
)
async def test_hanging_agent_is_ended_after_the_timeout(
    behaviour: str, changes: dict[str, Any], driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_for(behaviour, timeout=5, **changes))

    assert (failed.value.code, failed.value.token_valid) == ("start_timeout", True)
    assert driver.pid is None
    assert len(host.exits) == 1


async def test_agent_that_exits_at_once_is_reported_with_its_stderr(driver: Driver, tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", "echo 'no licence found' >&2; exit 4"]

    with pytest.raises(StartFailed) as failed:
        await driver.start(StartRequest("launch", argv, {}, str(tmp_path), "fresh"))

    assert failed.value.code == "agent_exited"
    assert "code 4" in failed.value.message
    assert "no licence found" in failed.value.message


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [
        (["/no/such/program"], None, "program_missing"),
        (["no-such-program"], None, "program_missing"),
        ([], None, "spawn_failed"),
        (["/bin/sh"], "/no/such/directory", "spawn_failed"),
        (["/no/such/program"], "/no/such/directory", "spawn_failed"),
        (["/etc/passwd"], None, "spawn_failed"),
        (["a\0b"], None, "spawn_failed"),
    ],
)
async def test_unstartable_program_is_a_permanent_failure(
    argv: list[str], cwd: str | None, code: str, driver: Driver, host: RecordingHost, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(StartRequest("launch", argv, {}, cwd or str(tmp_path), "fresh"))

    assert (failed.value.code, failed.value.permanent) == (code, True)
    assert host.exits == [], "the agent had no process"


async def test_missing_program_names_the_path_that_was_searched(driver: Driver, tmp_path: Path) -> None:
    env = {"PATH": "/opt/agents/bin:/bin"}
    with pytest.raises(StartFailed, match="in the PATH /opt/agents/bin:/bin"):
        await driver.start(StartRequest("launch", ["no-such-program"], env, str(tmp_path), "fresh"))


async def test_agent_that_exits_for_missing_login_reports_auth_required(driver: Driver, tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", "echo 'Not logged in. Please run /login' >&2; exit 1"]

    with pytest.raises(StartFailed) as failed:
        await driver.start(StartRequest("launch", argv, {}, str(tmp_path), "fresh"))

    assert (failed.value.code, failed.value.permanent) == ("auth_required", True)
    assert "Please run /login" in failed.value.message


async def test_cancelled_start_leaves_no_process(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    starting = asyncio.create_task(driver.start(request_for("hangs_at_initialize")))
    await eventually_async(lambda: driver.pid is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert driver.pid is None
    assert len(host.exits) == 1


async def test_slow_agent_is_waited_for(driver: Driver, request_for: MakeRequest) -> None:
    started = await driver.start(request_for("slow_start"))

    assert started.timings["initialize"] > 1000


OPTIONS = [
    {
        "id": "m",
        "category": "model",
        "type": "select",
        "options": [{"group": "g", "options": [{"value": "big-2", "name": "Big"}]}],
    }
]
MODELS = {"availableModels": [{"modelId": "big-2", "name": "Big"}], "currentModelId": "small"}


@pytest.mark.parametrize(
    ("settings", "method", "chosen"),
    [
        ({"configOptions": OPTIONS}, "session/set_config_option", {"configId": "m", "value": "big-2"}),
        ({"models": MODELS}, "session/set_model", {"modelId": "big-2"}),
    ],
)
async def test_model_is_selected_where_the_agent_offers_it(
    settings: dict[str, Any],
    method: str,
    chosen: dict[str, str],
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
) -> None:
    script = {**agent(session_new=[result({"sessionId": SESSION, **settings})]), method: [[result({})]]}

    await driver.start(request_for(script, model="big"))

    assert read_by_agent()[-1]["method"] == method
    assert read_by_agent()[-1]["params"] == {"sessionId": SESSION, **chosen}
    assert host.logs() == []


async def test_unavailable_model_is_logged_and_does_not_fail_the_start(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(), model="big"))

    assert host.logs() == ["model big was not selected: the agent does not offer it"]


async def test_updates_may_arrive_before_the_conversation_has_an_id(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    script = agent(session_new=[update("future_update"), result({"sessionId": SESSION})])

    started = await driver.start(request_for(script))

    assert started.resume_token == SESSION
    assert host.logs() == ["the agent sent future_update"]


async def test_version_of_the_protocol_may_be_a_text(driver: Driver, request_for: MakeRequest) -> None:
    initialized = result({"protocolVersion": "1", "agentCapabilities": {}})
    started = await driver.start(request_for(agent(initialize=[initialized])))
    assert started.outcome == "created"
