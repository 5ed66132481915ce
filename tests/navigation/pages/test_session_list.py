"""The list of sessions beside a conversation: its order, marks and limits, and whose it is."""

from __future__ import annotations

import re
import uuid

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.accounts.models import TeamRole
from sessions_app.board.services.tasks import create_session
from sessions_app.models import SessionMark, TaskSession
from tests.pages.world import World, asks, ingest_lines, path_of


def listed(client: Client, current: TaskSession | None = None) -> list[str]:
    """Return the list as a reader sees it: groups, and rows with what marks them."""
    answer = client.get("/sessions/list/", {"current": str(current.id) if current else ""})
    html = answer.json()["parts"]["session-list"]
    rows = re.findall(r'class="group"[^>]*>([^<]+)<|<a class="title"[^>]*>([^<]+)(<span class="unseen">)?', html)
    return [group or f"{title}{' *' if unread else ''}" for group, title, unread in rows]


def titled(world: World, title: str) -> TaskSession:
    session = create_session(world.ada, world.task(title), world.profile, world.executor, prompt="")
    session.intents.all().delete()
    return session


def say(session: TaskSession, text: str = "Hello.") -> None:
    session.refresh_from_db()
    ingest_lines(session, {"kind": "message.agent", "text": text})


def see(client: Client, session: TaskSession, seq: int | None = None) -> int:
    session.refresh_from_db()
    seq = session.last_seq if seq is None else seq
    return client.post(f"{path_of(session)}seen/", {"seq": str(seq)}).status_code


def test_pinned_sessions_come_first_then_those_that_need_a_person(ada: Client, world: World) -> None:
    asking = world.running_session()
    ingest_lines(asking, asks())
    old, _new = titled(world, "Old"), titled(world, "New")
    for session in TaskSession.objects.all():
        see(ada, session)
    assert listed(ada) == ["Needs you", "Fix the tests", "Sessions", "New", "Old"]
    ada.post(f"{path_of(old)}pin/", {"pinned": "1"})
    assert listed(ada) == ["Pinned", "Old", "Needs you", "Fix the tests", "Sessions", "New"]
    ada.post(f"{path_of(old)}pin/", {"pinned": "0"})
    assert listed(ada)[0] == "Needs you"


def test_new_messages_are_marked_until_a_page_has_shown_them(ada: Client, world: World) -> None:
    session = world.running_session()
    assert listed(ada) == ["Sessions", "Fix the tests *"], "never opened by its owner"
    assert see(ada, session) == 204
    assert listed(ada) == ["Sessions", "Fix the tests"]
    say(session)
    assert listed(ada) == ["Sessions", "Fix the tests *"]
    assert listed(ada, session) == ["Sessions", "Fix the tests"], "it is on the screen"
    assert see(ada, session, 1) == 204
    assert listed(ada) == ["Sessions", "Fix the tests *"], "what was seen earlier changes nothing"
    assert see(ada, session, 10**9) == 204
    say(session, "More.")
    assert listed(ada) == ["Sessions", "Fix the tests *"], "nobody has seen what was not said yet"


def test_marks_are_each_users_own_and_viewers_have_them_too(ada: Client, world: World) -> None:
    session = world.running_session()
    viewer = User.objects.create_user("vera")
    viewer.groups.add(world.team)
    TeamRole.objects.create(user=viewer, team=world.team, role=TeamRole.Role.VIEWER)
    vera = Client()
    vera.force_login(viewer)
    assert listed(vera) == ["Sessions", "Fix the tests"], "not hers, and never opened by her"
    assert see(vera, session, 1) == 204
    assert vera.post(f"{path_of(session)}pin/", {"pinned": "1"}).status_code == 302
    assert listed(vera) == ["Pinned", "Fix the tests *"]
    assert listed(ada) == ["Sessions", "Fix the tests *"]


def test_seeing_the_same_again_writes_nothing(ada: Client, world: World) -> None:
    session = world.running_session()
    see(ada, session)
    with CaptureQueriesContext(connection) as queries:
        see(ada, session)
    assert not [one["sql"] for one in queries if "session_user_marks" in one["sql"] and "SELECT" not in one["sql"]]
    assert SessionMark.objects.get().seen_seq == session.last_seq
    assert ada.post(f"{path_of(session)}seen/", {"seq": "many"}).status_code == 400


def test_other_teams_see_nothing_of_it(bob: Client, world: World) -> None:
    session = world.running_session()
    assert listed(bob, session) == []
    assert see(bob, session) == 404
    assert bob.post(f"{path_of(session)}pin/", {"pinned": "1"}).status_code == 404
    assert not SessionMark.objects.exists()


def test_number_of_queries_is_constant(ada: Client, world: World) -> None:
    session = world.running_session()
    see(ada, session)
    with CaptureQueriesContext(connection) as few:
        listed(ada, session)
    for number in range(5):
        see(ada, titled(world, f"Task {number}"))
    with CaptureQueriesContext(connection) as many:
        assert len(listed(ada, session)) == 7
    assert len(many) == len(few)


def test_page_of_a_session_that_is_over_lists_it_too(ada: Client, world: World) -> None:
    session = titled(world, "Over")
    session.task.state = "DONE"
    session.task.save()
    assert listed(ada) == []
    assert listed(ada, session) == ["Sessions", "Over"]
    html = ada.get(path_of(session)).text
    assert 'aria-current="page">Over' in html
    assert "data-folded" not in html
    ada.cookies["kandev_sessions"] = "closed"
    assert "data-folded" in ada.get(path_of(session)).text
    assert ada.get("/sessions/list/", {"current": str(uuid.uuid4())}).status_code == 200
