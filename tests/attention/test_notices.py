"""Every attention kind has its notice, label, row in docs/operate/inbox.md, and text in audit and timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, PRIORITY, AttentionKind, FailedFinish, Notice
from sessions_app.events import EVENT_CLASSES, Event
from tests.docs.documents import text_of

NOTICES: Mapping[AttentionKind, Notice] = {
    notice.kind: notice
    for notice in (
        notices.gave_up_notice("s", 5, "No such image.", 1),
        notices.error_notice("s", "agent_error", "It failed.", 1),
        notices.worker_missing_notice("2026-03-10 18:00 UTC"),
        notices.permission_notice("p", {"title": "Run the tests"}),
        notices.question_notice("p", {"message": "Which one?"}),
        notices.held_notice("s", "m", "Please."),
        notices.cut_short_notice("s", "m", "Please."),
        notices.owner_left_notice("s", "ada"),
        notices.wait_interrupted_notice("r", "The build"),
        notices.overdue_notice("s", "m", "spawn_failed"),
        notices.run_failed_notice("r", "Nightly", "It failed.", 1),
        notices.stalled_notice("r", "12:00:00"),
        notices.cancel_ignored_notice("r", "12:00:00"),
        notices.finish_notice("s", FailedFinish("refs/heads/main", "One file is in conflict.", has_conflicts=True)),
        notices.budget_notice("h", "team", "1,000 tokens", "1,200 tokens"),
        notices.suspended_notice("s", "2026-03-10 18:00 UTC", "UTC", "You have reached your limit."),
        notices.cut_off_notice("r", "The last turn was ended by a limit that is over.", has_worked=False),
        notices.outage_notice("o", "The model’s provider is overloaded", "", "529"),
        notices.credit_notice("c", "The agent’s account has no credit left", "Credit balance is too low"),
        notices.output_limit_notice("s", "KANDEV_TURN_OUTPUT_LIMIT", 1),
        notices.receipt_notice("r"),
        notices.unproven_notice("r"),
        notices.idle_notice("r", "completed"),
    )
}
TIMELINE_EVENTS: Mapping[AttentionKind, str] = {
    AttentionKind.GAVE_UP: "session.state_changed",
    AttentionKind.ERROR: "session.state_changed",
    AttentionKind.PERMISSION: "session.run.waiting",
    AttentionKind.QUESTION: "session.run.waiting",
    AttentionKind.HELD: "session.prompt.held",
    AttentionKind.CUT_SHORT: "session.prompt.interrupted",
    AttentionKind.WAIT_INTERRUPTED: "session.run.interrupted",
    AttentionKind.OVERDUE: "session.prompt.overdue",
    AttentionKind.FINISH: "session.finish.refused",
    AttentionKind.STALLED: "session.run.stalled",
    AttentionKind.CANCEL_IGNORED: "session.run.cancel_ignored",
    AttentionKind.SUSPENDED: "session.suspended",
    AttentionKind.BUDGET: "session.budget.held",
    AttentionKind.OUTPUT_LIMIT: "session.output.limited",
    AttentionKind.RECEIPT: "session.receipt",
    AttentionKind.UNPROVEN: "session.receipt",
    AttentionKind.IDLE: "session.run.completed",
}
"""The event by which a session's timeline explains why the item was raised."""
NOT_IN_TIMELINE = {AttentionKind.OWNER_LEFT, AttentionKind.WORKFLOW, AttentionKind.SYSTEM}
"""One is raised by a sweep, whose row is in the timeline, one by a workflow, and one is about no session."""
NOT_RAISED_BY_EVENTS = NOT_IN_TIMELINE | {AttentionKind.GAVE_UP, AttentionKind.ERROR}
"""The last two follow from the session's own state, once all events are known."""
RECORDED_FOR_THE_AGENT = {"session.permission.requested", "session.work_state_changed"}
"""Raising events that are no decision of a supervisor: the agent itself asks, or ends its turn."""


def test_every_kind_has_a_notice_a_label_and_a_priority() -> None:
    kinds = set(AttentionKind)
    assert set(NOTICES) == set(ATTENTION_KIND_LABELS) == set(PRIORITY) == kinds


@pytest.mark.parametrize("kind", AttentionKind)
def test_notice_says_what_happened_why_and_what_to_do(kind: AttentionKind) -> None:
    notice = NOTICES[kind]
    what, why, next_step = str(notice.what), str(notice.why), str(notice.next_step)
    assert what[0].isupper() and not what.endswith(".")
    assert why and next_step.endswith(".")
    assert notice.key.startswith(kind) or kind is AttentionKind.WORKFLOW


@pytest.mark.parametrize("kind", AttentionKind)
def test_operate_document_has_a_row_for_each_kind(kind: AttentionKind) -> None:
    assert re.search(rf"^\| `{kind}` \| \S.+ \| \S.+ \|$", text_of("operate/inbox.md"), re.MULTILINE)


@pytest.mark.parametrize("kind", AttentionKind)
def test_timeline_says_why_each_item_was_raised(kind: AttentionKind) -> None:
    if kind in NOT_IN_TIMELINE:
        assert kind not in TIMELINE_EVENTS
        return
    event = TIMELINE_EVENTS[kind]
    assert EVENT_CLASSES[event].is_in_timeline()


def test_events_that_raise_items_are_audited_and_have_rules() -> None:
    raising = [event for event in EVENT_CLASSES.values() if event.raises]
    assert {kind for event in raising for kind in event.raises} == set(AttentionKind) - NOT_RAISED_BY_EVENTS
    assert [event.name for event in raising if event.update_inbox is Event.update_inbox] == []
    assert {event.name for event in raising if not event.is_audited} == RECORDED_FOR_THE_AGENT


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("disk_full", "The disk that stores the agent’s journal is full"),
        ("disk_failing", "cannot be written"),
        ("queued_for_capacity", "no room"),
        ("spawn_failed", "could not be started: spawn failed"),
    ],
)
def test_overdue_prompt_names_what_it_waits_for(reason: str, says: str) -> None:
    notice = notices.overdue_notice("s", "m", reason)
    assert says in str(notice.why)
