"""What one driver sees of agentctl: the ``Host`` it reports to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from executors_app import crash_points
from executors_app.agentctl.conversations import Conversations
from executors_app.agentctl.discretion import fingerprint
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.memory import Token
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.protocol import OUTPUT_KINDS, Kind
from executors_app.agentctl.turns import Turns


class Seat:
    """The host of one agent process; ``on_gone`` is called when that process ends."""

    def __init__(
        self,
        journal: Journal,
        token: Token,
        turns: Turns,
        permissions: Permissions,
        conversations: Conversations,
        *,
        auto_approve: bool,
    ):
        self.conversations = conversations
        self._journal, self._token = journal, token
        self._turns, self._permissions = turns, permissions
        self._auto_approve = auto_approve
        self.on_gone: Callable[[int | None], None] = lambda exit_code: None
        self._unsaid: list[dict[str, Any]] | None = []

    def record(self, kind: str, **body: Any) -> int:
        """Append a journal line; a log line waits until the conversation has an id, because it may tell that one."""
        if kind == Kind.LOG and self._unsaid is not None:
            self._unsaid.append(body)
            return self._journal.last_seq
        if kind in OUTPUT_KINDS and body.get("text") != "":
            self._turns.note_output()
        return self._journal.append(kind, **body)

    def say_all(self) -> None:
        """The conversation's id is known, or there is none to come: nothing need wait any more."""
        unsaid, self._unsaid = self._unsaid or [], None
        for body in unsaid:
            self._journal.append(Kind.LOG, **body)

    async def room(self) -> None:
        """Wait while the journal has no room."""
        await self._journal.room()

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        """Keep the conversation id; the journal tells its fingerprint alone."""
        if self._token.keep(token, last_message_uuid):
            crash_points.reached("agentctl.token_kept")
            identified = {"fingerprint": fingerprint(token), "last_message_uuid": last_message_uuid}
            self._journal.append(Kind.SESSION_IDENTIFIED, **identified)
        self.say_all()

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Hold a permission open until it is answered or cancelled."""
        return await self._permissions.ask(
            request, self._turns.message_id, auto_approve=self._auto_approve, refuse=self._turns.cancel_asked
        )

    def agent_gone(self, exit_code: int | None) -> None:
        """Tell that the process ended."""
        self.say_all()
        self.on_gone(exit_code)
