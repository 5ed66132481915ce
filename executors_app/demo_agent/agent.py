"""A small agent that needs no key and no network: ``python -m executors_app.demo_agent``.

It speaks ACP version 1 (JSON-RPC, one message a line, over stdin and stdout) and is deterministic.
A prompt is read line by line:

``work N``              works N seconds, with a numbered tick about every 0.1 s
``work N at R``         the same with R ticks a second
``remember WORD``       keeps a word; ``what was the word?`` gets it back from the conversation
``Your number is N``    keeps a number; ``Add N`` adds to it and sends the sum, which follows from the conversation
``tool``                makes a tool call
``ask``, ``ask after N``   asks for permission, after N seconds of work
``make a change``       plans, thinks, edits files, runs them and commits if it is allowed to (``change.py``)
``question``            asks a question with a form, and repeats the answer
``write FILE TEXT``     writes a file in the working directory; in the mode *Plan* it only announces this
``title TEXT``          names the conversation
``fail``                ends the turn with an error
a JSON schema           answers only with JSON that matches it, as workflow nodes require

When it is asked to continue after an interruption, it completes what has a result: it writes the files of the quoted
request that are still missing, sends the JSON, and sends the number. It does not repeat ``work``.
A line may begin with a slash: most of these are offered as commands. ``extensions.py`` has its modes and switch.
It counts the images and files of a prompt, and gives any other text a friendly answer. Conversations are JSONL
files in ``$KANDEV_DEMO_AGENT_HOME`` or ``~/.kandev-demo-agent``; everything is appended to ``<conversation>.said``
there before it is sent. It uses only the standard library and the modules beside it, so it also runs as a program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent import extensions
from executors_app.demo_agent.change import Change
from executors_app.demo_agent.extensions import NUMBER, Conversation, RpcError, describe_files, interrupted_request

__all__ = ["Cancelled", "Conversation", "DemoAgent", "RpcError", "Turn", "default_home"]

NAME: Final = "kandev-demo-agent"
VERSION: Final = "1.0"
TICK: Final = 0.1
"""Seconds between two ticks of ``work``."""
CHANGE: Final = "make a change"
"""The line that asks for a change to the repository."""
_WRITE: Final = re.compile(r"write (\S+) (.+)")


class Cancelled(Exception):
    """The turn was cancelled."""


class Turn:
    """One prompt that is being answered; its methods send updates to the client."""

    def __init__(self, agent: DemoAgent, conversation: Conversation):
        self.agent, self.conversation = agent, conversation
        self.cancelled = threading.Event()
        self._steered: list[str] = []
        self._lock = threading.Lock()
        self._is_over = False

    def take(self, text: str) -> bool:
        """Take a text into this turn, unless it is over."""
        with self._lock:
            if not self._is_over:
                self._steered.append(text)
            return not self._is_over

    def next_taken(self) -> str | None:
        """Return the next text that was taken and not answered yet; None: there is none, and the turn is over."""
        with self._lock:
            if self._steered:
                return self._steered.pop(0)
            self._is_over = True
            return None

    @property
    def cwd(self) -> str:
        """The conversation's working directory."""
        return self.conversation.cwd

    @property
    def settings(self) -> extensions.Settings:
        """The conversation's settings, which may change during the turn."""
        return self.agent.settings[self.conversation.id]

    def think(self, text: str) -> None:
        """Send a thought; it is no part of the conversation that a load replays."""
        self.update("agent_thought_chunk", content={"type": "text", "text": text})

    def say(self, text: str) -> None:
        """Send a piece of text, after storing and logging it."""
        if self.settings.capitals:
            text = text.upper()
        self.conversation.keep("agent", text, sync=False)
        self.conversation.log_said(text)
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def say_word(self) -> None:
        """Say the word that the user asked to remember."""
        word = self.conversation.word()
        if word:
            self.say(f"The word was {word}.\n")
        else:
            self.say("I do not know.\n")

    def say_number(self) -> None:
        """Say the user's number."""
        number = self.conversation.number()
        if number is None:
            self.say("I know no number.\n")
        else:
            self.say(f"{number}\n")

    def update(self, update: str, **body: Any) -> None:
        """Send a ``session/update``."""
        self.agent.notify_update(self.conversation.id, {"sessionUpdate": update, **body})

    def rest(self, seconds: float) -> None:
        """Wait; raises Cancelled as soon as the turn is cancelled."""
        if self.cancelled.wait(max(seconds, 0)):
            raise Cancelled

    def work(self, seconds: float, tick: float = TICK) -> None:
        """Send numbered ticks for the given number of seconds, one every ``tick`` seconds."""
        start = time.monotonic()
        for number in range(1, max(1, round(seconds / tick)) + 1):
            self.rest(start + number * tick - time.monotonic())
            self.say(f"tick {number}\n")

    def tool(self, title: str, kind: str, run: Callable[[], str], **body: Any) -> bool:
        """Report a tool call around ``run``, which returns the tool's output; returns whether it succeeded."""
        call_id = f"call-{uuid.uuid4().hex[:12]}"
        self.update("tool_call", toolCallId=call_id, title=title, kind=kind, status="in_progress", **body)
        try:
            text, status = run(), "completed"
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            text, status = str(error), "failed"
        content = [*body.get("content", ()), {"type": "content", "content": {"type": "text", "text": text}}]
        self.update("tool_call_update", toolCallId=call_id, status=status, content=content)
        return status == "completed"

    def has_written(self, name: str, text: str) -> bool:
        """Return whether a file of the working directory has this text already."""
        try:
            return Path(self.conversation.cwd, name).read_text() == f"{text}\n"
        except (OSError, ValueError):
            return False

    def write(self, name: str, text: str) -> None:
        """Write a file in the conversation's working directory, as a tool call; in the mode *Plan* only announce it."""
        if self.settings.mode == "plan":
            self.say(f"I would write {name}.\n")
            return
        path = Path(self.conversation.cwd, name)

        def run() -> str:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
            return f"wrote {name}"

        body = {"locations": [{"path": str(path)}], "rawInput": {"file": name, "text": text}}
        self.tool(f"Write {name}", "edit", run, **body)
        self.say(f"I wrote {name}.\n")

    def ask(self) -> None:
        """Ask for permission and report which option was chosen."""
        self.say(f"The answer was {self.request_permission('Do something careful', 'execute')}.\n")

    def request_permission(self, title: str, kind: str, **body: Any) -> str:
        """Ask for permission for a tool call; return the chosen option, ``allow`` or ``reject``."""
        call = {"toolCallId": f"call-{uuid.uuid4().hex[:12]}", "title": title, "kind": kind, **body}
        options = [
            {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        params = {"sessionId": self.conversation.id, "toolCall": {**call, "status": "pending"}, "options": options}
        outcome = self.agent.call("session/request_permission", params, self.cancelled).get("outcome") or {}
        if outcome.get("outcome") != "selected":
            raise Cancelled
        return str(outcome.get("optionId"))


class DemoAgent:
    """The agent: reads requests in the main thread, answers a prompt in its own thread."""

    def __init__(self, home: Path):
        self.home = home
        self.conversations: dict[str, Conversation] = {}
        self.turns: dict[str, Turn] = {}
        self.settings: defaultdict[str, extensions.Settings] = defaultdict(extensions.Settings)
        self.offers_switch = self.asks_forms = False
        self._out = threading.Lock()
        self._calls: dict[int, tuple[threading.Event, dict[str, Any]]] = {}
        self._next_id = 0

    # -- the wire

    def run(self) -> None:
        """Serve until stdin ends."""
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                self.receive(message)
        for turn in list(self.turns.values()):
            turn.cancelled.set()

    def send(self, message: dict[str, Any]) -> None:
        """Write one message as one line."""
        self.send_raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        """Write bytes without interleaving with other writers."""
        with self._out:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def notify_update(self, conversation_id: str, update: dict[str, Any]) -> None:
        """Send a ``session/update``."""
        self.send({"method": "session/update", "params": {"sessionId": conversation_id, "update": update}})

    def call(self, method: str, params: dict[str, Any], cancelled: threading.Event) -> dict[str, Any]:
        """Ask the client and wait for its result; raises Cancelled if the turn ends first."""
        call_id = self._next_id = self._next_id + 1
        answered, answer = threading.Event(), dict[str, Any]()
        self._calls[call_id] = (answered, answer)
        self.send({"id": call_id, "method": method, "params": params})
        while not answered.wait(0.05):
            if cancelled.is_set():
                raise Cancelled
        return answer.get("result") or {}

    def receive(self, message: dict[str, Any]) -> None:
        """Handle one message of the client."""
        if "method" not in message:
            if call := self._calls.pop(message.get("id", 0), None):
                call[1].update(message)
                call[0].set()
        elif message["method"] == "session/prompt":
            threading.Thread(target=self._answer, args=(message,)).start()
        else:
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            result = self.handle(message["method"], message.get("params") or {})
        except RpcError as error:
            reply: dict[str, Any] = {"error": {"code": error.code, "message": error.message}}
        except Exception as error:  # noqa: BLE001  (the client waits for an answer)
            reply = {"error": {"code": -32603, "message": f"Internal error: {error!r}"}}
        else:
            reply = {"result": result}
        if "id" in message:
            self.send({"id": message["id"], **reply})
        if message["method"] in ("session/new", "session/load") and "result" in reply:
            conversation = {**message["params"], **(reply["result"] or {})}["sessionId"]
            self.notify_update(conversation, extensions.commands_update())

    # -- the methods

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Answer one request or notification; raises RpcError for an error answer."""
        match method:
            case "initialize":
                self.offers_switch = extensions.knows_switches(params)
                self.asks_forms = extensions.shows_forms(params)
                return self.initialize()
            case "session/new":
                return self.create(params)
            case "session/load":
                return self.load(params)
            case "session/prompt":
                return self.prompt(params)
            case "_session/steering":
                return self.steer(params)
            case "session/set_mode" | "session/set_config_option" if params.get("sessionId") in self.conversations:
                return self.settings[params["sessionId"]].set(params)
            case "session/cancel":
                if turn := self.turns.get(str(params.get("sessionId"))):
                    turn.cancelled.set()
                return None
        raise RpcError(-32601, f"Method not found: {method}")

    def initialize(self) -> dict[str, Any]:
        """Return this agent's capabilities."""
        prompts = {"image": True, "embeddedContext": True}
        return {
            "protocolVersion": 1,
            "agentCapabilities": {"loadSession": True, "promptCapabilities": prompts},
            "agentInfo": {"name": NAME, "version": VERSION},
            "authMethods": [],
            "_meta": {"steering": {"supported": True}},
        }

    def create(self, params: dict[str, Any]) -> dict[str, Any]:
        """Open a new conversation."""
        conversation = Conversation.create(self.home, str(params.get("cwd")))
        self.conversations[conversation.id] = conversation
        return {"sessionId": conversation.id, **self.settings[conversation.id].offered(switch=self.offers_switch)}

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Load a conversation and replay all of it before answering."""
        conversation = Conversation.load(self.home, params.get("sessionId"), str(params.get("cwd")))
        for role, text in conversation.entries():
            update = f"{role}_message_chunk"
            self.notify_update(conversation.id, {"sessionUpdate": update, "content": {"type": "text", "text": text}})
        self.conversations[conversation.id] = conversation
        return self.settings[conversation.id].offered(switch=self.offers_switch)

    def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        """Run one turn; the user's text is on disk before the answer begins."""
        conversation = self.conversations.get(str(params.get("sessionId")))
        if conversation is None:
            raise RpcError(-32002, f"Resource not found: conversation {params.get('sessionId')} is not open")
        text = _text_of(params)
        conversation.keep("user", text)
        turn = self.turns[conversation.id] = Turn(self, conversation)
        try:
            if received := describe_files(params.get("prompt", ())):
                turn.say(f"I received {received}.\n")
            self.answer(turn, text)
            while (taken := turn.next_taken()) is not None:
                self.answer(turn, taken)
        except Cancelled:
            return {"stopReason": "cancelled"}
        finally:
            self.turns.pop(conversation.id, None)
        return {"stopReason": "end_turn"}

    def steer(self, params: dict[str, Any]) -> dict[str, Any]:
        """Take a text into the running turn, which answers it at its end; without one, leave it to the client."""
        turn = self.turns.get(str(params.get("sessionId")))
        text = _text_of(params)
        if turn is None or not turn.take(text):
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        turn.conversation.keep("user", text)
        return {"outcome": "injected"}

    def answer(self, turn: Turn, text: str) -> None:
        """Carry out the prompt, line by line."""
        if request := interrupted_request(text):
            self._continue(turn, request)
            return
        for line in text.splitlines():
            if schema := extensions.parse_schema(line):
                turn.say(f"{json.dumps(extensions.example(schema))}\n")
                return
        others = [
            line
            for line in text.splitlines()
            if line.strip() and not self._follow(turn, line.strip().removeprefix("/"))
        ]
        if others:
            turn.say(f"Hello from the demo agent. You said: {' '.join(others)}\n")

    def _continue(self, turn: Turn, request: list[str]) -> None:
        """Finish an interrupted request: check what exists first, and do only what is missing."""
        schemas = [schema for line in request if (schema := extensions.parse_schema(line))]
        if schemas:
            turn.say(f"{json.dumps(extensions.example(schemas[0]))}\n")
            return
        left = [line for line in request if _WRITE.fullmatch(line) or NUMBER.match(line) or line == CHANGE]
        for line in left:
            found = _WRITE.fullmatch(line)
            if found and turn.has_written(found[1], found[2]):
                turn.say(f"{found[1]} is already there.\n")
            else:
                self._follow(turn, line)
        if not left:
            turn.say("The interrupted request writes no files, so nothing is half done. I do not start it again.\n")

    def _follow(self, turn: Turn, line: str) -> bool:
        """Carry out one line; returns False if it is no instruction."""
        if found := re.fullmatch(r"(work|ask after) (\d+(?:\.\d+)?)(?: at ([1-9]\d{0,3}))?", line):
            tick = TICK
            if found[3]:
                tick = 1 / int(found[3])
            turn.work(float(found[2]), tick)
            if found[1] == "ask after":
                turn.ask()
        elif found := re.fullmatch(r"remember (\S+)", line):
            turn.say(f"I will remember {found[1]}.\n")
        elif re.fullmatch(r"what was the word\??", line, re.IGNORECASE):
            turn.say_word()
        elif NUMBER.match(line):
            turn.say_number()
        elif found := _WRITE.fullmatch(line):
            turn.write(found[1], found[2])
        elif line.startswith("title "):
            turn.update("session_info_update", title=line.removeprefix("title "))
            turn.say("I named this conversation.\n")
        elif line in _ACTIONS:
            _ACTIONS[line](turn)
        else:
            return False
        return True


def _text_of(params: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in params.get("prompt", ()) if block.get("type") == "text")


def _use_tool(turn: Turn) -> None:
    turn.tool("Look around", "read", lambda: "all is well")
    turn.say("The tool is done.\n")


def _fail(_: Turn) -> None:
    raise RpcError(-32603, "The demo agent was told to fail")


_ACTIONS: Final[Mapping[str, Callable[[Turn], None]]] = {
    CHANGE: lambda turn: Change(turn).make(),
    "tool": _use_tool,
    "ask": Turn.ask,
    "question": extensions.ask_question,
    "fail": _fail,
}
"""What lines without arguments do."""


def default_home() -> Path:
    """Return the default directory of conversations."""
    return Path(os.environ.get("KANDEV_DEMO_AGENT_HOME") or Path.home() / ".kandev-demo-agent")
