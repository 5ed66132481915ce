"""The board, the page of a task, and their forms."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from executors_app.machine.git.repository_git import resolve_commit
from executors_app.models import AgentProfile, Executor
from sessions_app.board.rules.ages import age_text
from sessions_app.board.services import board
from sessions_app.board.services.tasks import create_session
from sessions_app.catalogue.services.repositories import scratch_root
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.review.services import note_counts
from tests.pages.world import World, first_prompt, path_of


def new_task(world: World, **values: Any) -> dict[str, Any]:
    return {
        "title": "Mend it",
        "description": "Please\r\nmend it.",
        "repository": world.repository.id,
        "agent_profile": world.profile.id,
        "executor": world.executor.id,
        **values,
    }


def test_new_task_starts_with_its_description_as_first_prompt(ada: Client, world: World) -> None:
    answer = ada.post("/", new_task(world))

    session = TaskSession.objects.get()
    assert answer.headers["Location"] == path_of(session)
    assert (session.task.title, session.task.team, session.owner) == ("Mend it", world.team, world.ada)
    assert first_prompt(session).text == "Please\nmend it."
    assert session.intents.get().kind == "start"


def test_task_can_be_created_without_a_session(ada: Client, world: World) -> None:
    answer = ada.post("/", new_task(world, only="1"))
    assert answer.headers["Location"] == f"/tasks/{Task.objects.get().id}/"
    assert not TaskSession.objects.exists()


def another_teams_repository(world: World) -> dict[str, Any]:
    team = Group.objects.get(name="Bob's team")
    return {"repository": Repository.objects.create(name="theirs", team=team, path="/srv/theirs").id}


def another_teams_profile(world: World) -> dict[str, Any]:
    team = Group.objects.get(name="Bob's team")
    return {"agent_profile": AgentProfile.objects.create(name="theirs", team=team, agent_type="demo").id}


def profile_of_users_other_team(world: World) -> dict[str, Any]:
    world.ada.groups.add(Group.objects.get(name="Bob's team"))
    return another_teams_profile(world)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda world: {"title": ""},
        lambda world: {"repository": "nonsense"},
        another_teams_repository,
        another_teams_profile,
        profile_of_users_other_team,
    ],
)
def test_invalid_task_form_keeps_input_and_creates_nothing(wrong: Any, ada: Client, world: World) -> None:
    answer = ada.post("/", new_task(world, **wrong(world)))
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.text
    assert "Please" in answer.text, "the typed text is still there"
    assert not Task.objects.exists()


def test_empty_board_offers_the_new_task_form(ada: Client, world: World) -> None:
    page = ada.get("/").text
    assert "There are no tasks yet." in page
    assert '<details class="card new" id="new-task" open>' in page


def test_repository_in_which_agents_are_tested_is_not_offered_for_tasks(ada: Client, world: World) -> None:
    Repository.objects.create(name="Agent tests", team=world.team, path=f"{scratch_root()}/one", default_branch="main")
    for page in ("/", "/workflows/new/"):
        html = ada.get(page).text
        assert f'value="{world.repository.id}"' in html
        assert "Agent tests" not in html
    world.repository.delete()
    assert "your team needs a repository" in ada.get("/").text


def test_team_without_repository_or_executor_is_told_what_is_missing(ada: Client, world: World) -> None:
    Repository.objects.all().delete()
    Executor.objects.all().delete()
    page = ada.get("/").text
    assert "your team needs a repository and an executor" in page
    assert "Ask an administrator" in page
    assert "New task" not in page


def test_tasks_are_grouped_by_state(ada: Client, world: World) -> None:
    world.task("Waiting")
    Task.objects.filter(id=world.task("Broken").id).update(state="FAILED")
    page = ada.get("/live/").json()["parts"]["board"]
    assert page.index("To do") < page.index("Waiting") < page.index("In progress") < page.index("Broken")
    assert "Cancelled" not in page, "a rare state is shown only if a task has it"


def test_board_query_count_does_not_grow_with_tasks(ada: Client, world: World) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            ada.get("/")
        return len(seen)

    world.session()
    with_one = queries()
    for _ in range(5):
        create_session(world.ada, world.session().task, world.profile, world.executor)
    assert queries() == with_one


def test_card_names_who_created_the_task_and_since_when_it_is_in_its_column(ada: Client, world: World) -> None:
    task = world.task()
    page = ada.get("/").text
    assert 'ada · <span class="unseen">in this column for </span><time datetime="' in page
    ada.post(f"/tasks/{task.id}/done/")
    Task.objects.filter(id=task.id).update(entered_at=F("entered_at") - timedelta(hours=3, minutes=5))
    assert " data-local>3 h</time>" in ada.get("/").text
    Task.objects.update(created_by=None, state="REVIEW")
    page = ada.get("/").text
    created = f'<span class="unseen">created </span><time datetime="{task.created_at:%Y-%m-%dT%H:%M}'
    assert created in page, "a release without the column has changed the state, so its age is not known"
    assert "ada · <span" not in page


def test_age_follows_each_change_of_the_state(ada: Client, world: World) -> None:
    session = world.resting_session()
    seen = []
    for action in ("", "done", "done", "reopen"):
        if action:
            ada.post(f"/tasks/{session.task_id}/{action}/")
        task = Task.objects.get(id=session.task_id)
        seen.append((task.state, task.in_state_since))
    assert [state for state, _ in seen] == ["REVIEW", "DONE", "DONE", "REVIEW"]
    moments = [moment for _, moment in seen]
    assert None not in moments
    assert moments[1] == moments[2], "it was done already"
    assert len(set(moments)) == 3


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "now"), (-5, "now"), (60, "1 min"), (3599, "59 min"), (7199, "1 h"), (172_800, "2 d")]
)
def test_age_in_words(seconds: int, text: str) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert age_text(now - timedelta(seconds=seconds), now) == text
    assert age_text(None, now) == ""


def test_card_shows_lines_of_the_branch_as_of_when_they_were_counted(ada: Client, world: World) -> None:
    session = world.resting_session()
    ended_at = session.runs.get().ended_at
    assert ended_at is not None
    base = {"base": {"commit": "a" * 40}, "additions": 12, "deletions": 3, "truncated": False}

    def shown(minutes: int, **found: Any) -> str:
        TaskSession.objects.update(branch_counted_at=None)
        note_counts(session, {**base, **found}, ended_at + timedelta(minutes=minutes))
        return ada.get("/").text

    assert 'class="counts"' not in ada.get("/").text
    assert "±?" in ada.get("/").text
    page = shown(1)
    assert "±?" not in page
    assert '<span class="plus">+12</span> <span class="minus">−3</span></a>' in page
    assert f'href="{path_of(session)}changes/"' in page
    assert '−3</span> <span class="meta">earlier</span>' in shown(-1)
    for unknown in (
        {"base": {"problem": "no_base"}},
        {"truncated": True},
        {"additions": -1},
        {"deletions": "3"},
        {"deletions": 2**31},
    ):
        assert 'class="counts"' not in shown(1, **unknown), unknown
    assert 'class="counts"' in shown(2)
    note_counts(session, {**base, "additions": 99}, ended_at + timedelta(minutes=1))
    assert "+99" not in ada.get("/").text, "an answer that arrives late is older than what is known"


def test_card_shows_the_newest_sessions_and_counts_the_others(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "SESSIONS_PER_TASK", 2)
    task = world.task()
    sessions = [create_session(world.ada, task, world.profile, world.executor) for _ in range(5)]
    for minute, session in enumerate(sessions):
        TaskSession.objects.filter(id=session.id).update(created_at=datetime(2026, 3, 1, 12, minute, tzinfo=UTC))
    other = world.session()
    page = ada.get("/live/").json()["parts"]["board"]
    shown = re.findall(r'name="session" value="([^"]+)"', page)
    assert shown == [str(session.id) for session in (other, sessions[4], sessions[3])]
    assert page.count("older session") == 1
    assert f'href="/tasks/{task.id}/">3 older sessions' in page


def test_another_session_can_be_started_on_a_task(ada: Client, world: World) -> None:
    task = world.session().task
    form = {"prompt": "Again", "agent_profile": world.profile.id, "executor": world.executor.id}
    answer = ada.post(f"/tasks/{task.id}/", form)
    made = task.sessions.latest("created_at")
    assert answer.headers["Location"] == path_of(made)
    assert first_prompt(made).text == "Again"


def test_new_task_offers_its_description_as_the_prompt(ada: Client, world: World) -> None:
    page = ada.get(f"/tasks/{world.task(description='Mend the brakes').id}/").text
    assert "Mend the brakes</textarea>" in page


ENDS = [
    ("done", "This task is done.", "Reopen task", "reopen"),
    ("cancel", "This task is cancelled.", "Reopen task", "reopen"),
    ("archive", "This task is archived.", "Unarchive task", "unarchive"),
]


@pytest.mark.parametrize(("change", "says", "button", "back"), ENDS)
def test_finished_task_refuses_new_sessions(
    change: str, says: str, button: str, back: str, ada: Client, world: World
) -> None:
    task = world.task()
    ada.post(f"/tasks/{task.id}/{change}/")
    page = ada.get(f"/tasks/{task.id}/").text
    assert says in page
    assert 'id="new-session"' not in page
    form = {"agent_profile": world.profile.id, "executor": world.executor.id}
    assert says in ada.post(f"/tasks/{task.id}/", form).text
    assert not task.sessions.exists()


@pytest.mark.parametrize(("change", "says", "button", "back"), ENDS)
def test_finished_task_can_be_reopened_from_its_page(
    change: str, says: str, button: str, back: str, ada: Client, world: World
) -> None:
    task = world.task()
    ada.post(f"/tasks/{task.id}/{change}/")
    assert f'formaction="/tasks/{task.id}/{back}/"' in ada.get(f"/tasks/{task.id}/").text
    ada.post(f"/tasks/{task.id}/{back}/")
    page = ada.get(f"/tasks/{task.id}/").text
    assert says not in page
    assert 'id="new-session"' in page


@pytest.mark.parametrize(("change", "says", "button", "back"), ENDS)
def test_session_of_a_finished_task_offers_one_way_to_reopen(
    change: str, says: str, button: str, back: str, ada: Client, world: World
) -> None:
    session = world.resting_session()
    ada.post(f"/tasks/{session.task_id}/{change}/")
    page = ada.get(path_of(session)).text
    banner = page[page.index('<div id="part-banner">') : page.index('<p id="refused"')]
    assert says in banner
    assert banner.count("<button") == 1
    assert f'formaction="/tasks/{session.task_id}/{back}/"' in banner
    assert f">{button}</button>" in banner
    assert "Create new session" not in page
    assert says in page[page.index('<p class="refusal">') :], "the composer shows the same reason"


def test_archived_filter_shows_only_archived_tasks(ada: Client, world: World) -> None:
    ada.post(f"/tasks/{world.task('Old thing').id}/archive/")
    world.task("New thing")
    page = ada.get("/?archived=1").text
    assert "Old thing" in page
    assert "New thing" not in page


def test_archived_task_leaves_the_board(ada: Client, world: World) -> None:
    task = world.task("Old thing")
    assert "Old thing" in ada.get("/").text
    ada.post(f"/tasks/{task.id}/archive/")
    assert "Old thing" not in ada.get("/").text


@pytest.mark.django_db
def test_demo_data_is_created_once(settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    for _ in range(2):
        call_command("create_demo", port=8765)

    user = User.objects.get()
    assert (user.username, user.is_staff, user.has_usable_password()) == ("demo", True, False)
    assert [group.name for group in user.groups.all()] == ["Demo team"]
    tasks = [(task.title, task.sessions.count()) for task in Task.objects.order_by("created_at")]
    assert tasks == [("Say hello", 0), ("Survive a restart", 0)]
    assert (AgentProfile.objects.count(), Executor.objects.count(), Repository.objects.count()) == (1, 1, 1)
    repository = Repository.objects.get()
    assert repository.default_base == repository.default_branch
    assert resolve_commit(tmp_path / "demo-repository", repository.default_base)
    links = [line.strip() for line in capsys.readouterr().out.splitlines() if "/login/" in line]
    assert len(set(links)) == 2
    client = Client()
    client.post(links[1].removeprefix("http://kandev.localhost:8765"))
    assert "Say hello" in client.get("/").text
