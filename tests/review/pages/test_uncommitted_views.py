"""Uncommitted changes are committed, unstaged and discarded with forms alone, after a page has shown what it means."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from tests.executors.repositories import run_git
from tests.pages.world import path_of
from tests.workspace.served import Place

pytestmark = pytest.mark.any_database


def get(client: Any, session: TaskSession, tail: str) -> str:
    answer = client.get(f"{path_of(session)}changes/{tail}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def post(client: Any, session: TaskSession, tail: str, **values: Any) -> str:
    answer = client.post(f"{path_of(session)}changes/{tail}", values, follow=True)
    assert answer.status_code == 200
    return str(answer.content.decode())


def field(html: str, name: str) -> list[str]:
    return [unescape(value) for value in re.findall(rf'name="{name}" value="([^"]*)"', html)]


def test_selected_files_are_committed_as_they_were_shown(ada: Any, session: TaskSession, place: Place) -> None:
    root = place.workspace
    (root / "<b>\u202e").write_text("new\n")
    html = get(ada, session, "commit/")
    values = field(html, "file")
    assert [unquote(value.split(" ", 2)[2]) for value in values] == ["script", "<b>\u202e", "picture"]
    assert "&lt;b&gt;⟦RLO⟧" in html
    assert "Select at least one file." in post(ada, session, "commit/", message="x")
    assert "Enter a message." in post(ada, session, "commit/", message=" ", file=values)
    (root / "picture").write_bytes(b"written meanwhile")
    html = post(ada, session, "commit/", message="Keep <this>", file=values)
    assert "picture (changed)" in html
    assert "Keep &lt;this&gt;" in html
    assert html.count(" checked") == 2
    html = post(ada, session, "commit/", message="Keep <this>", file=values[:2])
    assert "Keep &lt;this&gt;" in html
    assert "3 files changed since main" not in html
    assert run_git(root, "status", "--porcelain") == "?? picture"
    assert ada.post(f"{path_of(session)}changes/commit/", {"message": "x", "file": "all x y"}).status_code == 404


def test_changes_are_unstaged_and_discarded_after_a_page_has_shown_them(
    ada: Any, bob: Any, session: TaskSession, place: Place
) -> None:
    root = place.workspace
    (root / "code.py").write_text("seen <b>\n")
    run_git(root, "add", "code.py")
    html = get(ada, session, "commit/")
    links = [unescape(link) for link in re.findall(r'class="undo" href="[^"?]*(\?[^"]*)"', html)]
    assert links[0] == "?path=code.py&action=unstage"
    html = get(ada, session, f"undo/{links[0]}")
    assert "The file itself stays as it is." in html
    assert "+seen &lt;b&gt;" in html
    about = {"path": "code.py", "action": "unstage", "version": field(html, "version")[0]}
    assert bob.post(f"{path_of(session)}changes/undo/", about).status_code == 404
    assert "Unstaged code.py." in post(ada, session, "undo/", **about)

    html = get(ada, session, "undo/?path=code.py&action=discard")
    assert "These changes are lost." in html
    about = {"path": "code.py", "action": "discard", "version": field(html, "version")[0]}
    (root / "code.py").write_text("written meanwhile\n")
    html = post(ada, session, "undo/", **about)
    assert "the file has changed since it was shown" in html
    assert "+written meanwhile" in html
    assert (root / "code.py").read_text() == "written meanwhile\n"
    about["version"] = field(html, "version")[0]
    assert "Discarded the changes of code.py." in post(ada, session, "undo/", **about)
    assert "has no changes" in get(ada, session, "undo/?path=code.py&action=discard")
    for query in ("?path=code.py&action=delete", "?action=discard"):
        assert ada.get(f"{path_of(session)}changes/undo/{query}").status_code == 404


@pytest.mark.parametrize("name", ["a\rb", "a\nb", "a\r\nb %41", "-x ü +"])
def test_name_of_a_file_comes_back_as_it_is_from_a_form(
    ada: Any, session: TaskSession, place: Place, name: str
) -> None:
    root = place.workspace
    run_git(root, "stash", "--include-untracked")
    (root / name).write_text("new\n")
    values = field(get(ada, session, "commit/"), "file")
    assert not re.search(r"[\r\n]", "".join(values)), "a browser would send other line ends"
    assert "Committed as" in post(ada, session, "commit/", message="New", file=values)
    assert run_git(root, "status", "--porcelain") == ""

    (root / name).write_text("changed\n")
    [link] = re.findall(r'class="undo" href="[^"?]*(\?[^"]*)"', get(ada, session, "commit/"))
    html = get(ada, session, f"undo/{unescape(link)}")
    about = {key: field(html, key)[0] for key in ("path", "action", "version")}
    assert not re.search(r"[\r\n]", about["path"])
    assert "Discarded the changes of" in post(ada, session, "undo/", **about)
    assert (root / name).read_text() == "new\n"


def test_pages_say_what_prevents_a_commit(ada: Any, session: TaskSession, place: Place) -> None:
    root = place.workspace
    run_git(root, "stash", "--include-untracked")
    assert "No uncommitted changes." in get(ada, session, "commit/")
    run_git(root, "switch", "--quiet", "main")
    (root / "code.py").write_text("theirs\n")
    run_git(root, "commit", "--quiet", "--all", "-m", "Theirs")
    run_git(root, "switch", "--quiet", "work")
    with pytest.raises(Exception, match="merge"):
        run_git(root, "merge", "main")
    html = get(ada, session, "commit/")
    assert "1 file in conflict." in html
    assert "<textarea" not in html
    run_git(root, "add", "code.py")
    html = get(ada, session, "commit/")
    assert "git is in the middle of a merge." in html
    assert "<textarea" not in html
    ExecutorRunning.objects.update(agentctl_url="")
    assert 'role="alert"' in get(ada, session, "commit/")
    assert 'role="alert"' in get(ada, session, "undo/?path=x&action=discard")
