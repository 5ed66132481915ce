"""The demo agent with faults: ``python -m tests.support.faulty_agent --behaviour NAME [--home DIR]``.

Each behaviour is one way in which real agents misbehave; otherwise the agent behaves like the demo agent.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from executors_app.demo_agent.agent import Conversation, DemoAgent, RpcError, Turn, default_home

BIG_LINE: Final = 5 * 1024 * 1024
STDERR_FLOOD: Final = 8 * 1024 * 1024
SLOW_START: Final = 1.5
"""Seconds before ``slow_start`` answers for the first time."""
_FOR_EVER: Final = 3600


class FaultyAgent(DemoAgent):
    """Base class without a fault; each subclass adds one."""

    module: ClassVar = "tests.support.faulty_agent"
    """The module that ``python -m`` runs."""

    def __init__(self, home: Path, options: argparse.Namespace):
        super().__init__(home)
        self.options = options


class HangsAtInitialize(FaultyAgent):
    """Agent that never answers ``initialize``."""

    def initialize(self) -> dict[str, Any]:
        return _hang()


class HangsAtLoad(FaultyAgent):
    """Agent that never answers ``session/load``."""

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        return _hang()


class RefusesLoad(FaultyAgent):
    """Agent that refuses every ``session/load``: the conversation is gone."""

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        raise RpcError(-32002, f"Resource not found: conversation {params.get('sessionId')} is gone")


class Forgets(FaultyAgent):
    """Agent that reports a successful load but has lost the conversation."""

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start an empty conversation under the same id."""
        self.home.mkdir(parents=True, exist_ok=True)
        forgotten = Conversation(self.home, f"{params['sessionId']}-forgotten", str(params.get("cwd")))
        (self.home / f"{forgotten.id}.jsonl").write_bytes(b"")
        forgotten.id = str(params["sessionId"])
        self.conversations[forgotten.id] = forgotten
        return {}


class LoadsWithoutReplay(FaultyAgent):
    """Agent that loads its conversation without replaying it; quotes its last request when asked to."""

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Load the conversation and send no updates."""
        conversation = Conversation.load(self.home, params.get("sessionId"), str(params.get("cwd")))
        self.conversations[conversation.id] = conversation
        return {}

    def answer(self, turn: Turn, text: str) -> None:
        """Quote the last request if asked to; otherwise answer as the demo agent."""
        user_texts = [spoken for role, spoken in turn.conversation.entries() if role == "user"]
        if "Quote the last request" in text and len(user_texts) > 1:
            turn.say(f"“{user_texts[-2]}”")
        else:
            super().answer(turn, text)


class LiesAboutLoad(Forgets):
    """Agent that reports a successful load and replays a different conversation."""

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Replay messages that were never sent."""
        for role, text in (("user", "paint the shed green"), ("agent", "The shed is green.")):
            content = {"type": "text", "text": text}
            self.notify_update(params["sessionId"], {"sessionUpdate": f"{role}_message_chunk", "content": content})
        return super().load(params)


class NoLoad(FaultyAgent):
    """Agent without support for ``session/load``."""

    def initialize(self) -> dict[str, Any]:
        """Answer without the capability ``loadSession``."""
        initialized = super().initialize()
        return {**initialized, "agentCapabilities": {**initialized["agentCapabilities"], "loadSession": False}}

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Refuse: the method does not exist."""
        raise RpcError(-32601, "Method not found: session/load")


class DiesInTurn(FaultyAgent):
    """Agent that dies after the first words of an answer."""

    def answer(self, turn: Turn, text: str) -> None:
        turn.say("I will just")
        os.kill(os.getpid(), signal.SIGKILL)


class RefusesTurns(FaultyAgent):
    """Agent that ends each turn with a refusal and no text."""

    def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        result = super().prompt(params)
        return {"stopReason": "refusal"} if result["stopReason"] == "end_turn" else result

    def answer(self, turn: Turn, text: str) -> None:
        """Send no text."""


class ReachesLimit(FaultyAgent):
    """Agent that refuses its first prompt, because a usage limit is reached that ends a few seconds later."""

    def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        reached = self.home / "limit.reached"
        if not reached.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            reached.touch()
            ends_at = int(time.time() + self.options.seconds)
            raise RpcError(-32603, f"Claude AI usage limit reached|{ends_at}")
        return super().prompt(params)


class SaysNothing(FaultyAgent):
    """Agent that ends each turn successfully, without any text."""

    def answer(self, turn: Turn, text: str) -> None:
        """Send no text."""


class AsksById(FaultyAgent):
    """Agent that asks for permission with nothing but the id of a tool call, as ACP allows."""

    def answer(self, turn: Turn, text: str) -> None:
        """Send the tool call, then ask for permission with its id."""
        call = {"toolCallId": "call-1", "title": "Delete the build", "kind": "execute", "status": "pending"}
        turn.update("tool_call", **call, rawInput={"command": "rm -rf build"}, locations=[{"path": "build"}])
        options = [
            {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        params = {"sessionId": turn.conversation.id, "toolCall": {"toolCallId": "call-1"}, "options": options}
        self.call("session/request_permission", params, turn.cancelled)
        turn.update("tool_call_update", toolCallId="call-1", status="completed")
        super().answer(turn, text)


class Floods(FaultyAgent):
    """Agent that sends ``--count`` chunks of ``--size`` characters as fast as it can."""

    def answer(self, turn: Turn, text: str) -> None:
        for number in range(1, self.options.count + 1):
            spoken = f"{number} ".ljust(self.options.size, ".")
            turn.conversation.log_said(spoken)
            turn.update("agent_message_chunk", content={"type": "text", "text": spoken})


class Garbage(FaultyAgent):
    """Agent that writes invalid lines between valid ones."""

    LITTER: ClassVar = (
        *(b"123\n", b"null\n", b'"text"\n', b"[1, 2]\n", b"{}\n", b"\n", b"   \n", b"not json at all\n"),
        *(b"\xff\xfe\x00 bad bytes\n", b'{"jsonrpc": "2.0", "method": "session/upd\n', b'ate", "params": {}}\n'),
        *(b'{"jsonrpc": "2.0", "id": 9999, "result": {}}\n', b'{"jsonrpc": "2.0", "id": [1], "error": 5}\n'),
        *(b'{"jsonrpc": "2.0", "method": "_vendor/thing", "params": [1]}\n', b'{"method": 7, "params": null}\n'),
        *(b'{"method": "session/update"}\n', b'{"method": "session/update", "params": {"update": 5}}\n'),
        b"[" * 100_000 + b"\n",
    )

    def answer(self, turn: Turn, text: str) -> None:
        """Send valid chunks, each followed by an invalid line."""
        for number, litter in enumerate(self.LITTER, start=1):
            turn.say(f"word {number}\n")
            self.send_raw(litter)
        super().answer(turn, text)


class BigLine(FaultyAgent):
    """Agent that sends five megabytes in one chunk."""

    def answer(self, turn: Turn, text: str) -> None:
        turn.say("big " * (BIG_LINE // 4))


class StderrFlood(FaultyAgent):
    """Agent that writes more to stderr than any pipe can hold, before each answer."""

    def initialize(self) -> dict[str, Any]:
        """Write to stderr, then answer."""
        self._flood()
        return super().initialize()

    def answer(self, turn: Turn, text: str) -> None:
        """Write to stderr, then answer."""
        self._flood()
        super().answer(turn, text)

    @staticmethod
    def _flood() -> None:
        line = b"warning: something nobody wants to know\n"
        for _ in range(STDERR_FLOOD // len(line) // 1000):
            sys.stderr.buffer.write(line * 1000)
        sys.stderr.buffer.flush()


class Forks(FaultyAgent):
    """Agent that leaves processes behind: a child, a session leader, and a double fork with an empty environment.

    Their pids are in ``<home>/forked.pids``, one a line.
    """

    def initialize(self) -> dict[str, Any]:
        """Fork, then answer."""
        self.home.mkdir(parents=True, exist_ok=True)
        child = subprocess.Popen(["sleep", str(_FOR_EVER)])
        leader = subprocess.Popen(["sleep", str(_FOR_EVER)], start_new_session=True)
        pids = [child.pid, leader.pid, _double_fork()]
        (self.home / "forked.pids").write_text("".join(f"{pid}\n" for pid in pids))
        return super().initialize()


class LeavesProcesses(FaultyAgent):
    """Agent that leaves a process running after each turn whose prompt is ``leave SECONDS``: a sleep of this length."""

    def answer(self, turn: Turn, text: str) -> None:
        """Start the process if asked to; otherwise answer as the demo agent."""
        if text.startswith("leave "):
            seconds = text.removeprefix("leave ")
            subprocess.Popen(["sleep", seconds], start_new_session=True, stdin=subprocess.DEVNULL)
            turn.say("It runs.")
        else:
            super().answer(turn, text)


class RelaunchesItself(FaultyAgent):
    """Agent that runs itself as a child and waits, as some Node.js agents do; both processes hold stdout."""

    def run(self) -> None:
        """Start the child that works and wait for it; its pid is in ``<home>/forked.pids``."""
        self.home.mkdir(parents=True, exist_ok=True)
        home = str(self.options.home)
        worker = subprocess.Popen([sys.executable, "-m", self.module, "--behaviour", "honest", "--home", home])
        (self.home / "forked.pids").write_text(f"{worker.pid}\n")
        sys.exit(worker.wait())


class IgnoresEndOfInput(FaultyAgent):
    """Agent that keeps running when its stdin is closed."""

    def run(self) -> None:
        """Serve, then keep running."""
        super().run()
        _hang()


class IgnoresTerm(IgnoresEndOfInput):
    """Agent that ignores SIGTERM and keeps running when its stdin is closed."""

    def run(self) -> None:
        """Serve, then keep running."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()


class SlowStart(FaultyAgent):
    """Agent that delays its first answer."""

    def initialize(self) -> dict[str, Any]:
        time.sleep(SLOW_START)
        return super().initialize()


class WorksAlone(FaultyAgent):
    """Agent that works on without a prompt after *work alone*, and refuses prompts while it does.

    It says *alone* twice a second until ``<home>/finish`` exists or the work is cancelled. It announces the end of the
    work if ``<home>/announce`` exists. ``<home>/taken`` lists the prompts that it takes, and ``<home>/refused`` those
    that it refuses.
    """

    PAUSE: ClassVar = 2.5
    """Seconds from the answer to the first word: later than what only completes the answer."""

    def __init__(self, home: Path, options: argparse.Namespace):
        super().__init__(home, options)
        self._is_alone, self._is_cancelled = threading.Event(), threading.Event()

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Also let a cancel end the work, and refuse a prompt during it."""
        if method == "session/cancel":
            self._is_cancelled.set()
        if method == "session/prompt":
            text = "".join(str(block.get("text", "")) for block in params.get("prompt", ()))
            note = self.home / ("refused" if self._is_alone.is_set() else "taken")
            with note.open("a") as file:
                file.write(f"{text.splitlines()[-1]}\n")
            if self._is_alone.is_set():
                raise RpcError(-32603, "Internal error: the session is already processing a prompt")
        return super().handle(method, params)

    def answer(self, turn: Turn, text: str) -> None:
        """Answer, and go on afterwards if the prompt asks for it."""
        super().answer(turn, text)
        if text.splitlines()[-1] == "work alone":
            self._is_cancelled.clear()
            self._is_alone.set()
            threading.Thread(target=self._work_alone, args=(turn.conversation.id,), daemon=True).start()

    def _work_alone(self, conversation_id: str) -> None:
        self._is_cancelled.wait(self.PAUSE)
        while not (self._is_cancelled.is_set() or (self.home / "finish").exists()):
            content = {"type": "text", "text": "alone\n"}
            self.notify_update(conversation_id, {"sessionUpdate": "agent_message_chunk", "content": content})
            self._is_cancelled.wait(0.5)
        self._is_alone.clear()
        if (self.home / "announce").exists():
            ended = {"sessionId": conversation_id, "stopReason": "end_turn"}
            self.send({"method": "_session/turn_ended", "params": ended})


BEHAVIOURS: Final[dict[str, type[FaultyAgent]]] = {
    "honest": FaultyAgent,
    "hangs_at_initialize": HangsAtInitialize,
    "hangs_at_load": HangsAtLoad,
    "refuses_load": RefusesLoad,
    "lies_about_load": LiesAboutLoad,
    "forgets": Forgets,
    "loads_without_replay": LoadsWithoutReplay,
    "no_load": NoLoad,
    "dies_in_turn": DiesInTurn,
    "refuses_turns": RefusesTurns,
    "reaches_limit": ReachesLimit,
    "says_nothing": SaysNothing,
    "asks_by_id": AsksById,
    "floods": Floods,
    "garbage": Garbage,
    "big_line": BigLine,
    "stderr_flood": StderrFlood,
    "forks": Forks,
    "leaves_processes": LeavesProcesses,
    "relaunches_itself": RelaunchesItself,
    "ignores_end_of_input": IgnoresEndOfInput,
    "ignores_term": IgnoresTerm,
    "slow_start": SlowStart,
    "works_alone": WorksAlone,
}


def _hang() -> dict[str, Any]:
    threading.Event().wait(_FOR_EVER)
    return {}


def _double_fork() -> int:
    """Return the pid of a grandchild with a dead parent, its own session, an empty environment and no pipes."""
    script = f"""
import os
if os.fork(): os._exit(0)
os.setsid()
if pid := os.fork():
    print(pid, flush=True)
    os._exit(0)
null = os.open('/dev/null', os.O_RDWR)
for fd in range(3): os.dup2(null, fd)
os.execve('/bin/sleep', ['sleep', '{_FOR_EVER}'], {{}})
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE, check=True, env={})
    return int(done.stdout)


def main(adapt: Callable[[type[FaultyAgent]], type[FaultyAgent]] = lambda kind: kind) -> None:
    """Run the behaviour that the command line names; ``adapt`` may replace its class."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.faulty_agent", description=__doc__)
    parser.add_argument("--behaviour", choices=sorted(BEHAVIOURS), default="honest")
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--seconds", type=int, default=2, help="of reaches_limit, until its limit ends")
    parser.add_argument("--count", type=int, default=2000, help="of floods")
    parser.add_argument("--size", type=int, default=200, help="of floods")
    options = parser.parse_args()
    adapt(BEHAVIOURS[options.behaviour])(options.home, options).run()


if __name__ == "__main__":
    main()
