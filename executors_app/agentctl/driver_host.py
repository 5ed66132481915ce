"""What the driver of an agent reports to: its output, its conversation's id, its requests and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.permissions import Permissions, RequestHost
from executors_app.agentctl.state_files import TokenFile
from executors_app.agentctl.turns import Turns
from executors_app.machine import crash_points
from executors_app.wire.protocol import TURN_OUTPUT_KINDS, JournalKind
from executors_app.wire.token_redaction import token_fingerprint


class DriverHost(RequestHost):
    """The ``Host`` of one agent process; ``on_exit`` is called when that process ends."""

    def __init__(
        self,
        journal: Journal,
        token: TokenFile,
        turns: Turns,
        permissions: Permissions,
        conversations: ConversationStore,
        *,
        auto_approve: bool,
    ):
        self.conversations = conversations
        super().__init__(permissions, turns, auto_approve=auto_approve)
        self._journal, self._token = journal, token
        self._turns, self._permissions = turns, permissions
        self.on_exit: Callable[[int | None], None] = lambda exit_code: None
        self.on_output_outside_turn: Callable[[], None] = lambda: None
        self._held_log_lines: list[dict[str, Any]] | None = []

    def record(self, kind: str, **body: Any) -> int:
        """Append a journal line and return its seq.

        Log lines wait until the conversation's id is known: they may quote it, and only a known id is redacted.
        """
        if kind == JournalKind.LOG and self._held_log_lines is not None:
            self._held_log_lines.append(body)
            return self._journal.last_seq
        if kind in (JournalKind.TOOL_CALL, JournalKind.TOOL_UPDATE):
            self._permissions.note_tool_call(body)
        if kind in TURN_OUTPUT_KINDS and body.get("text") != "":
            self._turns.note_output(kind, str(body.get("text") or ""))
            if self._turns.message_id is None:
                self.on_output_outside_turn()
        seq = self._journal.append(kind, **body)
        if kind == JournalKind.AGENT_TURN_ENDED:
            self._turns.after_turn()
        return seq

    def release_log_lines(self) -> None:
        """Append the held log lines: the conversation's id is known now, or there will be none."""
        held, self._held_log_lines = self._held_log_lines or [], None
        for body in held:
            self._journal.append(JournalKind.LOG, **body)

    async def wait_for_room(self) -> None:
        """Wait until the journal accepts more lines."""
        await self._journal.wait_for_room()

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        """Save the conversation id; the journal gets only its fingerprint."""
        # The token file first: after a crash between the two writes the token is there, and the next
        # call finds nothing changed. The other way round, the journal would name a token that is lost.
        if self._token.save(token, last_message_uuid):
            crash_points.reached("agentctl.token_kept")
            identified = {"fingerprint": token_fingerprint(token), "last_message_uuid": last_message_uuid}
            self._journal.append(JournalKind.SESSION_IDENTIFIED, **identified)
        self.release_log_lines()

    def agent_gone(self, exit_code: int | None) -> None:
        """Report that the agent process ended."""
        self.release_log_lines()
        self.on_exit(exit_code)
