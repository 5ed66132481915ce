"""Parsing of Codex and Gemini lines beyond those of the fake agents, and of errors that ACP agents report as text."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.drivers import StartRequest, amp_cli, codex_cli, gemini_cli
from executors_app.agentctl.drivers.acp_updates import error_in_text
from executors_app.agentctl.drivers.cli_events import JournalLine, TurnEnded, TurnErrored
from executors_app.agentctl.drivers.codex_cli import CodexEventReader
from executors_app.agentctl.drivers.failures import failure_code
from executors_app.agentctl.drivers.gemini_cli import GeminiEventReader
from executors_app.agentctl.drivers.stream_json import StreamJsonReader


def item(event: str, kind: str, **body: Any) -> dict[str, Any]:
    return {"type": f"item.{event}", "item": {"id": "item_1", "type": kind, **body}}


def lines_of(*messages: dict[str, Any]) -> list[Any]:
    read = CodexEventReader()
    return [line for message in messages for line in read(message)]


ITEMS: list[tuple[str, dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    ("agent_message", {"text": "hello"}, [("message.agent", {"text": "hello"})]),
    ("reasoning", {"text": "hm"}, [("message.thought", {"text": "hm"})]),
    ("error", {"message": "careful"}, [("log", {"level": "warning", "text": "careful"})]),
    ("from_the_future", {"x": 1}, [("log", {"level": "debug"})]),
    (
        "file_change",
        {"changes": [{"path": "a.py", "kind": "update"}], "status": "completed"},
        [("tool.call", {"title": "Edit a.py", "tool_kind": "edit"}), ("tool.update", {"status": "completed"})],
    ),
    (
        "command_execution",
        {"command": "ls", "aggregated_output": "no", "exit_code": 2, "status": "failed"},
        [
            ("tool.call", {"tool_kind": "execute"}),
            ("tool.update", {"status": "failed", "raw_output": {"exit_code": 2}}),
        ],
    ),
    (
        "command_execution",
        {"command": "rm", "aggregated_output": "", "exit_code": None, "status": "declined"},
        [("tool.call", {"title": "rm"}), ("tool.update", {"status": "failed", "content": []})],
    ),
    (
        "mcp_tool_call",
        {"server": "s", "tool": "t", "arguments": {"a": 1}, "error": {"message": "no"}, "status": "failed"},
        [("tool.call", {"title": "s: t", "raw_input": {"a": 1}}), ("tool.update", {"status": "failed"})],
    ),
    ("web_search", {"query": "herons"}, [("tool.call", {"tool_kind": "fetch"}), ("tool.update", {})]),
    (
        "todo_list",
        {"items": [{"text": "one", "completed": True}, {"text": "two", "completed": False}]},
        [("plan", {})],
    ),
]


@pytest.mark.parametrize(("kind", "body", "expected"), ITEMS)
def test_codex_items_become_journal_lines(
    kind: str, body: dict[str, Any], expected: list[tuple[str, dict[str, Any]]]
) -> None:
    lines = lines_of(item("completed", kind, **body))

    assert [line.kind for line in lines] == [kind for kind, _ in expected]
    for line, (_, fields) in zip(lines, expected, strict=True):
        assert {name: line.body[name] for name in fields} == fields


def test_started_call_is_not_announced_again_when_completed() -> None:
    running = {"command": "ls", "aggregated_output": "", "exit_code": None, "status": "in_progress"}
    lines = lines_of(
        item("started", "command_execution", **running),
        item("completed", "command_execution", **{**running, "exit_code": 0, "status": "completed"}),
    )

    assert [line.kind for line in lines] == ["tool.call", "tool.update"]


def test_consecutive_messages_become_paragraphs_unless_a_call_separates_them() -> None:
    message = item("completed", "agent_message", text="a")
    call = item("completed", "web_search", query="b")

    first, second, *_, last = lines_of(message, message, call, message)

    assert [line.body["text"] for line in (first, second, last)] == ["a", "\n\na", "a"]


def test_failed_codex_turn_reports_its_message() -> None:
    again = {"type": "error", "message": "Reconnecting... 1/1"}
    log, failed = lines_of(again, {"type": "turn.failed", "error": {"message": "high demand"}})

    assert isinstance(log, JournalLine) and log.kind == "log"
    assert failed == TurnErrored("high demand")


def test_failed_gemini_turn_reports_its_message() -> None:
    read = GeminiEventReader()
    result = {"type": "result", "status": "error", "error": {"type": "FatalError", "message": "quota"}}

    assert list(read(result)) == [TurnErrored("quota")]
    tool = {"type": "tool_result", "tool_id": "t", "status": "error", "error": {"message": "denied"}}
    (line,) = read(tool)
    assert isinstance(line, JournalLine)
    assert line.body["status"] == "failed"
    assert line.body["content"][0]["content"]["text"] == "denied"


def request(**changes: Any) -> StartRequest:
    values: dict[str, Any] = {"launch_id": "l", "argv": ["agent"], "env": {}, "cwd": "/", "strategy": "fresh"}
    return StartRequest(**{**values, **changes})


COMMANDS: list[tuple[Any, dict[str, Any], str | None, str]] = [
    (codex_cli.DIALECT, {}, None, "agent exec --skip-git-repo-check --json -- -"),
    (codex_cli.DIALECT, {}, "T", "agent exec resume --skip-git-repo-check --json -- T -"),
    (codex_cli.DIALECT, {"model": "m"}, None, "agent exec --skip-git-repo-check --json --model=m -- -"),
    (gemini_cli.DIALECT, {}, None, "agent --output-format=stream-json"),
    (gemini_cli.DIALECT, {}, "T", "agent --output-format=stream-json --resume=T"),
    (
        gemini_cli.DIALECT,
        {"permission_mode": "auto_approve"},
        None,
        "agent --output-format=stream-json --approval-mode=yolo",
    ),
    (amp_cli.DIALECT, {}, None, "agent --execute --stream-json"),
    (amp_cli.DIALECT, {"model": "rush"}, "T", "agent threads continue T --execute --stream-json --mode rush"),
]


@pytest.mark.parametrize(("dialect", "changes", "conversation", "command"), COMMANDS)
def test_turn_has_the_expected_command_line(
    dialect: Any, changes: dict[str, Any], conversation: str | None, command: str
) -> None:
    assert " ".join(dialect.turn(request(**changes), conversation, ())) == command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Please run /login", "auth_required"),
        ("Not logged in. Sign in first.", "auth_required"),
        ("No API key found", "auth_required"),
        ("529 overloaded", "agent_error"),
        ("the log is full", "agent_error"),
        ("blogging is fun", "agent_error"),
        ("401 from a tool", "agent_error"),
    ],
)
def test_missing_login_is_distinguished_from_other_errors(words: str, code: str) -> None:
    assert failure_code(words) == code


CODEX = "@agentclientprotocol/codex-acp"
OVERLOADED = "unexpected status 503 Service Unavailable: overloaded, url: http://127.0.0.1:1/v1/responses"


def update_with(text: Any, kind: str = "agent_message_chunk") -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


@pytest.mark.parametrize(
    ("agent", "update", "error"),
    [
        pytest.param(CODEX, update_with(f"{OVERLOADED}\n\n"), OVERLOADED, id="error"),
        pytest.param(CODEX, update_with(f"It says: {OVERLOADED}\n\n"), "", id="error in the middle of a text"),
        pytest.param(CODEX, update_with(OVERLOADED), "", id="piece of a text"),
        pytest.param(CODEX, update_with(f"{OVERLOADED}\n\n", "agent_thought_chunk"), "", id="thought"),
        pytest.param(CODEX, update_with("All tests pass.\n\n"), "", id="answer"),
        pytest.param(CODEX, update_with(None), "", id="no text"),
        pytest.param(CODEX, {"sessionUpdate": "agent_message_chunk", "content": "text"}, "", id="malformed"),
        pytest.param("another agent", update_with(f"{OVERLOADED}\n\n"), "", id="agent that reports errors as such"),
    ],
)
def test_only_complete_errors_of_known_agents_count(agent: str, update: dict[str, Any], error: str) -> None:
    assert error_in_text(agent, update) == error


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"subtype": "success", "stop_reason": "end_turn"}, "end_turn"),
        ({"subtype": "success", "stop_reason": "max_tokens"}, "max_tokens"),
        ({"subtype": "success", "stop_reason": None}, "end_turn"),
        ({"subtype": "success"}, "end_turn"),
        ({"subtype": "success", "stop_reason": ["end_turn"]}, "['end_turn']"),
        ({"subtype": "paused"}, ""),
        ({"stop_reason": None}, ""),
        ({"stop_reason": " "}, ""),
        ({}, ""),
    ],
)
def test_stream_json_result_is_a_regular_end_only_if_it_says_so(fields: dict[str, Any], reason: str) -> None:
    read = StreamJsonReader()
    events = list(read({"type": "result", "session_id": "s", **fields}))
    assert [event.stop_reason for event in events if isinstance(event, TurnEnded)] == [reason]
