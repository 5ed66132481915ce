"""The page of a branch's changes, which needs no JavaScript."""

from __future__ import annotations

import re
from typing import Any

import pytest

from executors_app.models import ExecutorRunning
from executors_app.wire.errors import AgentctlOutdated
from sessions_app.models import TaskSession
from sessions_app.review import services
from sessions_app.review import views as review_views
from tests.executors.repositories import run_git
from tests.pages.world import World, path_of
from tests.workspace.served import Place

pytestmark = pytest.mark.any_database


def page_of(client: Any, session: TaskSession, query: str = "") -> str:
    answer = client.get(f"{path_of(session)}changes/{query}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_page_shows_the_whole_branch_with_its_lines(ada: Any, session: TaskSession) -> None:
    html = page_of(ada, session)
    for text in (
        "4 files changed since main: +1 −1",
        "The branch is 2 commits ahead of main.",
        "new name ← old name",
        "A binary file of 2 bytes: it has no lines to show.",
        "It can be executed now.",
        '<a href="#file-0"><span class="path">code.py</span></a>',
        "changed &lt;b&gt;⟦RLO⟧",
        'data-numbers="   51      " data-path="code.py" data-side="old" data-line="51"><span class="sign">-</span>',
        'data-numbers="   50    50" data-path="code.py" data-side="new" data-line="50"',
    ):
        assert text in html, text
    assert f"{path_of(session)}changes/" in ada.get(path_of(session)).content.decode()


def test_page_shows_parts_of_the_branch(ada: Any, session: TaskSession) -> None:
    html = page_of(ada, session)
    commits = re.findall(r'href="\?of=(commit:[0-9a-f]{40})">([^<]+)', html)
    assert [subject for _, subject in commits] == ["Rename", "Write code.py"]
    shown = page_of(ada, session, f"?of={commits[0][0]}")
    assert "1 file changed in commit" in shown
    assert "new name ← old name" in shown
    assert "2 files not committed" in page_of(ada, session, "?of=uncommitted")
    assert "This branch has no such commit." in page_of(ada, session, f"?of=commit:{'0' * 40}")
    for of in ("commit:x", "turn:00000000-0000-0000-0000-000000000000"):
        assert ada.get(f"{path_of(session)}changes/?of={of}").status_code == 404


def test_lines_are_shown_in_pages_of_files(ada: Any, session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review_views, "MAX_PATHS", 1)
    assert "line 50" in page_of(ada, session)
    second = page_of(ada, session, "?from=1")
    assert "line 50" not in second
    assert '"?of=branch&amp;from=0"' in second
    assert '<a href="?of=branch&amp;from=3"><span class="path">script</span></a>' in second
    assert '"?of=branch&amp;from=2"' in second
    assert "from=4" not in page_of(ada, session, "?from=3")
    assert "article" not in page_of(ada, session, "?from=99")
    assert ada.get(f"{path_of(session)}changes/?from=x").status_code == 404


def test_file_without_room_for_its_lines_says_so_and_leads_to_them(
    ada: Any, session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, hunks = services.read_open_or_saved(session, 0, 20, 3)
    hunks[1] |= {"hunks": [], "left_out": True}
    monkeypatch.setattr(review_views, "read_open_or_saved", lambda *requested: (found, hunks))
    html = page_of(ada, session)
    assert html.count("Its lines are not shown, because the page is too long already.") == 1
    assert '<a href="?of=branch&amp;from=1">Show them</a>' in html


def test_paths_that_are_too_long_for_one_request_are_shown_by_further_pages(
    ada: Any, session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_ADDRESS", len("code.py"))
    html = page_of(ada, session)
    assert 'data-line="51"' in html
    assert [f'"?of=branch&amp;from={number}">Show them' in html for number in range(4)] == [False, True, True, True]


def test_closed_workspace_shows_its_saved_state(ada: Any, world: World, session: TaskSession, place: Place) -> None:
    world.repository.path = str(place.workspace)
    world.repository.save()
    session.worktree_branch = "work"
    session.save(update_fields=["worktree_branch"])
    ExecutorRunning.objects.update(status="stopped")
    html = page_of(ada, session)
    assert "The workspace is not open. This is its last saved state" in html
    assert "2 files changed since main: +1 −1" in html


def test_what_cannot_be_shown_is_explained(
    ada: Any, session: TaskSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git(place.workspace, "switch", "--quiet", "--force", "--orphan", "alone")
    assert "This branch has no commit in common with main" in page_of(ada, session)

    ExecutorRunning.objects.update(status="stopped")
    assert "The session&#x27;s workspace is not open" in page_of(ada, session)

    def refuse(asked: TaskSession, call: Any) -> None:
        raise AgentctlOutdated("This needs a newer agentctl.")

    monkeypatch.setattr(services, "ask_agentctl", refuse)
    assert "This needs a newer agentctl." in page_of(ada, session)
