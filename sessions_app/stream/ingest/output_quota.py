"""Limits of an agent's output: what exceeds them is left out of the log, which is shown at once and counted.

Beyond the limit for a turn or a session, the agent's texts, plans and tool calls are left out, and their bytes are
counted in a message where they would stand. What somebody waits for is still stored: permission requests, the ends of
turns, settings. An agent that floods with those is stopped at the next multiple of the limit, and so is one that leaves
too many requests open. The counts are columns of the execution and commit with the cursor. So they survive every
restart, and a line that arrives twice counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.template.defaultfilters import filesizeformat

from executors_app.models import ExecutorRunning
from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.kernel.rules.states import DesiredState
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import IntentKind, SessionTransaction
from sessions_app.permissions.open_requests import MAX_OPEN_BYTES, MAX_OPEN_REQUESTS, OpenRequests
from sessions_app.stream.conversation import MAX_OPEN_TOOL_BYTES, MAX_OPEN_TOOLS, OUTPUT_ONLY_KINDS, ConversationUpdate
from sessions_app.stream.ingest.line_costs import LINE_COST
from sessions_app.stream.services import LIMIT_SETTINGS, SESSION, STOP_REASON, TURN, allowed_bytes
from sessions_app.turns.events import OutputLeftOut, OutputLimited, OutputResumed

LIMITED_KINDS: Final = (OUTPUT_ONLY_KINDS - {JournalKind.USAGE.value}) | {JournalKind.MESSAGE_USER.value}
"""Lines that are left out beyond a limit."""
_SUMMARY_KINDS: Final = TURN_ENDS | {JournalKind.AGENT_EXITED}
"""Lines before which the conversation gets the number of bytes that were left out."""
QUOTA_FIELDS: Final = ("output_bytes", "turn_output_bytes", "turn_output_allowed", "output_left_out", "output_limit")
"""Columns of the execution that change here."""
_FLOOD: Final = (
    "The agent was stopped: requests and reports that must be stored exceeded twice the limit of its output."
)
_TOO_MANY_REQUESTS: Final = (
    f"The agent was stopped: it asked for more than {MAX_OPEN_REQUESTS} permissions or answers at once, or for more "
    f"than {MAX_OPEN_BYTES >> 20} MiB of them. The requests beyond that are not stored."
)


class OutputQuota:
    """Decides for each line of a batch, in order, whether it is stored."""

    def __init__(
        self,
        transaction: SessionTransaction,
        execution: ExecutorRunning,
        conversation: ConversationUpdate,
        open_requests: OpenRequests,
    ):
        self._transaction, self._execution = transaction, execution
        self._conversation, self._open_requests = conversation, open_requests

    def admits(self, line: Mapping[str, Any], size: int) -> bool:
        """Return whether a line that writes ``size`` bytes is stored, and count it."""
        kind = line.get("kind")
        if kind == JournalKind.PROMPT_ACCEPTED:
            self.begin_turn()
        elif kind in _SUMMARY_KINDS or not self._execution.output_limit:
            self._record_left_out()  # the latter: a user has allowed more
        if kind in LIMITED_KINDS and self._is_beyond_limit(size):
            self._execution.output_left_out += size
            return False
        if kind == JournalKind.PERMISSION_REQUESTED and not self._open_requests.has_room_for(size):
            self._execution.output_left_out += size
            self._stop(_TOO_MANY_REQUESTS)
            return False
        self._execution.turn_output_bytes += size
        self._execution.output_bytes += size
        self._stop_if_flooding()
        return True

    def finish(self) -> None:
        """Close the oldest tool calls if too many are open; a turn that has written little cannot have so many."""
        if self._execution.turn_output_bytes >= min(MAX_OPEN_TOOLS * LINE_COST, MAX_OPEN_TOOL_BYTES):
            self._conversation.close_oldest_tools()

    def begin_turn(self) -> None:
        """Begin a new count: the turn of a prompt, or one that the agent has begun itself."""
        self._record_left_out()
        execution = self._execution
        execution.turn_output_bytes = execution.turn_output_allowed = 0
        if execution.output_limit == TURN:
            execution.output_limit = ""
            self._transaction.record_event(OutputResumed(limit=LIMIT_SETTINGS[TURN], reason="next_turn"))

    def _is_beyond_limit(self, size: int) -> bool:
        if self._execution.output_limit:
            return True
        for limit, used in self._used().items():
            allowed = allowed_bytes(self._execution, limit)
            if allowed and used + size > allowed:
                self._reach(limit, allowed)
                return True
        return False

    def _used(self) -> dict[str, int]:
        return {TURN: self._execution.turn_output_bytes, SESSION: self._execution.output_bytes}

    def _reach(self, limit: str, allowed: int) -> None:
        self._execution.output_limit = limit
        name = LIMIT_SETTINGS[limit]
        self._conversation.finish_text()
        text = (
            f"The agent’s output has reached the limit of {filesizeformat(allowed)} for one {limit} ({name}). "
            "What it writes from here on is not stored. Its requests and the end of its turn still arrive. "
            "Choose “Store more output”, cancel the turn, or stop the agent."
        )
        self._conversation.add_message("status", text, output_limit={"limit": name, "bytes": allowed})
        self._transaction.record_event(OutputLimited(limit=name, bytes_=allowed))

    def _record_left_out(self) -> None:
        """Add a message with the number of bytes that are missing at this place."""
        left_out, self._execution.output_left_out = self._execution.output_left_out, 0
        if not left_out:
            return
        self._conversation.finish_text()
        text = plural(
            left_out,
            "1 byte of the agent’s output was left out here.",
            "{:,} bytes of the agent’s output were left out here.",
        )
        self._conversation.add_message("status", text, output_left_out={"bytes": left_out})
        self._transaction.record_event(OutputLeftOut(bytes_=left_out))

    def _stop_if_flooding(self) -> None:
        """Stop the session if what must be stored exceeds the limit once more."""
        for limit, used in self._used().items():
            default = getattr(settings, LIMIT_SETTINGS[limit])
            if default and used > allowed_bytes(self._execution, limit) + default:
                self._stop(_FLOOD)
                return

    def _stop(self, explanation: str) -> None:
        transaction = self._transaction
        if transaction.session.desired_state == DesiredState.STOPPED:
            return
        transaction.set_fields(desired_state=DesiredState.STOPPED, start_rank=None)
        create_intent(transaction.session, IntentKind.STOP, None, {"reason": STOP_REASON})
        self._conversation.finish_text()
        self._conversation.add_message("status", explanation)
