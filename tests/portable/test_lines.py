"""Every event survives its conversion to a line of the portable record; foreign lines are understood."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.kernel.rules.log_event import MESSAGE_ADDED, LogEvent
from sessions_app.portable.rules.lines import BadLine, event_to_line, line_to_event

AT = datetime(2026, 2, 21, 10, 1, 10, 250_001, UTC)
FRAME = ("seq", "ts", "kind", "name", "once", "more", "content", "role", "text", "payload", "message_id")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
payloads = st.dictionaries(st.sampled_from(FRAME) | st.text(), values, max_size=6)
names = st.sampled_from(
    [
        MESSAGE_ADDED,
        "session.message.user",
        "session.status_derived",
        "session.status.derived",
        "session.run.waiting",
        "other",
    ]
) | st.text("abc._", min_size=1, max_size=20)
roles = st.sampled_from(["user", "agent", "tool", "assistant", "added", "", None, 3])


@given(names, payloads, roles, st.none() | st.text(min_size=1, max_size=20), st.datetimes(timezones=st.just(UTC)))
def test_every_event_survives_the_round_trip(
    name: str, payload: dict[str, Any], role: Any, once: str | None, at: datetime
) -> None:
    if name == MESSAGE_ADDED:
        payload = {**payload, "role": role, "text": "said"}
    event = LogEvent(7, at, name, payload, once)
    assert line_to_event(json.loads(json.dumps(event_to_line(event)))) == event


def test_line_conforms_to_the_format() -> None:
    event = LogEvent(145, AT, MESSAGE_ADDED, {"message_id": "m", "role": "user", "text": "run tests", "complete": True})
    assert event_to_line(event) == {
        "seq": 145,
        "ts": "2026-02-21T10:01:10.250001Z",
        "kind": "message.user",
        "message_id": "m",
        "content": "run tests",
        "complete": True,
    }
    queued = LogEvent(1, AT, "session.prompt.queued", {"message_id": "m", "kind": "user"})
    assert event_to_line(queued)["more"] == {"kind": "user"}
    assert event_to_line(LogEvent(1, AT, "session.status_derived", {"status": "idle"}))["kind"] == "status.derived"


@pytest.mark.parametrize(
    ("line", "role", "text"),
    [
        ({"kind": "message.assistant", "content": "done"}, "agent", "done"),
        ({"kind": "message.system"}, "status", ""),
        ({"kind": "message.user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "user", "a"),
    ],
)
def test_foreign_messages_are_understood(line: dict[str, Any], role: str, text: str) -> None:
    event = line_to_event({"seq": 1, "ts": "2026-02-21T10:01:10", **line})
    assert (event.name, event.payload["role"], event.payload["text"]) == (MESSAGE_ADDED, role, text)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ([], "not an object"),
        ({"seq": None}, "no seq"),
        ({"seq": True}, "no seq"),
        ({"seq": 0}, "no seq"),
        ({"seq": -3}, "no seq"),
        ({"seq": 2**53}, "no seq"),
        ({"seq": 1.0}, "no seq"),
        ({"seq": "1"}, "no seq"),
        ({"kind": 7}, "no kind"),
        ({"kind": "../../etc/passwd"}, "no kind"),
        ({"kind": "Run Started"}, "no kind"),
        ({"kind": "x" * 80}, "no kind"),
        ({"more": "text"}, "no kind"),
        ({"ts": None}, "no time"),
        ({"ts": "yesterday"}, "no time"),
        ({"ts": 1.5}, "no time"),
        ({"ts": "0001-01-01T00:00:00+14:00"}, "no time"),
        ({"content": 7}, "no text"),
    ],
)
def test_invalid_line_is_refused_with_a_reason(line: Any, why: str) -> None:
    whole = {"seq": 1, "ts": "2026-02-21T10:01:10Z", "kind": "message.user"}
    with pytest.raises(BadLine, match=why):
        line_to_event({**whole, **line} if isinstance(line, dict) else line)
