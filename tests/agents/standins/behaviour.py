"""What every stand-in does with a prompt; each reports it in the wire format of its own agent.

A stand-in keeps its conversations in ``$STANDIN_HOME``, so a new process can resume one. It obeys the
last line of a prompt:

=========================== ==========================================================================
remember the word X         confirms it and remembers it in this conversation
what was the word?          answers with the word
Your number is N. Add N.    stores a number and answers with the sum
Add N to your number.       adds to it and answers with the sum
use a tool                  reports a command and its output
ask                         asks for permission and reports the answer
hang                        says ``waiting`` and never ends by itself; it has a child that ignores TERM
leave                       starts a process that outlives the turn, and keeps its pid in ``$STANDIN_HOME/left``
leave and hang              does both
die                         says a few words and kills itself
fail                        ends the turn with an error
litter                      says ``before`` and ``after``, with invalid lines in between
shout N                     says N letters on one line
flood N                     says N lines of a kilobyte each, and keeps count in ``$STANDIN_HOME/said``
whisper                     prints 4 MB on stderr
=========================== ==========================================================================

With ``$STANDIN_SCRIPT``, ``{"if": [[words, answer], ...], "says": [...]}`` in JSON, it gives the answer of the first
words found in the prompt, otherwise the entry of ``says`` for this turn of the conversation; the last one is repeated.

With ``$STANDIN_LIES`` it answers a resume with the id of another conversation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

HOME = Path(os.environ["STANDIN_HOME"])
SCRIPT = json.loads(os.environ.get("STANDIN_SCRIPT", "null"))
LIES = bool(os.environ.get("STANDIN_LIES"))
LITTER = (
    "not json at all",
    "123",
    '"a text"',
    "[1, 2]",
    '{"type": "from_the_future", "x": [1]}',
    "{broken",
    "\x00\x01",
)
ALONE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


class Output(Protocol):
    """The output of one agent in its own wire format."""

    def say(self, text: str) -> None: ...
    def use_tool(self, command: str, output: str) -> None: ...
    def ask(self, command: str) -> str: ...
    def fail(self, message: str) -> None: ...


class Memory:
    """One conversation on disk."""

    def __init__(self, conversation_id: str):
        self.id = conversation_id
        self._path = HOME / f"{conversation_id}.json"

    @classmethod
    def create(cls, conversation_id: str | None = None) -> Memory:
        memory = cls(conversation_id or str(uuid.uuid4()))
        HOME.mkdir(parents=True, exist_ok=True)
        memory.keep([])
        return memory

    @classmethod
    def load(cls, conversation_id: str) -> Memory | None:
        """Return the stored conversation of this id, or None; a different one if the agent is told to lie."""
        if LIES:
            return cls.create()
        memory = cls(conversation_id)
        return memory if memory._path.exists() else None

    def path_of_messages(self) -> Path:
        """Return the file with the ids of its messages, one per line."""
        return HOME / f"{self.id}.messages"

    def words(self) -> list[str]:
        return list(json.loads(self._path.read_text()))

    def keep(self, words: Sequence[str]) -> None:
        self._path.write_text(json.dumps(list(words)))


def answer(memory: Memory, prompt: str, out: Output) -> bool:
    """Do what the prompt says; return False if the turn has failed."""
    with (HOME / "commands").open("a") as commands:
        commands.write(json.dumps(sys.argv[1:]) + "\n")
    if SCRIPT:
        out.say(_by_script(memory, prompt))
        return True
    words = prompt.strip().splitlines()[-1].split()
    doing = _DOINGS.get(words[0], _answer_unknown)
    return doing(memory, out, words) is not False


def _by_script(memory: Memory, prompt: str) -> str:
    turn = len(memory.words())
    memory.keep([*memory.words(), prompt])
    scripted = next((answer for words, answer in SCRIPT["if"] if words in prompt), None)
    return str(scripted or SCRIPT["says"][min(turn, len(SCRIPT["says"]) - 1)])


def _remember(memory: Memory, out: Output, words: list[str]) -> None:
    memory.keep([*memory.words(), words[-1]])
    out.say(f"I will remember {words[-1]}.")


def _recall(memory: Memory, out: Output, words: list[str]) -> None:
    known = memory.words()
    out.say(f"The word was {known[-1]}." if known else "I know no word.")


def _count(memory: Memory, out: Output, words: list[str]) -> None:
    numbers = [int(word.rstrip(".")) for word in words if word.rstrip(".").isdigit()]
    known = sum(map(int, memory.words()))
    memory.keep([str(known + sum(numbers))])
    out.say(str(known + sum(numbers)))


def _use(memory: Memory, out: Output, words: list[str]) -> None:
    out.use_tool("echo hello", "hello")
    out.say("It says hello.")


def _ask(memory: Memory, out: Output, words: list[str]) -> None:
    out.say(f"The answer was {out.ask('rm -r build')}.")


def _hang(memory: Memory, out: Output, words: list[str]) -> None:
    subprocess.Popen([sys.executable, "-S", "-c", ALONE])
    out.say("waiting")
    time.sleep(3600)


def _leave(memory: Memory, out: Output, words: list[str]) -> None:
    """Leave a process behind that is nobody's child, as a shell does whose command ends with ``&``."""
    command = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
    if os.fork() == 0:
        left = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        (HOME / "left").write_text(str(left.pid))
        os._exit(0)
    os.wait()
    out.say("I left it running.")
    if words[-1] == "hang":
        _hang(memory, out, words)


def _die(memory: Memory, out: Output, words: list[str]) -> None:
    out.say("I will just")
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(memory: Memory, out: Output, words: list[str]) -> bool:
    out.fail("529 overloaded")
    return False


def _print_invalid_lines(memory: Memory, out: Output, words: list[str]) -> None:
    out.say("before")
    for line in LITTER:
        print_line(line)
    out.say("after")


def _end_unreadably(memory: Memory, out: Output, words: list[str]) -> bool:
    print_line('{"type":"result","subtype":"success","usage":' + "[" * 100_000 + "]" * 100_000 + "}")
    return False


def _print_long_text(memory: Memory, out: Output, words: list[str]) -> None:
    out.say("x" * int(words[-1]))


def _print_many_lines(memory: Memory, out: Output, words: list[str]) -> None:
    for number in range(1, int(words[-1]) + 1):
        out.say(f"{number} ".ljust(1000, "."))
        (HOME / "said").write_text(str(number))


def _print_long_errors(memory: Memory, out: Output, words: list[str]) -> None:
    print_error(("psst " * 20 + "\n") * 40_000)
    out.say("I whispered.")


def _answer_unknown(memory: Memory, out: Output, words: list[str]) -> None:
    out.say(f"I do not know how to {' '.join(words)}.")


_DOINGS: dict[str, Callable[[Memory, Output, list[str]], bool | None]] = {
    "remember": _remember,
    "what": _recall,
    "Your": _count,
    "Add": _count,
    "use": _use,
    "ask": _ask,
    "hang": _hang,
    "leave": _leave,
    "die": _die,
    "fail": _fail,
    "litter": _print_invalid_lines,
    "garble": _end_unreadably,
    "shout": _print_long_text,
    "flood": _print_many_lines,
    "whisper": _print_long_errors,
}


def print_message(**message: Any) -> None:
    """Print one message."""
    print_line(json.dumps(message))


def print_line(line: str) -> None:
    """Print a line unchanged."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(text + "\n")
