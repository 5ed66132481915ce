"""After everything was killed during a turn, all pages say the same about each session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.drills.deployment import Session
from tests.pages.browsers import SERVER_AWAY
from tests.pages.contradictions import Walk
from tests.pages.people import Place
from tests.waiting import eventually, settled
from tests.workflows.workflow_builder import TRIGGER, node, workflow

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def begin(place: Place) -> dict[str, Session]:
    """Start one session for each outcome, all of them during a turn except for the closed one."""
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
        eventually(partial(is_working, made[name]), timeout=60, describe=f"{name} works")
    asked = {"session.permission.requested", "session.attention"}
    eventually(lambda: asked.issubset(made["asks"].names()), describe="the agent requests a permission")
    eventually(lambda: made["closed"].execution["status"] == "stopped", describe="the closed session has stopped")
    return made


def start_run(place: Place, agent: Session) -> str:
    """Start a workflow run whose only agent is working."""
    api, seeded = place.deployment.api, place.deployment.seeded
    profile = api("GET", f"{agent.path}/status/")["agent_profile_id"]
    text = workflow([TRIGGER, node("count", "agent", prompt="work 600")], ["trigger > count"])
    values = {name: seeded[name] for name in ("team", "repository", "executor")}
    made = api("POST", "workflows/", {"name": "Count", "text": text, "agent_profile": profile, **values})
    return str(api("POST", f"workflows/{made['id']}/runs/", {})["id"])


def agent_of(place: Place, run: str) -> Session | None:
    """Return the session of the run's agent once the agent is working."""
    body = place.deployment.api("GET", f"workflow-runs/{run}/")
    ids = [one["session_id"] for one in body["nodes"] if one["kind"] == "agent" and one["session_id"]]
    found = [Session(place.deployment, body["task_id"], one, place.deployment.home) for one in ids]
    return next((one for one in found if is_working(one)), None)


def find_contradictions(page: Page, sessions: dict[str, Session], run: str) -> str:
    """Return the contradictions found on all pages."""
    api = sessions["closed"].deployment.api
    request_id = api("POST", "sweeps/", {"dry_run": True})["id"]
    eventually(
        lambda: api("GET", f"sweeps/requests/{request_id}/")["done_at"], timeout=60, describe="the dry run is done"
    )
    ids = {
        "run_id": run,
        "workflow_id": api("GET", f"workflow-runs/{run}/")["workflow_id"],
        "sweep_id": api("GET", "sweeps/")["results"][0]["sweep_id"],
        "request_id": request_id,
        "team_id": str(sessions["closed"].deployment.seeded["team"]),
        "repository_id": str(sessions["closed"].deployment.seeded["repository"]),
        "user_id": str(sessions["closed"].deployment.seeded["user"]),
        "executor_id": str(sessions["closed"].deployment.seeded["executor"]),
        "profile_id": str(api("GET", f"{sessions['closed'].path}/status/")["agent_profile_id"]),
        "runtime": "local_standalone",
    }
    return Walk(page, list(sessions.values()), ids).everything()


def is_working(session: Session) -> bool:
    return "tick 1" in session.agent_text()


def is_settled(place: Place, sessions: dict[str, Session], run: str) -> bool:
    """Return whether the run has ended and each session is working again or waits for a decision."""
    status = {name: one.status() for name, one in sessions.items()}
    working = {name for name, one in status.items() if one["state"] == "RUNNING"}
    receipts = all(sessions[name].receipts() for name in ("lives on", "resumes", "asks", "cannot"))
    is_over = place.deployment.api("GET", f"workflow-runs/{run}/")["state"] not in ("queued", "running")
    return (
        is_over
        and receipts
        and not any(one["state"] == "STARTING" for one in status.values())
        and "by hand" not in working
    )


def shown_states(sessions: dict[str, Session]) -> list[tuple[str, ...]]:
    """Return what the pages show about the sessions: it changes while a turn is being continued."""
    statuses = [one.status() for one in sessions.values()]
    return [tuple(str(one[name]) for name in ("state", "executor_status", "queued_prompts")) for one in statuses]


def test_pages_agree_about_sessions_after_everything_was_killed(place: Place) -> None:
    sessions = begin(place)
    run = start_run(place, sessions["resumes"])
    of_run = eventually(lambda: agent_of(place, run), timeout=60, describe="the run's agent works")
    assert of_run is not None
    with place.visiting() as visit:
        assert find_contradictions(visit.page, sessions, run) == "", "no contradiction before the kills"
        place.kill()
        for one in (*(sessions[name] for name in ("resumes", "asks", "cannot", "by hand")), of_run):
            one.kill_everything()
        place.serve()
        eventually(
            lambda: is_settled(place, sessions, run), timeout=120, describe="all sessions and the run are at rest"
        )
        settled(lambda: shown_states(sessions))
        assert find_contradictions(visit.page, sessions, run) == ""
        assert visit.unexpected(*SERVER_AWAY) == []
