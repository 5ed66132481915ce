"""*Mark as done* says what is not merged before it is done, and asks only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from sessions_app.finish import unfinished
from sessions_app.finish.execution import carry_out
from sessions_app.finish.services import Uncommitted
from sessions_app.models import Task
from tests.executors.repositories import run_git
from tests.finish.repositories import MAIN, Mergeable, mergeable
from tests.supervisor.rows import make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def merged(tmp_path: Path) -> Mergeable:
    return mergeable(tmp_path / "team")


@pytest.fixture
def ada() -> Client:
    client = Client()
    client.force_login(make_user())
    return client


def set_uncommitted(monkeypatch: pytest.MonkeyPatch, found: Uncommitted) -> None:
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: found)


def mark(ada: Client, task: Task, **form: str) -> str:
    """Press the button; return the page, empty if the task is done."""
    answer = ada.post(f"/tasks/{task.id}/done/", form)
    if answer.status_code == 302:
        assert Task.objects.get(id=task.id).state == "DONE"
        return ""
    assert Task.objects.get(id=task.id).state != "DONE"
    return answer.content.decode()


def test_unmerged_and_uncommitted_work_is_named_and_can_be_left(
    merged: Mergeable, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_uncommitted(monkeypatch, Uncommitted(("src/a.py",), "f" * 40))
    text = mark(ada, merged.session.task)
    assert "2 commits are not in <code>main</code>." in text
    assert "src/a.py" in text
    assert mark(ada, merged.session.task, confirmed="1") == ""


def test_squashed_branch_needs_no_confirmation(merged: Mergeable, ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    set_uncommitted(monkeypatch, Uncommitted((), "f" * 40))
    carry_out(merged.request(strategy="squash").id)
    assert mark(ada, merged.session.task) == ""


def test_squash_that_was_taken_out_of_the_base_again_is_not_merged(
    merged: Mergeable, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_uncommitted(monkeypatch, Uncommitted((), "f" * 40))
    before = merged.at()
    carry_out(merged.request(strategy="squash").id)
    run_git(merged.path, "update-ref", MAIN, before)
    assert "2 commits are not in <code>main</code>." in mark(ada, merged.session.task)


def test_branch_without_commits_needs_no_confirmation(
    merged: Mergeable, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_uncommitted(monkeypatch, Uncommitted((), "f" * 40))
    run_git(merged.path, "update-ref", f"refs/heads/{merged.branch}", f"{MAIN}~1")
    assert mark(ada, merged.session.task) == ""


def test_unknown_is_said_as_unknown(merged: Mergeable, ada: Client, tmp_path: Path) -> None:
    merged.path.rename(tmp_path / "elsewhere")
    text = mark(ada, merged.session.task)
    assert "It is not known whether all commits of the branch are merged." in text
    assert "It is not known whether there are uncommitted changes." in text


def test_session_that_never_started_leaves_nothing(ada: Client) -> None:
    assert mark(ada, make_session().task) == ""
