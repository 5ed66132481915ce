"""Everything is killed in mid-turn; afterwards no two pages say different things of the same session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.drills.deployment import Session
from tests.pages.browsers import SERVER_AWAY
from tests.pages.contradictions import Walk
from tests.pages.people import Place
from tests.waiting import eventually

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def begin(place: Place) -> dict[str, Session]:
    """One of each fate, all of them in mid-turn but the one that is closed."""
    cannot: dict[str, Any] = {"supports_session_resume": False}
    made = {
        "closed": place.start("remember one", "Closed before"),
        "lives on": place.start("work 600", "Its agent lives on"),
        "resumes": place.start("work 600", "Its agent is killed"),
        "asks": place.start("ask", "Asks when it is killed"),
        "cannot": place.start("work 600", "Cannot be resumed", cannot),
        "by hand": place.start("work 600", "Started by hand alone", policy="manual"),
    }
    made["closed"].wait_for("WAITING_FOR_INPUT")
    place.deployment.api("POST", f"{made['closed'].path}/close/", {"as": "completed"})
    for name in ("lives on", "resumes", "cannot", "by hand"):
        eventually(partial(works, made[name]), timeout=60, describe=f"{name} works")
    eventually(lambda: "permission.requested" in made["asks"].journal(), timeout=60, describe="it asks")
    return made


def works(session: Session) -> bool:
    return "tick 1" in session.agent_text()


def rests(sessions: dict[str, Session]) -> bool:
    """Whether each session is where it stays: back at work, or with whoever has to decide."""
    status = {name: one.status() for name, one in sessions.items()}
    working = {name for name, one in status.items() if one["state"] == "RUNNING"}
    receipts = all(sessions[name].receipts() for name in ("lives on", "resumes", "asks", "cannot"))
    return receipts and not any(one["state"] == "STARTING" for one in status.values()) and "by hand" not in working


def test_after_everything_was_killed_no_two_pages_contradict_each_other(place: Place) -> None:
    sessions = begin(place)
    with place.visiting() as me:
        assert Walk(me.page, list(sessions.values())).everything() == "", "before anything was killed"
        place.kill()
        for name in ("resumes", "asks", "cannot", "by hand"):
            sessions[name].kill_everything()
        place.serve()
        eventually(lambda: rests(sessions), timeout=120, describe="all have come to rest")
        walk = Walk(me.page, list(sessions.values()))
        assert walk.everything() == ""
        assert me.unexpected(*SERVER_AWAY) == []
