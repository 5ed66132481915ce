"""A host that records what a driver reports and gives the answers of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from executors_app.agentctl.conversation_store import ConversationStore


class RecordingHost:
    """Host that records every line; a permission waits until the test answers it.

    ``directory`` is where a driver that stores conversations puts them.
    """

    def __init__(self, directory: Path = Path("/nonexistent")) -> None:
        self.lines: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.exits: list[int | None] = []
        self.questions: list[tuple[Mapping[str, Any], asyncio.Future[str | None]]] = []
        self.forms: list[tuple[Mapping[str, Any], asyncio.Future[tuple[str, Mapping[str, Any]]]]] = []
        self.completed: list[str] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.conversations = ConversationStore(directory / "conversations")

    def record(self, kind: str, **body: Any) -> int:
        orjson.dumps(body)  # the journal accepts only JSON values
        self.lines.append({"kind": str(kind), **body})
        return len(self.lines)

    async def wait_for_room(self) -> None:
        await self.has_room.wait()

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        self.tokens.append(token)

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.questions.append((request, answer))
        return await answer

    async def ask_question(self, request: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        answer: asyncio.Future[tuple[str, Mapping[str, Any]]] = asyncio.get_running_loop().create_future()
        self.forms.append((request, answer))
        return await answer

    def complete_question(self, elicitation_id: str) -> bool:
        self.completed.append(elicitation_id)
        return True

    def agent_gone(self, exit_code: int | None) -> None:
        self.exits.append(exit_code)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    def agent_text(self) -> str:
        return "".join(line["text"] for line in self.of("message.agent"))

    def logs(self, source: str | None = None) -> list[str]:
        return [line["text"] for line in self.of("log") if source in (None, line["data"].get("source"))]
