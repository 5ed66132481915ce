"""A driver without an agent that does what the command line and the prompt say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from executors_app.agentctl.drivers import Host, StartFailed, StartRequest, StartResult, TurnFailed
from executors_app.wire.protocol import Code, JournalKind

OPTIONS = [
    {"option_id": "no", "name": "No", "kind": "reject_once"},
    {"option_id": "yes", "name": "Yes", "kind": "allow_once"},
]
FORM = {
    "mode": "form",
    "message": "Which?",
    "schema": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"]},
    "order": ["name"],
}
LINK = {"mode": "url", "message": "Log in", "url": "https://example.org/login", "elicitation_id": "e1"}
DELIVERED = "delivered.txt"


class ObedientDriver:
    """Driver without a process; it appends every prompt that it gets to ``delivered.txt`` in its cwd."""

    def __init__(self, host: Host, marker: Mapping[str, str]):
        self.host, self.marker = host, marker
        self.alive = False
        self.cwd = Path()
        self.go_on, self.cancelled = asyncio.Event(), asyncio.Event()
        self.asked_to_end_own_work = 0
        self.asking: asyncio.Task[str | None] | None = None

    @property
    def pid(self) -> int | None:
        return 4711 if self.alive else None

    async def start(self, request: StartRequest) -> StartResult:
        match list(request.argv):
            case ["refuses"]:
                raise StartFailed(Code.TOKEN_REJECTED, "no such conversation", permanent=True, token_valid=False)
            case ["slow"]:
                await self.go_on.wait()
            case ["breaks"]:
                raise ZeroDivisionError
        self.alive, self.cwd = True, Path(request.cwd)
        await self.host.keep_token("conversation-1")
        if request.argv == ["dies at once"]:
            self.die(1)
        return StartResult(
            outcome="loaded" if request.resume_token else "created",
            resume_token="conversation-1",
            agent={"name": "obedient", "version": "1"},
            capabilities={"load_session": True, "resume_session": False, "history": False, "protocol": 1},
            replayed=2 if request.resume_token else 0,
            replayed_user_texts=["hello"] if request.resume_token else [],
            timings={"spawn": 1.0},
        )

    async def cancel_own_work(self) -> None:
        self.asked_to_end_own_work += 1

    async def prompt(
        self,
        message_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]],
        delivered: Callable[[], None],
        kind: str = "user",
    ) -> str:
        self.cancelled.clear()
        with (self.cwd / DELIVERED).open("a") as file:
            file.write(f"{message_id}\n")
        delivered()
        match text:
            case "hang":
                await self.cancelled.wait()
                return "cancelled"
            case "hang, then end":
                await self.cancelled.wait()
                return "end_turn"
            case "hang, then fail":
                await self.cancelled.wait()
                raise TurnFailed("aborted", "the turn was aborted")
            case text if text in FAILURES:
                raise TurnFailed(*FAILURES[text])
            case "break":
                raise ZeroDivisionError
            case text if text in ANSWERS:
                return self._answer_first(text)
            case text if "die" in text:
                self._die_in_a_turn(text)
            case "ask" | "ask, then end" | "form" | "link":
                return await self._ask(text)
        self.host.record(JournalKind.MESSAGE_AGENT, text=text)
        return "cancelled" if text == "cancel it" else "end_turn"

    async def cancel(self) -> None:
        self.cancelled.set()

    async def stop(self, grace: float) -> int | None:
        self.die(-15)
        return -15

    async def _ask(self, text: str) -> str:
        """Ask for a permission or an answer, and end the turn with it, or without it."""
        if text == "ask, then end":
            self.asking = asyncio.create_task(self.host.ask_permission({"tool_call": {}, "options": OPTIONS}))
            await asyncio.sleep(0)  # it has asked
            return "end_turn"
        if text == "ask":
            chosen = await self.host.ask_permission({"tool_call": {"title": "rm"}, "options": OPTIONS})
            self.host.record(JournalKind.MESSAGE_AGENT, text=f"chosen: {chosen}")
            return "end_turn" if chosen else "cancelled"
        question = {"tool_call": {"title": "Which?"}, "question": FORM if text == "form" else LINK}
        action, content = await self.host.ask_question(question)
        self.host.record(JournalKind.MESSAGE_AGENT, text=f"{action}: {dict(content)}")
        return "end_turn"

    def _answer_first(self, text: str) -> str:
        """End the turn, and do what the prompt says right afterwards."""
        output, stop_reason, then = ANSWERS[text]
        if output:
            self.host.record(JournalKind.MESSAGE_AGENT, text=output)
        asyncio.get_running_loop().call_soon(then, self)
        return stop_reason

    def _die_in_a_turn(self, text: str) -> None:
        """End the process in the order that the prompt says, and the turn with what the driver can know of it."""
        if text == "die":
            self.die(9)
        elif text == "break off, then die":
            asyncio.get_running_loop().call_later(0.05, self.die, 9)
        else:
            self._lose_process()
        if text == "fail, then die":
            raise TurnFailed("overloaded", "try later")
        if text == "die before the prompt":
            raise TurnFailed(Code.NOT_RUNNING, "no agent is running")
        raise TurnFailed(Code.AGENT_EXITED, "the agent is gone")

    def _lose_process(self) -> None:
        """End the process; its exit is recorded a little later, when the rest of its output has been read."""
        self.alive = False
        asyncio.get_running_loop().call_later(0.05, self.host.agent_gone, 9)

    def die(self, exit_code: int) -> None:
        if self.alive:
            self.alive = False
            self.host.agent_gone(exit_code)


FAILURES: Mapping[str, tuple[str, str]] = {
    "fail": ("overloaded", "try later"),
    "lose the conversation": (Code.TOKEN_REJECTED, "no such conversation"),
    "close the conversation": (Code.CONVERSATION_CLOSED, "no such conversation"),
}
ANSWERS: Mapping[str, tuple[str, str, Callable[[ObedientDriver], object]]] = {
    "answer, then say the rest": (
        "the answer ",
        "end_turn",
        lambda driver: driver.host.record(JournalKind.MESSAGE_AGENT, text="and its end"),
    ),
    "stop early, then say it": (
        "",
        "max_tokens",
        lambda driver: driver.host.record(JournalKind.MESSAGE_AGENT, text="late"),
    ),
    "answer, then die": ("done", "end_turn", lambda driver: driver.die(0)),
}
"""By prompt: what the driver says in the turn, its stop reason, and what it does after that."""


class Obedient:
    """Factory that creates obedient drivers and remembers them."""

    def __init__(self) -> None:
        self.made: list[ObedientDriver] = []

    def create(self, host: Host, marker: Mapping[str, str]) -> ObedientDriver:
        self.made.append(ObedientDriver(host, marker))
        return self.made[-1]

    @property
    def driver(self) -> ObedientDriver:
        return self.made[-1]
