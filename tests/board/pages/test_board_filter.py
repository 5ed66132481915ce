"""The filter of the board, the chips of its sessions, and its number of queries."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from sessions_app.board.services import board
from sessions_app.board.services.tasks import create_session
from sessions_app.board.views import board as views
from sessions_app.models import Supervisor, Task, TaskSession
from tests.pages.world import World, asks, first_prompt, ingest_lines, make_sweep, path_of


@pytest.fixture
def four_tasks(world: World) -> World:
    """Return four tasks: a colleague's, one with another agent, one that asks, one of another team in review."""
    mate = User.objects.create_user("mate")
    mate.groups.add(world.team)
    world.task("Paint the bridge", description="green, please")
    Task.objects.filter(title="Paint the bridge").update(created_by=mate)
    other = AgentProfile.objects.create(name="Otter", agent_type="demo")
    session = create_session(mate, world.task("Count the fish"), other, world.executor)
    TaskSession.objects.filter(id=session.id).update(worktree_branch="kandev/fish-7")
    ingest_lines(world.running_session(), asks())
    second = Group.objects.create(name="Second team")
    world.ada.groups.add(second)
    Task.objects.create(title="Write the review", team=second, state="REVIEW", created_by=mate)
    return world


TITLES = ("Paint the bridge", "Count the fish", "Fix the tests", "Write the review")
QUERIES: dict[str, tuple[Callable[[], str], set[str]]] = {
    "words of the title": (lambda: "q=BRIDGE", {"Paint the bridge"}),
    "words of the description": (lambda: "q=green", {"Paint the bridge"}),
    "the agent's name": (lambda: "q=otter", {"Count the fish"}),
    "a branch": (lambda: "q=fish-7", {"Count the fish"}),
    "words found nowhere": (lambda: "q=%25", set()),
    "a team": (lambda: f"team={Group.objects.get(name='Second team').id}", {"Write the review"}),
    "an agent": (lambda: f"agent={AgentProfile.objects.get(name='Otter').id}", {"Count the fish"}),
    "a state": (lambda: "state=REVIEW", {"Write the review"}),
    "own sessions": (lambda: "mine=1", {"Count the fish", "Fix the tests"}),
    "needs attention": (lambda: "needs=1", {"Fix the tests"}),
    "two filters": (lambda: "mine=1&q=fish", {"Count the fish"}),
    "an invalid filter": (lambda: "team=x&agent=y&state=z", set(TITLES)),
    "another team's": (lambda: f"team={Group.objects.get(name=BOBS).id}", set()),
}
BOBS = "Bob's team"


@pytest.mark.parametrize("looked_for", QUERIES)
def test_board_shows_only_tasks_that_match_the_filter(looked_for: str, ada: Client, four_tasks: World) -> None:
    query, wanted = QUERIES[looked_for]
    page, live = ada.get(f"/?{query()}").text, ada.get(f"/live/?{query()}").json()["parts"]["board"]
    for shown in (page, live):
        assert {title for title in TITLES if f">{title}</a>" in shown} == wanted
    assert ("No task matches." in page) is (not wanted)


def test_filter_is_kept_in_the_form_and_live_address(ada: Client, four_tasks: World) -> None:
    page = ada.get('/?q="><script>&needs=1').text
    assert 'value="&quot;&gt;&lt;script&gt;"' in page
    assert 'data-live="/live/?q=%22%3E%3Cscript%3E&amp;needs=1"' in page
    assert "<script>" not in page.split("</head>")[1]


def asking(world: World) -> TaskSession:
    session = world.running_session()
    ingest_lines(session, asks())
    return session


def with_held_prompt(world: World) -> TaskSession:
    session = world.resting_session()
    session.prompts.create(message_id="held", text="x", state="held")
    return session


def done(world: World) -> TaskSession:
    session = world.resting_session()
    TaskSession.objects.filter(id=session.id).update(work_state="done")
    return session


def interrupted(world: World) -> TaskSession:
    session = world.running_session()
    TaskSession.objects.filter(id=session.id).update(launch_id="")
    return session


def not_started(world: World) -> TaskSession:
    session = world.session(prompt="")
    session.intents.all().delete()
    return session


def asleep(world: World) -> TaskSession:
    return world.resting_session(status_reason="idle")


def waiting_to_start(world: World) -> TaskSession:
    session = world.resting_session()
    TaskSession.objects.filter(id=session.id).update(start_rank=3)
    return session


def retrying(world: World) -> TaskSession:
    session = world.running_session()
    line = {"kind": "turn.failed", "code": "agent_error", "message": "API Error: 529 overloaded_error"}
    ingest_lines(session, {**line, "message_id": first_prompt(session).message_id})
    return session


def failed_turn(world: World) -> TaskSession:
    session = world.running_session()
    line = {"kind": "turn.failed", "code": "agent_error", "message": "API Error: 401 invalid x-api-key"}
    ingest_lines(session, {**line, "message_id": first_prompt(session).message_id})
    return session


CHIPS: dict[str, tuple[Callable[[World], TaskSession], list[str], list[str]]] = {
    "at work": (lambda world: world.running_session(), ["Working"], ["Running", "Idle"]),
    "at rest": (lambda world: world.resting_session(), ["Your turn"], ["Idle", "Work ended"]),
    "asking": (asking, ["Asks for permission"], ["Working", "Waiting"]),
    "in doubt": (with_held_prompt, ["Prompt in doubt"], []),
    "cut short": (interrupted, ["Interrupted"], []),
    "done": (done, ["Your turn", "Work ended"], ["Idle"]),
    "starting": (lambda world: world.session(), ["Starting"], ["Not started", "Idle", "Work ended"]),
    "not started": (not_started, ["Not started"], ["Starting", "Idle", "Work ended"]),
    "asleep": (asleep, ["Asleep"], ["Your turn"]),
    "waiting to start": (waiting_to_start, ["Waiting to start"], ["Your turn"]),
    "retrying": (retrying, ["Retrying"], ["Your turn"]),
    "failed turn": (failed_turn, ["Turn failed"], ["Your turn"]),
}


@pytest.mark.parametrize("how", CHIPS)
def test_session_chips_show_its_state_and_nothing_contradictory(how: str, ada: Client, world: World) -> None:
    make, chip, unsaid = CHIPS[how]
    session = make(world)
    page = ada.get("/").text
    chips = page.split(f'href="{path_of(session)}"')[1].split("</li>")[0]
    for words in chip:
        assert f">{words}</span>" in chips
    for words in unsaid:
        assert f">{words}</span>" not in chips


def test_board_shows_reconnecting_until_the_first_sweep(ada: Client, world: World) -> None:
    world.running_session()
    Supervisor.objects.update(swept_at=None)
    assert "Reconnecting" in ada.get("/").text


def ask_count(client: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as seen:
        client.get(path)
    return len(seen)


def test_board_query_count_is_constant_up_to_500_tasks(ada: Client, world: World) -> None:
    rows = [Task(title=f"Task {n}", team=world.team, repository=world.repository) for n in range(490)]
    sessions = [world.running_session() for _ in range(2)]
    ingest_lines(sessions[0], asks())
    make_sweep(sessions[0], loaded=1)
    for _ in range(8):
        world.task()
    few = [ask_count(ada, path) for path in ("/", "/?needs=1&q=a&mine=1", "/live/")]
    made = Task.objects.bulk_create(rows)
    TaskSession.objects.bulk_create(
        TaskSession(task=task, agent_profile=world.profile, executor=world.executor) for task in made for _ in range(2)
    )
    assert [ask_count(ada, path) for path in ("/", "/?needs=1&q=a&mine=1", "/live/")] == few
    assert [ask_count(ada, path) for path in ("/?TODO=50", "/live/?TODO=500")] == [few[0], few[2]]


def test_column_shows_its_newest_tasks_and_offers_more(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "TASKS_PER_COLUMN", 2)
    monkeypatch.setattr(board, "TASKS_PER_COLUMN", 2)
    monkeypatch.setattr(views, "MAX_TASKS_PER_COLUMN", 5)
    Task.objects.bulk_create(Task(title=f"Task {n}", team=world.team) for n in range(6))
    Task.objects.bulk_create(Task(title=f"Looked at {n}", team=world.team, state="REVIEW") for n in range(3))
    seen = []
    for path in ("/?q=a", "/?q=a&TODO=4", "/?q=a&TODO=4&REVIEW=4", "/?TODO=99", "/?TODO=1", "/?TODO=x"):
        page = ada.get(path).text
        links = re.findall(r'class="show-more" href="([^"]+)"', page)
        seen.append((page.count('class="card task"'), [html.unescape(link) for link in links]))
    assert seen == [
        (4, ["/?q=a&TODO=4", "/?q=a&REVIEW=4"]),
        (6, ["/?q=a&TODO=5", "/?q=a&TODO=4&REVIEW=4"]),
        (7, ["/?q=a&TODO=5&REVIEW=4"]),
        (7, ["/?TODO=5&REVIEW=4"]),
        (4, ["/?TODO=4", "/?REVIEW=4"]),
        (4, ["/?TODO=4", "/?REVIEW=4"]),
    ]
    assert "Showing the newest 5 of 6 tasks." in ada.get("/?TODO=5").text
    assert ada.get("/live/?TODO=4").text.count("card task") == 6


def test_restart_summary_shows_sweep_results_and_sessions_needing_attention(
    ada: Client, bob: Client, world: World
) -> None:
    needy, calm = asking(world), world.resting_session()
    sweep = make_sweep(needy)
    sweep.rows.create(session=calm, observed="alive", rule="alive_same_agent", agent_action="reattach")
    page = ada.get("/").text.split("Since the last restart")[1].split("</section>")[0]
    assert f'href="/sweeps/{sweep.id}/?came=reattached">1 reattached' in page
    assert f'href="/sweeps/{sweep.id}/?came=loaded">1 loaded' in page
    assert "1 needs you" in page
    assert path_of(needy) in page
    assert path_of(calm) not in page
    assert "Since the last restart" not in bob.get("/").text


def test_restart_summary_counts_starts_still_in_progress(ada: Client, world: World) -> None:
    make_sweep(world.resting_session()).rows.update(receipt_kind="")
    assert "1 still starting" in ada.get("/").text


def test_forms_preselect_the_last_used_profile_and_executor(ada: Client, world: World) -> None:
    place = Executor.objects.create(name="Another place", runtime="local_standalone")
    profile = AgentProfile.objects.create(name="Zed", agent_type="demo")
    create_session(world.ada, world.task(), profile, place)
    for page in (ada.get("/").text, ada.get(f"/tasks/{world.task().id}/").text):
        for row in (place, profile):
            assert f'<option value="{row.id}" selected>' in page


def test_one_click_start_uses_the_task_description(ada: Client, world: World) -> None:
    task = world.task("Quick", description="Do it.")
    assert f'formaction="/tasks/{task.id}/start/"' in ada.get("/").text
    answer = ada.post(f"/tasks/{task.id}/start/")
    session = task.sessions.get()
    assert answer.headers["Location"] == path_of(session)
    assert (first_prompt(session).text, session.agent_profile, session.owner) == ("Do it.", world.profile, world.ada)
    assert f'formaction="/tasks/{task.id}/start/"' not in ada.get("/").text, (
        "a second session is started on the task's page"
    )


def test_start_without_an_agent_profile_says_what_is_missing(ada: Client, world: World) -> None:
    task = world.task()
    AgentProfile.objects.all().delete()
    answer: Any = ada.post(f"/tasks/{task.id}/start/", follow=True)
    assert "There is no agent profile or no executor yet." in answer.text
    assert not task.sessions.exists()
    assert timezone.now() >= task.created_at


def test_card_is_as_its_rows_are_however_often_it_was_shown(ada: Client, world: World) -> None:
    session = world.running_session()
    before = ada.get("/").content.decode()
    AgentProfile.objects.filter(id=session.agent_profile_id).update(name="Otter <b>")
    Task.objects.filter(id=session.task_id).update(title="Fix the <i>tests</i>")
    after = ada.get("/").content.decode()
    card = after.partition('<li class="card task"')[2].partition("</li>")[0]
    assert "Otter" not in before
    assert ("Otter &lt;b&gt;" in card, "Fix the &lt;i&gt;tests&lt;/i&gt;" in card) == (True, True)


def test_form_for_a_new_task_reads_each_choice_once(ada: Client, world: World) -> None:
    with CaptureQueriesContext(connection) as queries:
        ada.get("/")
    statements = [query["sql"] for query in queries]
    assert len(statements) == len(set(statements))
