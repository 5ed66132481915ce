"""Lines that an agent may replay are searched for in a limited part of the conversation, read once for a batch."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.models import TaskSession
from sessions_app.stream import conversation as conversations
from sessions_app.stream.conversation import RECENT_MESSAGES
from sessions_app.stream.ingest.line_costs import TRANSACTION_BUDGET, line_cost
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import conversation, running_session

pytestmark = pytest.mark.django_db(transaction=True)


def replayed(journal: Journal, text: str) -> Line:
    [line] = journal.says(text)
    return {**line, "may_be_replayed": True}


def session_with_texts(*texts: str) -> tuple[TaskSession, Journal]:
    session, journal = running_session(), Journal()
    for number, text in enumerate(texts):
        turn = f"m{number}"
        ingest(session, [*journal.turn_begins(turn), *journal.says(text), journal.completes(turn)])
    return session, journal


def agent_texts(session: TaskSession) -> list[str]:
    return [text for role, text, *_ in conversation(session) if role == "agent"]


def test_conversation_is_read_once_for_all_replayed_lines_of_a_batch() -> None:
    session, journal = session_with_texts("first text", "second text")
    with CaptureQueriesContext(connection) as queries:
        ingest(session, [replayed(journal, text) for text in ("first text", "second text", "first text")])
    reading = [query for query in queries if f"LIMIT {RECENT_MESSAGES}" in query["sql"]]
    assert len(reading) == 1
    assert agent_texts(session) == ["first text", "second text"]


def test_new_text_is_stored_although_it_may_be_replayed() -> None:
    session, journal = session_with_texts("first text")
    ingest(session, [replayed(journal, "another text")])
    assert agent_texts(session) == ["first text", "another text"]


def test_only_the_newest_texts_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "RECENT_CHARS", 1_000)
    session, journal = session_with_texts("old text", "x" * 2_000, "new text")
    ingest(session, [replayed(journal, "new text")])
    assert agent_texts(session) == ["old text", "x" * 2_000, "new text"]
    ingest(session, [replayed(journal, "old text")])
    assert agent_texts(session)[-1] == "old text"
    assert len(agent_texts(session)) == 4


def test_line_that_is_searched_for_counts_for_its_time() -> None:
    assert TRANSACTION_BUDGET // line_cost(replayed(Journal(), "x")) <= 16
