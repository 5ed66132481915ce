"""The demo agent, driven over its pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions_app.turns.rules.continuation import Interruption, continue_prompt
from tests.agents.conftest import ROOT
from tests.waiting import PATIENCE

SCRIPT = ROOT / "executors_app" / "demo_agent"


class Client:
    """A minimal client that sends a line and reads until the response."""

    def __init__(self, home: Path, cwd: Path):
        env = {"KANDEV_DEMO_AGENT_HOME": str(home), "PATH": os.environ["PATH"]}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, str(SCRIPT)], stdin=pipe, stdout=pipe, env=env, cwd=cwd)
        self.cwd, self.home = cwd, home
        self.updates: list[dict[str, Any]] = []
        self.permission_requests: list[dict[str, Any]] = []
        self.conversation = ""
        self.call("initialize", protocolVersion=1)

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        if message.get("method") == "session/update":
            self.updates.append(message["params"]["update"])
        elif "method" in message:
            self.permission_requests.append(message)
        return message

    def until_answer(self, request_id: int = 1) -> dict[str, Any]:
        while "method" in (message := self.read()) or message["id"] != request_id:
            continue
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.send(id=1, method=method, params=params)
        return self.until_answer()

    def new(self) -> str:
        self.conversation = self.call("session/new", cwd=str(self.cwd), mcpServers=[])["result"]["sessionId"]
        self.read()  # its commands
        return self.conversation

    def load(self, conversation: str) -> dict[str, Any]:
        self.conversation = conversation
        answer = self.call("session/load", sessionId=conversation, cwd=str(self.cwd), mcpServers=[])
        if "result" in answer:
            self.read()  # its commands
        return answer

    def begin(self, text: str) -> None:
        prompt = [{"type": "text", "text": text}]
        self.send(id=1, method="session/prompt", params={"sessionId": self.conversation, "prompt": prompt})

    def prompt(self, text: str) -> str:
        """Run a turn, keep its text in ``words``, and return its stop reason."""
        self.updates.clear()
        self.begin(text)
        reason: str = self.until_answer()["result"]["stopReason"]
        return reason

    @property
    def words(self) -> str:
        return "".join(self.texts("agent"))

    def texts(self, role: str) -> list[str]:
        kind = f"{role}_message_chunk"
        return [each["content"]["text"] for each in self.updates if each["sessionUpdate"] == kind]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def make() -> Client:
        clients.append(Client(tmp_path / "home", tmp_path))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_count_continues_after_kill_and_load(connect: Callable[[], Client]) -> None:
    first = connect()
    conversation = first.new()
    first.prompt("Add 1.")
    assert first.words == "I know no number.\n"
    first.prompt("Your number is 42. Add 1. Answer with the number only.")
    assert first.words == "43\n"
    first.close()

    second = connect()
    second.load(conversation)
    second.prompt("Add 1 to your number. Answer with the number only.")
    assert second.words == "44\n"


def test_word_is_remembered_after_kill_and_load(connect: Callable[[], Client]) -> None:
    first = connect()
    conversation = first.new()
    first.prompt("remember pelican\nhello")
    first.close()

    second = connect()
    second.load(conversation)

    assert second.texts("user") == ["remember pelican\nhello"]
    assert second.texts("agent") == ["I will remember pelican.\n", "Hello from the demo agent. You said: hello\n"]
    assert second.prompt("what was the word?") == "end_turn"
    assert second.words == "The word was pelican.\n"


def test_prompt_interrupted_by_a_kill_is_remembered(connect: Callable[[], Client]) -> None:
    first = connect()
    conversation = first.new()
    first.begin("remember pelican\nwork 60")
    while "tick 2\n" not in first.texts("agent"):
        first.read()
    first.process.send_signal(signal.SIGKILL)
    first.close()

    second = connect()
    second.load(conversation)

    assert second.texts("user") == ["remember pelican\nwork 60"]
    assert second.texts("agent")[:3] == ["I will remember pelican.\n", "tick 1\n", "tick 2\n"]


def test_unknown_word_is_admitted(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()

    client.prompt("what was the word?")

    assert client.words == "I do not know.\n"


def test_word_is_found_in_an_injected_history(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()

    client.prompt("The conversation so far:\n> User: remember pelican, please\n\nwhat was the word?")

    assert client.words.startswith("The word was pelican.\n")


@pytest.mark.parametrize("conversation", ["demo-0", "../secrets", "", 5, None, "a/b"])
def test_unknown_conversation_is_reported_as_gone(conversation: Any, connect: Callable[[], Client]) -> None:
    answer = connect().load(conversation)

    assert answer["error"]["code"] == -32002
    assert answer["error"]["message"] == f"Resource not found: conversation {conversation} is gone"


def test_torn_line_in_its_memory_is_ignored(connect: Callable[[], Client]) -> None:
    first = connect()
    conversation = first.new()
    first.prompt("remember pelican")
    with (first.home / f"{conversation}.jsonl").open("ab") as file:
        file.write(b'{"role": "agent", "te')

    second = connect()
    second.load(conversation)
    second.prompt("remember heron")
    third = connect()
    third.load(conversation)

    assert third.texts("user") == ["remember pelican", "remember heron"]


def test_its_own_log_equals_its_output(connect: Callable[[], Client]) -> None:
    client = connect()
    conversation = client.new()
    client.prompt("work 0.3\ntool\nGrüße")

    assert (client.home / f"{conversation}.said").read_text() == client.words
    assert client.words.startswith("tick 1\ntick 2\ntick 3\nThe tool is done.\n")


def test_answer_to_a_schema_conforms_to_it(connect: Callable[[], Client]) -> None:
    kinds = {"ok": "boolean", "n": "integer", "why": "string", "all": "array"}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()}
    properties |= {"level": {"enum": ["low", "high"]}, "inner": {"type": "object", "properties": {"x": {}}}}
    client = connect()
    client.new()
    client.prompt(f"Answer with JSON:\n{json.dumps({'type': 'object', 'properties': properties})}")
    answer = {"ok": True, "n": 1, "why": "demo", "all": [], "level": "low", "inner": {"x": None}}
    assert json.loads(client.words) == answer


def test_work_rate_is_as_requested(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.prompt("work 0.1 at 100")
    assert "".join(client.texts("agent")) == "".join(f"tick {number}\n" for number in range(1, 11))


def test_cancel_ends_its_work(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.begin("work 60")
    client.read()

    client.send(method="session/cancel", params={"sessionId": client.conversation})

    assert client.until_answer()["result"] == {"stopReason": "cancelled"}


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        ({"outcome": "selected", "optionId": "allow"}, "end_turn", "tick 1\nThe answer was allow.\n"),
        ({"outcome": "cancelled"}, "cancelled", "tick 1\n"),
    ],
)
def test_permission_is_requested(
    outcome: dict[str, str], reason: str, words: str, connect: Callable[[], Client]
) -> None:
    client = connect()
    client.new()
    client.begin("ask after 0.1")
    while not client.permission_requests:
        client.read()

    client.send(id=client.permission_requests[0]["id"], result={"outcome": outcome})

    assert client.until_answer()["result"]["stopReason"] == reason
    assert client.words == words


def test_requested_failure_and_unknown_methods_return_errors(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.begin("fail")

    assert client.until_answer()["error"]["code"] == -32603
    assert client.call("session/fork")["error"]["code"] == -32601
    assert client.prompt("hello") == "end_turn"


def test_closed_input_ends_the_agent_during_work(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.begin("work 60")
    client.read()

    assert client.process.stdin
    client.process.stdin.close()

    assert client.process.wait(PATIENCE) == 0
    assert client.process.stdout
    client.process.stdout.close()
    client.process.stdin = client.process.stdout = None


def interrupted(request: str) -> str:
    return continue_prompt(Interruption("Write and check", request, changed_files=["notes.txt"]))


@pytest.mark.parametrize("times", [1, 2])
def test_continued_request_writes_only_missing_files(connect: Callable[[], Client], times: int) -> None:
    client = connect()
    client.new()
    (client.cwd / "first.txt").write_text("One\n")
    request = "Write two files.\nwork 60\nwrite first.txt One\nwrite second.txt Two"
    for _ in range(times):
        request = interrupted(request)
    assert client.prompt(request) == "end_turn"
    assert (client.cwd / "second.txt").read_text() == "Two\n"
    assert client.words == "first.txt is already there.\nI wrote second.txt.\n"


def test_interrupted_count_is_neither_repeated_nor_called_complete(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.prompt(interrupted("Count for two minutes.\nwork 120 at 2"))
    assert (
        client.words == "The interrupted request writes no files, so nothing is half done. I do not start it again.\n"
    )


def test_continued_request_adds_its_number_once(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.prompt("Your number is 42")
    client.prompt("Add 1")
    client.prompt(interrupted("Add 1"))
    assert client.words == "43\n"


def test_continued_request_gives_its_json(connect: Callable[[], Client]) -> None:
    client = connect()
    client.new()
    client.prompt(interrupted('Review it.\n{"properties": {"approved": {"type": "boolean"}}}'))
    assert json.loads(client.words) == {"approved": True}


@pytest.mark.parametrize(("chosen", "commits"), [("allow", 2), ("reject", 1)])
def test_change_is_made_checked_and_committed_if_allowed(
    chosen: str, commits: int, connect: Callable[[], Client]
) -> None:
    client = connect()
    repository(client.cwd)
    client.new()
    client.begin("Please.\nmake a change")
    while not client.permission_requests:
        client.read()
    edits = [each for each in client.updates if each.get("kind") == "edit"]
    assert [Path(each["content"][0]["path"]).name for each in edits] == ["greeting.py", "README.md"]
    for each in edits:
        diff = each["content"][0]
        assert (diff["type"], Path(diff["path"]).read_text()) == ("diff", diff["newText"])
    client.send(id=client.permission_requests[0]["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
    assert client.until_answer()["result"]["stopReason"] == "end_turn"

    assert "Hello, Ada!" in json.dumps(client.updates)
    assert {each["sessionUpdate"] for each in client.updates} >= {"plan", "agent_thought_chunk", "tool_call"}
    plans = [each["entries"] for each in client.updates if each["sessionUpdate"] == "plan"]
    assert {entry["status"] for entry in plans[-1]} == {"completed"}
    assert ("committed by" not in client.words) == (chosen == "allow")
    assert git(client.cwd, "rev-list", "--count", "HEAD") == str(commits)


def test_continued_change_repeats_no_edit(connect: Callable[[], Client]) -> None:
    client = connect()
    repository(client.cwd)
    client.new()
    for request in ("make a change", interrupted("make a change")):
        client.begin(request)
        client.permission_requests.clear()
        while not client.permission_requests:
            client.read()
        client.send(
            id=client.permission_requests[0]["id"], result={"outcome": {"outcome": "selected", "optionId": "reject"}}
        )
        client.until_answer()

    assert len([each for each in client.updates if each.get("kind") == "edit"]) == 2
    assert "`greeting.py` already contains the change." in client.words


def repository(path: Path) -> None:
    """Create a repository with a README and one commit."""
    (path / "README.md").write_text("# Project\n")
    git(path, "init", "--quiet")
    git(path, "add", "README.md")
    git(path, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "First")


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=path, check=True, capture_output=True, text=True).stdout.strip()


def test_mode_and_switch_change_what_it_does(connect: Callable[[], Client]) -> None:
    client = connect()
    client.call("initialize", protocolVersion=1, clientCapabilities={"session": {"configOptions": {"boolean": {}}}})
    client.new()

    assert client.call("session/set_mode", sessionId=client.conversation, modeId="plan")["result"] == {}
    switch = {"sessionId": client.conversation, "configId": "capitals", "type": "boolean", "value": True}
    assert client.call("session/set_config_option", **switch)["result"]["configOptions"][0]["currentValue"] is True
    assert client.call("session/set_mode", sessionId=client.conversation, modeId="yolo")["error"]["code"] == -32602

    client.prompt("/write fence.txt planks")
    assert client.words == "I WOULD WRITE FENCE.TXT.\n"
    assert not (client.cwd / "fence.txt").exists()
