"""Every kind of journal line: what it costs to store it, and what the pages and the API then cost to show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from executors_app.agentctl_client.streams import parse_frame
from executors_app.wire.protocol import JournalKind
from sessions_app.models import TaskSession
from sessions_app.portable.snapshot import build_snapshot
from sessions_app.sessions.services.status import session_status
from tests.entrances.shapes import SIZES, many_fields, mixture, nested
from tests.growth import measure_growth
from tests.supervisor.histories import prepare_history
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import running_session
from tests.transaction_guard import of_the_test

pytestmark = pytest.mark.any_database  # only the processor time of our own processes is measured

SHOWN_SIZES = (4_000, 8_000, 16_000, 32_000, 64_000)
TEXT_FIELDS = (
    *("text", "title", "message", "reason", "code", "tool_call_id", "permission_id", "stop_reason", "status"),
    *("only_text", "sub_agent"),
)


def body_of(size: int) -> dict[str, Any]:
    """Return the body of a line: hostile texts in every field that a handler reads, values beside them."""
    text = mixture(size // 4)
    fields = dict.fromkeys(TEXT_FIELDS, text)
    call = {"title": text, "raw_input": {"text": text}, "content": nested(size // 8)}
    options = [{"option_id": f"o{number}", "name": text[:200]} for number in range(size // 1000)]
    entries = [{"content": text[:100], "priority": "high", "status": "pending"} for _ in range(size // 400)]
    more = {"message_id": "p1", "tool_call": call, "options": options, "entries": entries}
    return {
        **fields,
        **more,
        "usage": many_fields(size // 8),
        "commands": entries,
        "settings": nested(size // 8),
        "servers": entries,
    }


def open_turn() -> tuple[TaskSession, Journal]:
    """Return a running session whose turn has begun."""
    session, journal = running_session(), Journal()
    ingest(session, parse_frame(b"\n".join(map(encode, journal.turn_begins("p1")))))
    return session, journal


def encode(line: dict[str, Any]) -> bytes:
    """Return a line as it is in a journal."""
    return json.dumps(line).encode()


@pytest.mark.django_db
@pytest.mark.parametrize("kind", list(JournalKind))
def test_line_costs_at_most_in_proportion_to_its_size(kind: JournalKind) -> None:
    session, journal = open_turn()

    def store(data: bytes) -> None:
        with of_the_test():
            assert ingest(session, parse_frame(data)).seq == journal.seq + 1
            transaction.set_rollback(True)

    def next_line(size: int) -> bytes:
        continued = Journal(journal.epoch)
        continued.seq = journal.seq  # each line that is stored is undone
        return encode(continued.line(kind, **body_of(size)))

    measure_growth(store, next_line, sizes=SIZES).assert_bounded()


def says(journal: Journal, text: str) -> list[dict[str, Any]]:
    """Return one message of the agent."""
    return journal.says(text)


def calls_tool(journal: Journal, text: str) -> list[dict[str, Any]]:
    """Return a tool call with a title, arguments, output and small changes."""
    lines = text.split("\n")[:2_000] or [text]
    diffs = [
        {"type": "diff", "path": f"/file-{number}", "old_text": line, "new_text": f"{line}."}
        for number, line in enumerate(lines)
    ]
    content = [{"type": "content", "content": {"type": "text", "text": text}}, *diffs]
    return [journal.tool("t1", title=text[:500], raw_input={"text": text}, content=content, status="completed")]


def changes_a_file(journal: Journal, text: str) -> list[dict[str, Any]]:
    """Return a tool call with one large change."""
    diff = {"type": "diff", "path": "/file.c", "old_text": text, "new_text": text[::-1]}
    return [journal.tool("t1", title="Edit", content=[diff], status="completed")]


@pytest.mark.django_db
@pytest.mark.parametrize("say", [says, calls_tool, changes_a_file])
def test_showing_a_text_costs_at_most_in_proportion_to_its_size(
    say: Callable[[Journal, str], list[dict[str, Any]]],
) -> None:
    measure_growth(show, lambda size: stored(say, mixture(size)), sizes=SHOWN_SIZES).assert_bounded()


def stored(say: Callable[[Journal, str], list[dict[str, Any]]], text: str) -> tuple[TaskSession, Client]:
    """Return a session in whose last turn the agent has said a text, and a browser of a member."""
    session, journal = open_turn()
    lines = [*say(journal, text), journal.completes("p1")]
    ingest(session, parse_frame(b"\n".join(map(encode, lines))))
    user = User.objects.create(username=f"reader-{session.id.hex}")
    user.groups.add(session.task.team)
    browser = Client()
    browser.force_login(user)
    return session, browser


def show(given: tuple[TaskSession, Client]) -> None:
    """Read the session everywhere: pages, API, status, history for a new agent, and portable record."""
    session, browser = given
    at = f"/tasks/{session.task_id}/sessions/{session.id}/"
    for path in (
        at,
        f"{at}live/",
        f"{at}timeline/",
        f"/api/v1{at}messages/",
        f"/api/v1{at}events/",
        "/",
        "/attention/",
    ):
        assert browser.get(path).status_code == 200, path
    session_status(session, User.objects.latest("pk"))
    prepare_history(session)
    build_snapshot(session.id, "boot")
