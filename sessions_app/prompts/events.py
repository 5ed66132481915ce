"""The ledger of prompts, from the queue to the end of the turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import KEY_LIMIT, PromptRow, SessionRebuild, text_value
from sessions_app.kernel.rules.states import PromptState
from sessions_app.sessions.rules.situation_facts import Label

NAME_PREFIX: Final = "session.prompt."
_SETTLEMENT_LABELS: Final[Mapping[str, str]] = {
    "continued_by_itself": "Kandev asks the agent to continue the unfinished prompt",
    "continued": "A user continued the unfinished prompt with a new one",
    "resent": "A user sent an unfinished prompt again, as a new one",
}


class PromptEvent(Event):
    """A prompt has reached a state of the ledger, or stays in one for too long."""

    message_id: str
    kind: str
    state: str

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Add the prompt, or move it to the state that the event is named for."""
        state, message_id = cls.name.rpartition(".")[2], text_value(line.payload, "message_id")
        if state not in set(PromptState) or not message_id or len(message_id) > KEY_LIMIT:
            raise ValueError("no prompt")
        kind = text_value(line.payload, "kind")[:10] or "user"
        rows.prompts.setdefault(message_id, PromptRow(message_id, kind, state, line.at)).state = state


class PromptQueued(
    PromptEvent,
    name="session.prompt.queued",
    recorded_by="the request that sends the prompt; also when agentctl refused it for now",
    audited=True,
):
    """A prompt is queued."""


class PromptSending(
    PromptEvent, name="session.prompt.sending", recorded_by="the supervisor, before it sends the command"
):
    """A prompt is being sent."""


class PromptAccepted(
    PromptEvent, name="session.prompt.accepted", recorded_by="ingest: the prompt is in agentctl's journal"
):
    """agentctl has a prompt."""


class PromptDelivered(PromptEvent, name="session.prompt.delivered", recorded_by="ingest: the agent has received it"):
    """The agent has a prompt."""

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Also note with which snapshot of the workspace its turn began."""
        super().rebuild(rows, line)
        turn = rows.newest_run()
        if turn is not None and turn.ended_at is None and turn.message_id == text_value(line.payload, "message_id"):
            turn.snapshot_before = rows.snapshot


class PromptDone(PromptEvent, name="session.prompt.done", recorded_by="ingest: its turn has ended"):
    """The turn of a prompt has ended."""


class PromptHeld(
    PromptEvent,
    name="session.prompt.held",
    recorded_by="an interruption or the end of the session: it is not known whether the agent received it",
    audited=True,
    timeline=Label(
        "It is not known whether the agent received a prompt. It is held and not sent again automatically", "ask"
    ),
    quotes_prompt=True,
    raises=(AttentionKind.HELD,),
):
    """It is not known whether the agent received a prompt."""

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the prompt."""
        text = inbox.prompt_text(self.message_id)
        inbox.raise_item(notices.held_notice(inbox.session_id, self.message_id, text))


class PromptInterrupted(
    PromptEvent,
    name="session.prompt.interrupted",
    recorded_by="an interruption: the agent received it and did not finish",
    timeline=Label("The agent did not finish this prompt. The same text is not sent again automatically", "ask"),
    quotes_prompt=True,
):
    """The agent did not finish a prompt."""

    @classmethod
    def open_label(cls) -> Label:
        """Return the text while nobody has settled the prompt."""
        assert cls.timeline is not None  # noqa: S101 - declared above
        return Label(f"{cls.timeline.text}: you decide whether to continue it", cls.timeline.tone)


class PromptDismissed(
    PromptEvent,
    name="session.prompt.dismissed",
    recorded_by="a user, or the continue prompt that replaced it",
    audited=True,
    timeline=Label("An unfinished prompt was dismissed", "off"),
):
    """An unfinished prompt was settled."""

    @classmethod
    def settlement_label(cls, settled_by: str) -> Label:
        """Return the text of a prompt that was ``continued``, by a user or ``continued_by_itself``, or ``resent``.

        Without either, a user dismissed it.
        """
        assert cls.timeline is not None  # noqa: S101 - declared above
        return Label(_SETTLEMENT_LABELS.get(settled_by, cls.timeline.text), cls.timeline.tone)


class PromptWithdrawn(
    PromptEvent,
    name="session.prompt.withdrawn",
    recorded_by="a user, or the end of the session",
    audited=True,
):
    """A queued prompt was withdrawn."""


LARGEST_VERSION: Final = 1 << 31
"""A version of a text that an import accepts is smaller: its column cannot store more."""
EDIT_EXCERPT: Final = 2000
"""Characters of the texts that the event of an edit contains."""


USER_NAME_LIMIT: Final = 150
"""Characters of a user name."""


def _label_with_user(words: str, name: str) -> Label:
    """Return the words with the user's name, which older logs do not have."""
    if name:
        words = f"{words} by {name}"
    return Label(words, "calm")


class PromptEdited(
    PromptEvent,
    name="session.prompt.edited",
    recorded_by="a user, while the prompt waits in the queue",
):
    """The text of a queued prompt was changed."""

    version: int = Field(description="counts the versions of the text, from 1")
    old_text: str = Field(description=f"its first {EDIT_EXCERPT} characters")
    new_text: str = Field(description=f"its first {EDIT_EXCERPT} characters")
    old_length: int = Field(description="characters of the old text")
    length: int = Field(description="characters of the new text")
    by: str = Field(description="who edited it")

    def timeline_label(self) -> Label:
        """Say who edited it."""
        return _label_with_user("A queued prompt was edited", self.by)

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Keep the newest text, if the event has all of it."""
        prompt = rows.prompts.get(text_value(line.payload, "message_id"))
        version = line.payload.get("version")
        if prompt is None or not isinstance(version, int) or not 0 < version < LARGEST_VERSION:
            raise ValueError("no prompt")
        text = text_value(line.payload, "new_text")
        prompt.version, prompt.text, prompt.edited_by = version, "", text_value(line.payload, "by")[:USER_NAME_LIMIT]
        if line.payload.get("length") == len(text):
            prompt.text = text


class PromptSteered(
    PromptEvent,
    name="session.prompt.steered",
    recorded_by="a user, while a turn runs: the prompt is handed to it now",
    timeline=Label("A prompt is for the turn that is running", "busy"),
    quotes_prompt=True,
):
    """A prompt goes to the turn that is running. If the agent does not take it there, it is queued again."""

    turn: str = Field(description="the `message_id` of that turn")

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Change nothing: what became of it is told by the states that follow."""


class PromptMoved(
    PromptEvent,
    name="session.prompt.moved",
    recorded_by="a user, while the prompt waits in the queue",
):
    """A queued prompt has another place in the queue."""

    old_position: int = Field(description="among the queued prompts of users, from 1")
    new_position: int
    by: str = Field(description="who moved it")

    def timeline_label(self) -> Label:
        """Say from where to where it was moved, and who did it."""
        words = f"A queued prompt was moved from place {self.old_position} to place {self.new_position}"
        return _label_with_user(words, self.by)

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Change nothing: the snapshot has the order."""


PROMPT_EVENTS: Final[Mapping[str, type[PromptEvent]]] = {
    PromptState.QUEUED: PromptQueued,
    PromptState.SENDING: PromptSending,
    PromptState.ACCEPTED: PromptAccepted,
    PromptState.DELIVERED: PromptDelivered,
    PromptState.DONE: PromptDone,
    PromptState.HELD: PromptHeld,
    PromptState.INTERRUPTED: PromptInterrupted,
    PromptState.DISMISSED: PromptDismissed,
    PromptState.WITHDRAWN: PromptWithdrawn,
}
"""The event of each state that a prompt moves to."""


class PromptOverdue(
    PromptEvent,
    name="session.prompt.overdue",
    recorded_by="the supervisor, once for each prompt: no agent was available within `KANDEV_START_TIMEOUT`; the "
    "prompt stays in the queue",
    audited=True,
    timeline=Label("A prompt has waited too long for the agent. It stays in the queue", "ask"),
    raises=(AttentionKind.OVERDUE,),
):
    """A prompt has waited too long for an agent."""

    reason: str = Field(description="what it waits for")
    waited_seconds: int

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the prompt."""
        inbox.raise_item(notices.overdue_notice(inbox.session_id, self.message_id, self.reason))

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Change nothing: the prompt stays in its state."""
