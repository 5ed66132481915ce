"""The declarations of events: what is derived from them, and how stored payloads are read."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field, ValidationError

from scripts.documents.events import event_schema
from sessions_app.attention.rules.notices import AttentionKind, Notice
from sessions_app.events import EVENT_CLASSES, TOPICS, Event, event_label, rebuild_rows
from sessions_app.kernel.events.base import ALL_KINDS, Inbox
from sessions_app.kernel.events.session import StateChanged
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.kernel.rules.states import EXECUTOR, PROMPT, RUN
from sessions_app.prompts.events import PROMPT_EVENTS
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.starts.events import AGENTCTL_EVENTS, AgentctlReady, ReceiptWritten
from sessions_app.stream.events.conversation import MessageUpdated
from sessions_app.stream.events.journal import JournalGap
from sessions_app.turns.events import RUN_EVENTS, OutputLimited
from tests.services import ROOT

EVENTS = sorted(EVENT_CLASSES.values(), key=lambda event: event.name)
NAMES = [event.name for event in EVENTS]
THAT_CHANGE_THE_INBOX = [event for event in EVENTS if event.update_inbox is not Event.update_inbox]
THAT_AN_IMPORT_REBUILDS = [event for event in EVENTS if event.rebuild.__func__ is not Event.rebuild.__func__]  # type: ignore[attr-defined]
STRANGE_VALUES: tuple[Any, ...] = (None, True, -1, 0.5, "", "x" * 5000, "\x00<script>", [], [1], ["x"], {}, {"a": [{}]})


class RecordingInbox:
    """An inbox that remembers what an event did."""

    session_id = "s1"
    last_seq = 7

    def __init__(self, *, completed: bool = True) -> None:
        self.raised: list[Notice] = []
        self.resolved: list[str] = []
        self.completed = completed

    def raise_item(self, notice: Notice) -> None:
        """Remember the notice."""
        self.raised.append(notice)

    def resolve(self, resolution: str, kinds: Collection[str] = ALL_KINDS, *, key: str = "") -> None:
        """Remember the resolution."""
        self.resolved.append(resolution)

    def resolve_at_end(self, resolution: str, key: str) -> None:
        """Remember the resolution."""
        self.resolved.append(resolution)

    def prompt_text(self, message_id: str) -> str:
        """Return a text."""
        return "the prompt"

    def interrupted_wait(self, run_id: str) -> str | None:
        """Return a reason: the wait was interrupted."""
        return "the build"

    def has_completed_turn(self) -> bool:
        """Return what the test wants."""
        return self.completed

    def forget_ignored_cancel(self, run_id: str) -> None:
        """Remember it."""
        self.resolved.append("turn_ended")

    def work_begins(self) -> None:
        """Remember it."""
        self.resolved.append("working")

    def work_ends(self) -> None:
        """Remember it."""
        self.resolved.append("idle")


def test_payload_has_the_names_and_the_order_of_the_declaration() -> None:
    event = StateChanged(from_="STARTING", to="RUNNING", reason="turn_started", error_code="", error_message="")
    assert list(event.payload().items()) == [
        ("from", "STARTING"),
        ("to", "RUNNING"),
        ("reason", "turn_started"),
        ("error_code", ""),
        ("error_message", ""),
    ]
    assert OutputLimited(limit="KANDEV_TURN_OUTPUT_LIMIT", bytes_=5).payload() == {
        "limit": "KANDEV_TURN_OUTPUT_LIMIT",
        "bytes": 5,
    }


def test_optional_field_is_left_out_and_required_null_is_kept() -> None:
    assert JournalGap(reason="new_epoch", since=None).payload() == {"reason": "new_epoch", "since": None}
    assert MessageUpdated(message_id="m", complete=False).payload() == {"message_id": "m", "complete": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "new_epoch"},
        {"reason": 5, "since": None},
        {"reason": "new_epoch", "since": None, "until": None},
        {"reason": "new_epoch", "since": None, "lost_events": "3"},
    ],
)
def test_event_with_a_missing_wrong_or_unknown_field_cannot_be_recorded(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JournalGap(**fields)


@pytest.mark.parametrize("event", EVENTS, ids=NAMES)
def test_stored_payload_of_any_shape_is_readable(event: type[Event]) -> None:
    fields = [field.name for field in event.payload_fields]
    for value in STRANGE_VALUES:
        payload = dict.fromkeys([*fields, "of_a_later_version"], value)
        for present in ({}, payload, dict(list(payload.items())[:1])):
            label = event_label(event.name, present)
            assert isinstance(label, Label) and label.text
            assert isinstance(event.read(present).payload(), dict)


def test_readable_fields_survive_beside_unreadable_ones() -> None:
    gap = JournalGap.read({"reason": "new_epoch", "since": ["?"], "lost_events": 3, "later": 1})
    assert (gap.reason, gap.since, gap.lost_events) == ("new_epoch", None, 3)


def test_unknown_event_is_named_in_words() -> None:
    assert event_label("session.something.never_seen", {"a": 1}).text == "Never seen"


@pytest.mark.parametrize("event", EVENTS, ids=NAMES)
def test_event_says_what_records_it_and_has_a_valid_schema(event: type[Event]) -> None:
    assert event.recorded_by
    schema = event_schema(event)
    Draft202012Validator.check_schema(schema)
    fields = {field.name for field in event.payload_fields if field.required}
    assert set(schema["properties"]["payload"]["required"]) == fields


def test_events_of_every_topic_are_loaded() -> None:
    """An event of another module would be missing in documents, schema, timeline and contract."""
    files = [*ROOT.glob("sessions_app/*/events.py"), *ROOT.glob("sessions_app/*/events/[a-z]*.py")]
    modules = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files}
    assert modules - {Event.__module__} == {topic.__name__ for topic in TOPICS}


def test_every_state_that_is_moved_to_has_an_event() -> None:
    assert set(PROMPT_EVENTS) >= {target for _, target in PROMPT.moves.values()}
    assert set(RUN_EVENTS) >= {target for _, target in RUN.moves.values()}
    assert set(AGENTCTL_EVENTS) >= {target for _, target in EXECUTOR.moves.values()}
    for state, event in PROMPT_EVENTS.items():
        assert event.name == f"session.prompt.{state}"


@pytest.mark.parametrize("event", THAT_CHANGE_THE_INBOX, ids=lambda event: event.name)
def test_event_raises_only_the_items_that_it_declares(event: type[Event]) -> None:
    raised = set()
    for values in ({}, {"kind": "fresh", "reason": "lost"}, {"kind": "loaded", "verified": "unproven"}):
        for question in (None, {"mode": "form", "message": "Which?"}):
            inbox = RecordingInbox()
            event.read({**values, "question": question}).update_inbox(_inbox(inbox))
            raised |= {notice.kind for notice in inbox.raised}
    by_state = {AttentionKind.IDLE, AttentionKind.CUT_SHORT}  # decided from the session's rows
    assert raised == event.raises - by_state


def _inbox(inbox: RecordingInbox) -> Inbox:
    return inbox


@pytest.mark.parametrize(
    ("kind", "reason", "completed", "raised"),
    [
        ("fresh", "token_lost", True, ["receipt"]),
        ("fresh", "token_lost", False, []),
        ("fresh", "fresh_start", True, []),
        ("fresh", None, True, []),
        ("resumed", None, True, ["unproven"]),
        ("reattached", None, True, []),
    ],
)
def test_receipt_is_reported_only_if_a_conversation_may_be_lost(
    kind: str, reason: str | None, completed: bool, raised: list[str]
) -> None:
    inbox = RecordingInbox(completed=completed)
    event = ReceiptWritten(receipt_id="r1", kind=kind, verified="unproven", reason=reason)
    event.update_inbox(inbox)
    assert [str(notice.kind) for notice in inbox.raised] == raised


def test_failed_start_and_given_up_session_are_logged_as_warnings() -> None:
    levels = [
        ReceiptWritten(receipt_id="r", kind="failed", verified="none").log_level(),
        StateChanged(from_="ERROR", to="FAILED", reason="give_up", error_code="", error_message="").log_level(),
        ReceiptWritten(receipt_id="r", kind="loaded", verified="replay").log_level(),
    ]
    assert levels == [logging.WARNING, logging.WARNING, logging.INFO]


def test_reattach_does_not_change_the_status() -> None:
    ready = {"executor_status": "ready", "error_message": ""}
    assert AgentctlReady.read(ready).may_change_status()
    assert not AgentctlReady.read({**ready, "reason": "reattached"}).may_change_status()


@pytest.mark.parametrize("event", THAT_AN_IMPORT_REBUILDS, ids=lambda event: event.name)
def test_import_refuses_a_foreign_payload_or_reads_it(event: type[Event]) -> None:
    fields = [field.name for field in event.payload_fields]
    for value in STRANGE_VALUES:
        payload: Mapping[str, Any] = dict.fromkeys(fields, value)
        line = LogEvent(1, datetime(2026, 1, 1, tzinfo=UTC), event.name, payload)
        try:
            known = rebuild_rows(SessionRebuild(uuid.uuid4()), line)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # the import reports the line
        assert known.name == event.name


def test_two_events_cannot_share_a_name() -> None:
    with pytest.raises(TypeError, match=r"session\.journal_gap"):

        class Another(Event, name="session.journal_gap"):
            """A second declaration."""

            count: int = Field(description="how many")

    assert EVENT_CLASSES["session.journal_gap"] is JournalGap
