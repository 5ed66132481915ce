"""The rows of turns that release 1.0.0 has written are filled from the conversation, the ledger and the log."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from sessions_app.kernel.rules.states import PromptKind
from sessions_app.models import Prompt, TaskSession, Turn
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db

migration = import_module("sessions_app.migrations.0007_fill_turns")
UNKNOWN: dict[str, Any] = dict.fromkeys(migration.FILLED)


def fill() -> None:
    migration.fill_turns(apps, SimpleNamespace(connection=connection))


def known(session: TaskSession) -> list[dict[str, Any]]:
    return list(session.runs.order_by("message_id").values("message_id", *migration.FILLED))


def queue(session: TaskSession, message_id: str, **values: Any) -> None:
    Prompt.objects.create(session=session, message_id=message_id, text="Do it", state="sending", **values)


def ended_turn(journal: Journal, message_id: str) -> list[dict[str, Any]]:
    return [*journal.turn_begins(message_id), *journal.says("done"), journal.completes(message_id)]


def test_ended_turns_get_what_their_rows_would_have_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "ROWS_AT_ONCE", 2)
    session, journal = running_session(), Journal()
    queue(session, "m1")
    queue(session, "m2", kind=PromptKind.RETRY)
    queue(session, "m3", kind=PromptKind.CONTINUE, by=make_user())
    for message_id in ("m1", "m2", "m3", "not in the ledger"):
        ingest(session, ended_turn(journal, message_id))
    session.runs.update(snapshot_before=None)  # known only of open turns
    before = known(session)
    assert None not in [turn["first_seq"] for turn in before]
    session.runs.update(**UNKNOWN)
    fill()
    assert known(session) == before


def test_open_turn_gets_the_snapshot_that_was_the_newest_when_it_began() -> None:
    session, journal = running_session(), Journal()
    queue(session, "m1")
    ingest(session, [journal.snapshot("a" * 40, "asked"), *journal.turn_begins("m1")])
    ingest(session, [journal.snapshot("b" * 40, "asked")])
    before = known(session)
    assert before[0]["snapshot_before"] == "a" * 40
    session.runs.update(**UNKNOWN)
    fill()
    assert known(session) == before


def test_open_turn_that_began_too_long_after_a_snapshot_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "SEARCHED_EVENTS", 2)
    session, journal = running_session(), Journal()
    ingest(session, [journal.snapshot("a" * 40, "asked"), *ended_turn(journal, "m1"), *journal.turn_begins("m2")])
    session.runs.update(**UNKNOWN)
    fill()
    assert session.runs.get(message_id="m2").snapshot_before is None


def test_turn_without_a_message_and_wait_stay_unknown() -> None:
    session, journal = running_session(), Journal()
    ingest(session, ended_turn(journal, "m1"))
    session.messages.filter(role="user").delete()
    session.runs.update(**UNKNOWN)
    wait = Turn.objects.create(session=session, message_id="w", has_process=False, started_at=session.created_at)
    fill()
    assert {turn["first_seq"] for turn in known(session)} == {None}
    assert Turn.objects.get(id=wait.id).origin is None


def test_filling_again_changes_nothing() -> None:
    session, journal = running_session(), Journal()
    ingest(session, ended_turn(journal, "m1"))
    before = known(session)
    fill()
    assert known(session) == before
