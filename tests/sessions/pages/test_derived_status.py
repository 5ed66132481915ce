"""Lists show the same status of a session as its own page."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.kernel.transactions import derived_status
from sessions_app.models import TaskSession, Turn, WaitKey
from sessions_app.recovery.services.assessment import execution_of
from sessions_app.sessions.services.status import load_run_states
from sessions_app.turns.models import newest_run
from tests.pages.world import World, asks, ingest_lines

pytestmark = pytest.mark.any_database


def asking(world: World) -> TaskSession:
    session = world.running_session()
    ingest_lines(session, asks())
    return session


def with_key(**values: object) -> Callable[[World], TaskSession]:
    """Return a function that makes a session whose key is in another state."""

    def make(world: World) -> TaskSession:
        session = asking(world)
        WaitKey.objects.filter(session=session).update(**values)
        return session

    return make


def answered_elsewhere(world: World) -> TaskSession:
    session = asking(world)
    session.permissions.update(state="resolved")
    return session


def waiting_outside(world: World) -> TaskSession:
    session = asking(world)
    session.permissions.update(state="resolved")
    Turn.objects.filter(session=session).update(wait_kind="external", wait_id="build", has_process=False)
    WaitKey.objects.filter(session=session).update(wait_kind="external", wait_id="build")
    return session


def agent_gone(world: World) -> TaskSession:
    session = world.running_session()
    TaskSession.objects.filter(id=session.id).update(launch_id="")
    return session


def run_ended(state: str, *, waited: bool = False, reason: str = "") -> Callable[[World], TaskSession]:
    def make(world: World) -> TaskSession:
        session = world.running_session()
        session.runs.update(state=state, ended_at=timezone.now(), waited=waited, reason=reason)
        return session

    return make


SITUATIONS: dict[str, tuple[Callable[[World], TaskSession], str]] = {
    "no event": (lambda world: world.session(), "idle"),
    "a turn runs": (lambda world: world.running_session(), "running"),
    "the turn has completed": (lambda world: world.resting_session(), "idle"),
    "the agent is gone": (agent_gone, "interrupted_startup"),
    "the turn was interrupted": (run_ended("interrupted"), "interrupted_startup"),
    "the turn was interrupted while waiting": (run_ended("interrupted", waited=True), "interrupted_waiting"),
    "a user stopped the session in the turn": (run_ended("interrupted", reason="stopped"), "idle"),
    "a permission is requested": (asking, "waiting"),
    "the answer is being delivered": (with_key(consumed_at=timezone.now()), "waiting"),
    "the key has expired": (with_key(expires_at=timezone.now()), "interrupted_waiting"),
    "the key was revoked": (with_key(revoked_at=timezone.now()), "interrupted_waiting"),
    "the question is settled": (answered_elsewhere, "interrupted_waiting"),
    "the session waits for a build": (waiting_outside, "waiting"),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_list_and_session_page_agree(situation: str, world: World) -> None:
    make, expected = SITUATIONS[situation]
    session = make(world)
    session.refresh_from_db()
    alone = derived_status(session, execution_of(session), newest_run(session))
    assert load_run_states([session])[session.id].derived == alone == expected


def test_newest_turn_decides_without_extra_queries_per_session(world: World) -> None:
    few = [make(world) for make, _ in SITUATIONS.values()]
    for session in few:
        session.runs.create(message_id="old", state="interrupted", started_at=timezone.now().replace(year=2020))
    many = few + [make(world) for make, _ in SITUATIONS.values()]
    counts = []
    for sessions in (few, many):
        fresh = list(TaskSession.objects.filter(id__in=[one.id for one in sessions]))
        with CaptureQueriesContext(connection) as seen:
            states = load_run_states(fresh)
        counts.append(len(seen))
        for one in fresh:
            assert states[one.id].derived == derived_status(one, execution_of(one), newest_run(one))
    assert counts == [4, 4]
