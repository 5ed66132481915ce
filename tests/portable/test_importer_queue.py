"""An import restores the texts and the order of the prompts that were queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.prompts.models import QUEUE_ORDER
from tests.portable.records import delete_sessions, export, run_import
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def session() -> TaskSession:
    """Return a session with two queued prompts, of which the second was moved to the front and edited."""
    session = running_session()
    for message_id in ("one", "two"):
        prompts.queue_prompt(session.id, message_id, f"do {message_id}", make_user())
    prompts.move_by(session.id, "two", -1, make_user())
    prompts.edit_prompt(session.id, "two", "do two well", make_user(), version=1)
    return session


def rewrite_snapshot(session: TaskSession, folder: Path, **values: Any) -> None:
    """Give the second prompt of the snapshot other values, as if the snapshot were older than the log."""
    [path] = folder.glob(f"{session.id}*.json")
    snapshot = json.loads(path.read_text())
    next(each for each in snapshot["prompts"] if each["message_id"] == "two").update(values)
    path.write_text(json.dumps(snapshot))


def imported(session: TaskSession) -> list[tuple[str, str, int]]:
    rows = Prompt.objects.filter(session_id=session.id, state="held").order_by(*QUEUE_ORDER)
    return [(row.message_id, row.text, row.text_version) for row in rows]


def test_order_and_texts_are_restored(session: TaskSession, folder: Path) -> None:
    export(session, folder)
    delete_sessions()
    assert run_import(folder) == 0
    assert imported(session) == [("two", "do two well", 2), ("one", "do one", 1)]


@pytest.mark.parametrize("values", [{}, {"text": "do two", "version": 1, "edited_by": ""}])
def test_editor_is_restored(session: TaskSession, folder: Path, values: dict[str, Any]) -> None:
    export(session, folder)
    rewrite_snapshot(session, folder, **values)
    delete_sessions()
    assert run_import(folder) == 0
    assert Prompt.objects.get(message_id="two").edited_by == "ada"


def test_repeated_request_names_an_edited_prompt_after_an_import(session: TaskSession, folder: Path) -> None:
    export(session, folder)
    delete_sessions()
    assert run_import(folder) == 0
    Prompt.objects.update(state="done")
    row, is_new = prompts.queue_prompt(session.id, "two", "do two", make_user())
    assert (row.text, is_new) == ("do two well", False)


def test_edit_that_only_the_log_has_is_restored_from_it(session: TaskSession, folder: Path) -> None:
    export(session, folder)
    rewrite_snapshot(session, folder, text="do two", version=1)
    delete_sessions()
    assert run_import(folder) == 0
    assert imported(session)[0] == ("two", "do two well", 2)


def test_lost_part_of_an_edit_is_reported(
    session: TaskSession, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts.edit_prompt(session.id, "two", "x" * 5000, make_user(), version=2)
    export(session, folder)
    rewrite_snapshot(session, folder, text="do two", version=1)
    delete_sessions()
    run_import(folder)
    assert imported(session)[0][1] == "do two"
    assert "the record lacks its last edit" in capsys.readouterr().out


@pytest.mark.parametrize("values", [{"version": 1 << 40}, {"version": "2"}, {"place": -1}, {"place": None}])
def test_strange_values_are_imported_as_if_they_were_missing(
    session: TaskSession, folder: Path, values: dict[str, Any]
) -> None:
    export(session, folder)
    rewrite_snapshot(session, folder, **values)
    delete_sessions()
    assert run_import(folder) == 0
    assert {text for _, text, _ in imported(session)} == {"do two well", "do one"}
