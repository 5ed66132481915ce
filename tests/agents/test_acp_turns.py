"""Turns with an agent: output, permissions, tool calls, and the ways in which a turn ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, SupportsOwnWork, TurnFailed
from executors_app.agentctl.drivers.acp import AcpDriver
from executors_app.wire.protocol import JournalKind
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, agent, chunk, error, notification, request, result, update
from tests.support.faulty_agent import BIG_LINE, Garbage
from tests.waiting import eventually_async


def _output_of(home: Path) -> str:
    """Return all that the agent has said, according to its own log."""
    return "".join(path.read_text() for path in home.glob("*.said"))


async def test_turn_streams_the_agents_text_unchanged(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for("demo"))

    reason = await driver.prompt("m1", "work 0.5\nremember pelican\nschöne Grüße", (), lambda: None)

    assert reason == "end_turn"
    assert host.agent_text().startswith("tick 1\ntick 2\ntick 3\ntick 4\ntick 5\nI will remember pelican.\n")
    assert "schöne Grüße" in host.agent_text()
    assert host.agent_text() == _output_of(tmp_path / "home")


async def test_prompt_is_reported_delivered_before_the_agent_can_answer(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))

    async def delivered() -> None:
        host.record("prompt.delivered")

    await driver.prompt("m1", "hello " + "x" * 1_000_000, (), delivered)

    turn = [line["kind"] for line in host.lines if not line["kind"].startswith("agent.")]
    assert turn == ["prompt.delivered", "message.agent"]


async def test_tool_calls_and_their_results_are_recorded(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for("demo"))

    await driver.prompt("m1", "write notes/today.txt all is well", (), lambda: None)

    (call,), (done,) = host.of("tool.call"), host.of("tool.update")
    assert (call["title"], call["tool_kind"], call["status"]) == ("Write notes/today.txt", "edit", "in_progress")
    assert done["tool_call_id"] == call["tool_call_id"]
    assert done["status"] == "completed"
    assert (tmp_path / "notes/today.txt").read_text() == "all is well\n"


@pytest.mark.parametrize(
    ("option", "words"), [("allow", "The answer was allow.\n"), ("reject", "The answer was reject.\n")]
)
async def test_permission_waits_until_it_is_answered(
    option: str, words: str, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))
    turn = asyncio.create_task(driver.prompt("m1", "ask", (), lambda: None))
    (request, answer), *_ = await eventually_async(lambda: host.questions)

    assert [each["option_id"] for each in request["options"]] == ["allow", "reject"]
    assert [each["kind"] for each in request["options"]] == ["allow_once", "reject_once"]
    assert request["tool_call"]["title"] == "Do something careful"
    answer.set_result(option)

    assert await turn == "end_turn"
    assert host.agent_text() == words


async def test_cancelled_permission_ends_the_turn_as_the_agent_decides(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))
    turn = asyncio.create_task(driver.prompt("m1", "ask", (), lambda: None))
    (_, answer), *_ = await eventually_async(lambda: host.questions)

    answer.set_result(None)

    assert await turn == "cancelled"


async def test_cancelled_turn_ends_at_once_and_the_next_one_works(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))
    turn = asyncio.create_task(driver.prompt("m1", "work 60", (), lambda: None))
    await eventually_async(host.agent_text)

    await driver.cancel()

    assert await turn == "cancelled"
    assert await driver.prompt("m2", "hello", (), lambda: None) == "end_turn"


async def test_cancel_without_a_turn_does_nothing(
    driver: Driver, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    await driver.cancel()
    await driver.start(request_for(agent()))
    await driver.cancel()
    await driver.prompt("m1", "hello", (), lambda: None)

    assert "session/cancel" not in [message["method"] for message in read_by_agent()]


async def test_agent_is_asked_to_end_what_it_does_without_a_prompt(
    driver: Driver, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    assert isinstance(driver, SupportsOwnWork)
    await driver.cancel_own_work()
    await driver.start(request_for(agent()))
    await driver.cancel_own_work()
    await driver.prompt("m1", "hello", (), lambda: None)

    methods = [message["method"] for message in read_by_agent()]
    assert methods[-2:] == ["session/cancel", "session/prompt"]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"sessionId": SESSION, "stopReason": "end_turn"}, [{"stop_reason": "end_turn"}]),
        ({"sessionId": SESSION, "stopReason": 7}, [{}]),
        ({}, [{}]),
        ({"sessionId": "another"}, []),
    ],
    ids=["own", "unreadable reason", "no session", "another session"],
)
async def test_announced_end_of_the_agents_own_turn_is_recorded(
    params: dict[str, Any],
    expected: list[dict[str, Any]],
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
) -> None:
    await driver.start(request_for(agent(session_prompt=[notification("_session/turn_ended", params), ENDED])))
    await driver.prompt("m1", "hello", (), lambda: None)
    assert _announced(host) == [], "the answer to the prompt ends its turn"

    assert isinstance(driver, AcpDriver)
    driver._recorder.handle_notification("_session/turn_ended", params)

    assert _announced(host) == expected


def _announced(host: RecordingHost) -> list[dict[str, Any]]:
    lines = [dict(line) for line in host.lines if line["kind"] == JournalKind.AGENT_TURN_ENDED]
    return [{name: value for name, value in line.items() if name != "kind"} for line in lines]


async def test_error_after_our_cancel_counts_as_cancelled(driver: Driver, request_for: MakeRequest) -> None:
    answer = error(-32603, "Request was aborted.").replace("$ID", "3")
    await driver.start(request_for(agent(session_prompt=[], session_cancel=[answer])))
    sent = asyncio.Event()
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), sent.set))
    await sent.wait()

    await driver.cancel()

    assert await turn == "cancelled"


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        ("user", None),
        ("continue", {"kandev": {"prompt_kind": "continue", "is_continue": True}}),
        ("retry", {"kandev": {"prompt_kind": "retry", "is_continue": False}}),
    ],
)
async def test_prompts_of_kandev_are_marked(
    kind: str, meta: object, driver: Driver, request_for: MakeRequest, read_by_agent: Any
) -> None:
    await driver.start(request_for(agent(session_prompt=[result({"stopReason": "end_turn"})])))
    await driver.prompt("m1", "Go on.", (), lambda: None, kind)
    [prompt] = [message for message in read_by_agent() if message["method"] == "session/prompt"]
    assert prompt["params"].get("_meta") == meta


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error(-32603, "overloaded"), "agent_error"),
        (error(-32603, "API Error: 401 from the provider's proxy"), "agent_error"),
        (error(-32000, "Authentication required"), "auth_required"),
        (error(-32603, "Internal error: API Error: 401 authentication_failed"), "auth_required"),
        (error(-32603, "Failed to authenticate. API Error: 401 Invalid authentication credentials"), "auth_required"),
        (error(-32603, "OAuth token has expired. Please obtain a new token"), "auth_required"),
        (error(-32603, "You must be logged in to use this agent"), "auth_required"),
        (error(-32603, "No auth credentials found"), "auth_required"),
        (error(-32603, "API key expired. Please renew the API key."), "auth_required"),
        (error(-32603, "invalid_grant: token revoked"), "auth_required"),
        (error(-32603, "Unauthorized: please re-authenticate"), "auth_required"),
        (error(-32603, "The key of the map is invalid"), "agent_error"),
        (error(-32602, f"Session not found: {SESSION}"), "conversation_closed"),
        (error(-32603, "Internal error", {"details": "Unknown session"}), "conversation_closed"),
        (error(-32002, "Resource not found", {"uri": SESSION}), "conversation_closed"),
        (error(-32603, f"The tool crashed in session {SESSION}"), "agent_error"),
        (error(-32603, "Internal error", {"service": "session"}), "agent_error"),
        (error(-32603, f"rate limit exceeded in session {SESSION}"), "agent_error"),
        (error(-32603, "model gpt-9 not found"), "agent_error"),
    ],
)
async def test_error_response_fails_the_turn_and_the_agent_stays(
    answer: str, code: str, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[answer])))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "hello", (), lambda: None)

    assert failed.value.code == code
    assert driver.pid is not None
    assert host.exits == []


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        ({"stopReason": "max_tokens"}, "max_tokens"),
        ({"stopReason": " end_turn "}, "end_turn"),
        ({"stopReason": None}, ""),
        ({"stopReason": " "}, ""),
        ({}, ""),
        (None, ""),
        ("end_turn", ""),
        ([{"stopReason": "end_turn"}], ""),
        ({"stopReason": False}, "False"),
        ({"stopReason": ["end_turn"]}, "['end_turn']"),
    ],
)
async def test_stop_reason_of_the_agent_is_returned(
    expected: Any, reason: str, driver: Driver, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[result(expected)])))

    assert await driver.prompt("m1", "hello", (), lambda: None) == reason


async def test_exit_of_an_agent_is_recorded_before_its_turn_fails(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("dies_in_turn"))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "hello", (), lambda: None)

    assert failed.value.code == "agent_exited"
    assert host.exits == [-signal.SIGKILL]
    assert host.agent_text() == "I will just", "the last words were still in the pipe"
    assert driver.pid is None
    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m2", "hello", (), lambda: None)
    assert failed.value.code == "not_running"


async def test_killed_agent_is_noticed_while_a_child_holds_its_output(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("relaunches_itself"))
    turn = asyncio.create_task(driver.prompt("m1", "work 60", (), lambda: None))
    await eventually_async(host.agent_text)

    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGKILL)

    with pytest.raises(TurnFailed):
        await turn
    assert host.exits == [-signal.SIGKILL]


async def test_agent_that_closes_its_output_is_ended(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=["$CLOSE"])))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "hello", (), lambda: None)

    assert failed.value.code == "agent_exited"
    assert len(host.exits) == 1


async def test_exit_of_a_stopped_agent_is_reported_once(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("demo"))

    assert await driver.stop(0.5) == -signal.SIGTERM
    assert await driver.stop(0.5) == -signal.SIGTERM

    assert host.exits == [-signal.SIGTERM]
    assert driver.pid is None


async def test_agent_that_ignores_sigterm_is_killed_after_the_grace_period(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("ignores_term"))

    assert await driver.stop(0.2) == -signal.SIGKILL


# -- odd input


async def test_invalid_lines_between_valid_ones_are_logged(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("garbage"))

    assert await driver.prompt("m1", "hello", (), lambda: None) == "end_turn"

    words = [f"word {number}\n" for number in range(1, len(Garbage.LITTER) + 1)]
    assert [line["text"] for line in host.of("message.agent")][:-1] == words
    assert "123" in host.logs("stdout")
    assert any(text.startswith("not json") for text in host.logs("stdout"))


async def test_line_of_five_megabytes_is_read(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    await driver.start(request_for("big_line"))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert len(host.agent_text()) == BIG_LINE


async def test_flood_of_messages_arrives_complete_and_in_order(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for("floods", "--count", "5000"))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert [int(line["text"].split()[0]) for line in host.of("message.agent")] == list(range(1, 5001))
    assert host.agent_text() == _output_of(tmp_path / "home")


async def test_agent_output_is_not_read_while_the_journal_is_full(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await driver.start(request_for("floods", "--count", "20000"))
    host.has_room.clear()
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    previous: list[int] = [-1]

    def agent_is_blocked() -> bool:
        size = len(_output_of(tmp_path / "home"))
        previous.append(size)
        return 0 < size == previous[-2]

    await eventually_async(agent_is_blocked)
    assert len(_output_of(tmp_path / "home")) < 2_000_000, "most of the 4 MB are not yet written"
    host.has_room.set()

    assert await turn == "end_turn"
    assert len(host.of("message.agent")) == 20000


async def test_flood_on_stderr_does_not_block_and_is_rate_limited(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for("stderr_flood"))

    assert await driver.prompt("m1", "hello", (), lambda: None) == "end_turn"
    await driver.stop(0)

    texts = host.logs("stderr")
    assert 20 <= len(texts) < 100
    assert any("were left out" in text for text in texts)


@pytest.mark.parametrize("request_id", [7, "seven", 7.5, None, 0])
async def test_unknown_requests_are_refused_with_their_id_unchanged(
    request_id: Any, driver: Driver, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    asks = request(request_id, "fs/read_text_file", {"sessionId": SESSION, "path": "/etc/passwd"})
    await driver.start(request_for(agent(session_prompt=[asks], answer=[result({}).replace("$ID", "3")])))

    await driver.prompt("m1", "hello", (), lambda: None)

    answer = read_by_agent()[-1]
    assert answer["id"] == request_id
    assert answer["error"]["code"] == -32601


@pytest.mark.parametrize(
    "params", [None, {}, {"options": [], "toolCall": {}}, {"options": [{"name": "x"}], "toolCall": {}}, {"options": 5}]
)
async def test_invalid_permission_request_is_refused(
    params: Any, driver: Driver, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    asks = request(9, "session/request_permission", params)
    await driver.start(request_for(agent(session_prompt=[asks], answer=[result({}).replace("$ID", "3")])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert read_by_agent()[-1]["error"]["code"] == -32602


async def test_permission_request_with_numbered_options_says_why_it_was_refused(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    asks = request(9, "session/request_permission", _request_params({"optionId": 1, "name": "Allow"}))
    await driver.start(request_for(agent(session_prompt=[asks], answer=[result({}).replace("$ID", "3")])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert host.logs()[0].endswith("none of its options has an id that is a text")


async def test_lone_surrogate_costs_one_character_not_the_line(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    halves = [chunk("agent", "a\ud83d"), chunk("agent", "\ude00b")]
    await driver.start(request_for(agent(session_prompt=[*halves, result({})])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert host.agent_text() == "a\ufffd\ufffdb"


async def test_unknown_update_is_logged(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    await driver.start(request_for(agent(session_prompt=[update("from_the_future", x=1), result({})])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert host.logs() == ["the agent sent from_the_future"]
    assert host.lines[-1]["data"] == {"sessionUpdate": "from_the_future", "x": 1}


async def test_unsupported_attachment_fails_the_turn_before_anything_is_sent(
    driver: Driver, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    await driver.start(request_for(agent()))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "look", [{"type": "image", "data": "", "mimeType": "image/png"}], lambda: None)
    await driver.prompt("m2", "look", [{"type": "resource_link", "uri": "file:///a", "name": "a"}], lambda: None)

    assert failed.value.code == "attachment_unsupported"
    prompts = [message["params"]["prompt"] for message in read_by_agent() if message["method"] == "session/prompt"]
    assert prompts == [[{"type": "text", "text": "look"}, {"type": "resource_link", "uri": "file:///a", "name": "a"}]]


ENDED = result({"stopReason": "end_turn"})
BUSY = "Internal error: session is already processing a prompt"


async def test_prompt_is_repeated_for_a_moment_while_the_agent_says_that_it_is_busy(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors_app.agentctl.drivers.acp._BUSY_WAIT", 0.05)
    script = agent()
    script["session/prompt"] = [[error(-32603, BUSY)], [error(-32603, BUSY)], [chunk("agent", "done"), ENDED]]
    await driver.start(request_for(script))

    assert await driver.prompt("m1", "hello", (), lambda: None) == "end_turn"

    assert host.agent_text() == "done"
    assert host.logs() == ["the agent still works on something else; the prompt is repeated"]


@pytest.mark.parametrize(
    "said",
    [BUSY, "A prompt is already in progress for this session", "The agent is currently busy"],
    ids=["processing", "in progress", "busy"],
)
async def test_prompt_that_a_busy_agent_refuses_is_given_back(
    said: str, driver: Driver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors_app.agentctl.drivers.acp._BUSY_LIMIT", 0.0)
    await driver.start(request_for(agent(session_prompt=[error(-32603, said)])))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "hello", (), lambda: None)

    assert (failed.value.code, failed.value.message) == ("agent_busy", said)


@pytest.mark.parametrize(
    ("work", "refusal_time"),
    [
        (update("tool_call", toolCallId="c1", title="Run make deploy"), 60.0),
        (chunk("agent", "I deploy it."), 0.0),
        (chunk("user", "hello"), 60.0),
    ],
    ids=["a tool call", "text after a while", "repetition of the prompt"],
)
async def test_prompt_that_has_begun_is_not_sent_again(
    work: str,
    refusal_time: float,
    driver: Driver,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executors_app.agentctl.drivers.acp_updates._REFUSAL_TIME", refusal_time)
    monkeypatch.setattr("executors_app.agentctl.drivers.acp._BUSY_WAIT", 0.05)
    script = agent()
    script["session/prompt"] = [[work, error(-32603, "409: another request is in progress")], [ENDED]]
    await driver.start(request_for(script))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "hello", (), lambda: None)

    assert failed.value.code != "agent_busy", "it may have been taken"
    assert [message["method"] for message in read_by_agent()].count("session/prompt") == 1


async def test_cancel_ends_the_wait_for_a_busy_agent(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[error(-32603, BUSY)])))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    await eventually_async(host.logs)

    await driver.cancel()

    assert await turn == "cancelled"


def _request_params(*options: Any) -> dict[str, Any]:
    return {"sessionId": "conversation-1", "toolCall": {"toolCallId": "c"}, "options": list(options)}


async def test_options_that_an_answer_could_confuse_are_refused_and_reported(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    allow, reject = {"optionId": "x", "name": "Allow", "kind": "allow_once"}, {"optionId": "x", "name": "Reject"}
    asks = request(9, "session/request_permission", _request_params(allow, reject))
    await driver.start(request_for(agent(session_prompt=[asks], answer=[result({}).replace("$ID", "3")])))
    await driver.prompt("m1", "hello", (), lambda: None)
    assert host.questions == []
    assert "have the same id" in next(line["text"] for line in host.of("log") if line["level"] == "warning")


def _permission(call_id: str) -> str:
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
    return request(9, "session/request_permission", {"toolCall": {"toolCallId": call_id}, "options": options})


async def test_two_requests_with_one_id_are_both_refused(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: Callable[[], list[dict[str, Any]]]
) -> None:
    script = agent(session_prompt=[_permission("harmless"), _permission("harmful")], answer=[])
    script["answer"] = [[], [ENDED.replace("$ID", "3")]]
    await driver.start(request_for(script))

    await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)

    answers = [message for message in read_by_agent() if message.get("id") == 9]
    assert sorted(answer["error"]["code"] for answer in answers) == [-32800, -32600]
    assert [line["level"] for line in host.of("log")] == ["warning"]


async def test_options_without_a_name_or_an_id_are_shown_as_far_as_possible(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    named = {"optionId": "y", "name": "Yes", "kind": "allow_once"}
    odd = [named, named, {"optionId": "n", "name": None, "kind": 5}, {"optionId": " ", "name": "Blank"}, None]
    asks = request(9, "session/request_permission", _request_params(*odd))
    await driver.start(request_for(agent(session_prompt=[asks], answer=[result({}).replace("$ID", "3")])))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    (question, answer), *_ = await eventually_async(lambda: host.questions)
    answer.set_result("n")
    await turn
    assert question["options"] == [
        {"option_id": "y", "name": "Yes", "kind": "allow_once"},
        {"option_id": "n", "name": "n", "kind": ""},
    ]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["hello world"], []),
        (["hello ", "world\n"], []),
        (["hello world", "hello world"], ["hello world"]),
        (["something else"], ["something else"]),
        (["world"], ["world"]),
    ],
)
async def test_prompt_that_the_agent_repeats_is_not_recorded_again(
    pieces: list[str], shown: list[str], driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    echo = [chunk("user", piece) for piece in pieces]
    await driver.start(request_for(agent(session_prompt=[*echo, chunk("agent", "said"), result({})])))
    await driver.prompt("m1", "hello world", (), lambda: None)
    assert [line["text"] for line in host.of("message.user")] == shown
    assert host.agent_text() == "said"


_END = '{"jsonrpc": "2.0", "id": %s, "result": {"stopReason": "max_tokens"}}'


@pytest.mark.parametrize(
    "lines",
    [
        [chunk("agent", "said"), _END % '"$ID"'],
        [chunk("agent", "said"), _END % "$ID.0"],
        ["\ufeff" + chunk("agent", "said"), _END % "$ID"],
        [f"[{chunk('agent', 'said')}, {_END % '$ID'}]"],
        [f"[5, {chunk('agent', 'said')}]", f"[{_END % '$ID'}]"],
        [chunk("agent", "said"), (_END % "$ID").replace('"result"', '"error": false, "result"')],
    ],
    ids=["id as text", "id as a fraction", "byte order mark", "batch", "batch with an invalid part", "error is false"],
)
async def test_answers_in_other_forms_end_the_turn(
    lines: list[str], driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=list(lines))))
    reason = await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)
    assert (reason, host.agent_text()) == ("max_tokens", "said")
