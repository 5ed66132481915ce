"""The line that stays at the top of a session's page: title, state and the action that comes next."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from sessions_app.accounts.models import TeamRole
from sessions_app.models import TaskSession
from tests.pages.world import World, asks, ingest_lines
from tests.permissions.pages.test_question_forms import FORM, ask
from tests.sessions.pages.test_sessions import page

pytestmark = pytest.mark.any_database


def bar(html: str) -> str:
    """Return the line as a reader sees it, without the title."""
    part = html[html.index('<div id="part-bar">') : html.index('<div id="part-strip">')]
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def working(world: World) -> TaskSession:
    return world.running_session()


def asking(world: World) -> TaskSession:
    session = world.running_session()
    ingest_lines(session, asks())
    return session


def questioning(world: World) -> TaskSession:
    return ask(world, FORM)


def stopped(world: World) -> TaskSession:
    return world.resting_session(resume_token="t")


def lost(world: World) -> TaskSession:
    return world.resting_session(rejected_resume_token="t")


@pytest.mark.parametrize(
    ("make", "state", "action"),
    [
        (working, "Working", "Cancel turn"),
        (asking, "Asks for permission", "Review"),
        (questioning, "Asks a question", "Reply"),
        (stopped, "Your turn", "Resume"),
        (lost, "Your turn", "Next step"),
    ],
)
def test_bar_names_the_state_and_what_comes_next(
    make: Callable[[World], TaskSession], state: str, action: str, ada: Client, world: World
) -> None:
    session = make(world)
    assert bar(page(ada, session)) == f"{state} {action}"
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.VIEWER)
    assert bar(page(ada, session)) == state, "a viewer can do nothing about it"
