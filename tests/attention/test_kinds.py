"""Every attention kind has its notice, label, row in docs/operate.md, and text in audit and timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from sessions_app.domain import attention
from sessions_app.domain.attention import PRIORITY, AttentionKind, Notice
from sessions_app.models.attention_rules import _RULES
from sessions_app.models.side_effects import AUDITED_EVENTS
from sessions_app.pages.labels import ATTENTION_KIND_LABELS
from sessions_app.pages.timeline import _EVENT_LABELS
from sessions_app.services.timeline import STORY_EVENTS
from tests.docs.documents import text_of

NOTICES: Mapping[AttentionKind, Notice] = {
    notice.kind: notice
    for notice in (
        attention.gave_up_notice("s", 5, "No such image.", 1),
        attention.error_notice("s", "agent_error", "It failed.", 1),
        attention.permission_notice("p", {"title": "Run the tests"}),
        attention.question_notice("p", {"message": "Which one?"}),
        attention.held_notice("s", "m", "Please."),
        attention.cut_short_notice("s", "m", "Please."),
        attention.owner_left_notice("s", "ada"),
        attention.wait_interrupted_notice("r", "The build"),
        attention.overdue_notice("s", "m", "spawn_failed"),
        attention.run_failed_notice("r", "Nightly", "It failed.", 1),
        attention.stalled_notice("r", "12:00:00"),
        attention.cancel_ignored_notice("r", "12:00:00"),
        attention.receipt_notice("r"),
        attention.unproven_notice("r"),
        attention.idle_notice("r", "completed"),
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
    AttentionKind.STALLED: "session.run.stalled",
    AttentionKind.CANCEL_IGNORED: "session.run.cancel_ignored",
    AttentionKind.RECEIPT: "session.receipt",
    AttentionKind.UNPROVEN: "session.receipt",
    AttentionKind.IDLE: "session.run.completed",
}
"""The event by which a session's timeline explains why the item was raised."""
NOT_IN_TIMELINE = {AttentionKind.OWNER_LEFT, AttentionKind.WORKFLOW}
"""One is raised by a sweep, whose row is in the timeline, the other by a workflow."""
RAISING_EVENTS = {
    "session.permission.requested",
    "session.permission.expired",
    "session.prompt.held",
    "session.prompt.overdue",
    "session.run.stalled",
    "session.run.cancel_ignored",
    "session.run.interrupted",
    "session.receipt",
}


def test_every_kind_has_a_notice_a_label_and_a_priority() -> None:
    kinds = set(AttentionKind)
    assert set(NOTICES) == set(ATTENTION_KIND_LABELS) == set(PRIORITY) == kinds


@pytest.mark.parametrize("kind", AttentionKind)
def test_notice_says_what_happened_why_and_what_to_do(kind: AttentionKind) -> None:
    notice = NOTICES[kind]
    assert notice.what[0].isupper() and not notice.what.endswith(".")
    assert notice.why and notice.next_step.endswith(".")
    assert notice.key.startswith(kind) or kind is AttentionKind.WORKFLOW


@pytest.mark.parametrize("kind", AttentionKind)
def test_operate_document_has_a_row_for_each_kind(kind: AttentionKind) -> None:
    assert re.search(rf"^\| `{kind}` \| \S.+ \| \S.+ \|$", text_of("operate.md"), re.MULTILINE)


@pytest.mark.parametrize("kind", AttentionKind)
def test_timeline_says_why_each_item_was_raised(kind: AttentionKind) -> None:
    if kind in NOT_IN_TIMELINE:
        assert kind not in TIMELINE_EVENTS
        return
    event = TIMELINE_EVENTS[kind]
    assert event in STORY_EVENTS
    assert event in _EVENT_LABELS or event == "session.receipt"


def test_events_that_raise_items_are_audited_and_have_rules() -> None:
    assert set(_RULES) >= RAISING_EVENTS
    assert "session.attention" in AUDITED_EVENTS
    assert RAISING_EVENTS - {"session.permission.requested"} <= AUDITED_EVENTS
