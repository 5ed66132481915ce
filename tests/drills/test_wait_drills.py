"""Waits that span restarts, with real processes and with the keys of permissions and builds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.drills.deployment import ApiError, Deployment, Session
from tests.drills.kandev_processes import served_by
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

CALLERS = 50


def wait_for_turn(session: Session, number: int = 1) -> None:
    eventually(
        lambda: session.names().count("session.run.completed") >= number,
        timeout=60,
        describe=f"{number} turns have completed",
    )


def pending_permission(session: Session) -> dict[str, Any]:
    """Return the question that the agent asks, as the API shows it."""

    def pending() -> Any:
        found = session.deployment.api("GET", f"{session.path}/permissions/?state=pending")["results"]
        return found[0] if found else None

    found: dict[str, Any] = eventually(pending, timeout=60, describe="the agent asks")
    return found


def answer_permission(session: Session, question: dict[str, Any]) -> None:
    body = {"option_id": question["options"][0]["option_id"], "resume_token": question["resume_token"]}
    session.deployment.api("POST", f"{session.path}/permissions/{question['id']}/", body)


def redeem(url: str, key: str, payload: str) -> tuple[int, dict[str, Any]]:
    """Redeem a key as a build does: without an account, and with the payload as idempotency key."""
    body = {"resume_token": key, "payload": payload, "idempotency_key": payload}
    request = urllib.request.Request(
        f"{url}/api/v1/runs/resume/", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def open_wait(session: Session, **values: Any) -> dict[str, Any]:
    body = {"kind": "external", "reason": "The build", **values}
    opened: dict[str, Any] = session.deployment.api("POST", f"{session.path}/waits/", body)
    return opened


def all_texts(session: Session) -> str:
    """Return the server's log, the event payloads and the journal."""
    events = json.dumps([event["payload"] for event in session.events()])
    return session.deployment.log() + events + session.journal()


def test_permission_key_stays_the_same_after_a_restart(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("ask")
    before = pending_permission(session)
    deployment.kill_server()
    deployment.serve()

    after = pending_permission(session)
    assert (after["id"], after["resume_token"]) == (before["id"], before["resume_token"])
    answer_permission(session, before)
    wait_for_turn(session)

    assert before["resume_token"].removeprefix("kwt_") not in all_texts(session)
    names = session.names()
    assert [names.count(f"session.token.{one}") for one in ("minted", "consumed", "revoked")] == [1, 1, 0]
    assert "session.run.interrupted" not in names


def test_question_outlives_the_control_plane_and_ends_with_its_agent(deployment: Deployment) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    session = deployment.start_session("question")
    before = pending_permission(session)
    deployment.kill_server()
    deployment.serve()
    question = pending_permission(session)
    assert (question["id"], question["question"]["message"]) == (before["id"], before["question"]["message"])
    content = {"engine": "postgresql", "name": "heron"}
    body = {"option_id": "accept", "resume_token": question["resume_token"], "content": content}
    for _ in range(2):
        deployment.api("POST", f"{session.path}/permissions/{question['id']}/", body)
    wait_for_turn(session)
    assert session.agent_log() == f"The answer was {json.dumps(content)}.\n"
    resolved = [line for line in session.journal().splitlines() if "permission.resolved" in line]
    assert len(resolved) == 1
    assert "heron" not in deployment.log() + resolved[0]

    session.prompt("question")
    pending_permission(session)
    session.kill_everything()
    eventually(
        lambda: "session.permission.expired" in session.names(), timeout=60, describe="the permission has expired"
    )
    permissions = deployment.api("GET", f"{session.path}/permissions/")["results"]
    assert [(one["question_status"], one["reason"]) for one in permissions] == [
        ("answered", ""),
        ("cancelled", "agent_gone"),
    ]


def test_permission_of_a_dead_agentctl_expires_immediately(deployment: Deployment) -> None:
    deployment.env |= {"KANDEV_RECONCILE_INTERVAL": "600", "KANDEV_CONTINUE": "off"}
    deployment.serve()
    session = deployment.start_session("ask")
    question = pending_permission(session)
    session.kill_everything()

    eventually(
        lambda: "session.permission.expired" in session.names(), timeout=60, describe="the permission has expired"
    )
    assert "session.token.revoked" in session.names()
    with pytest.raises(ApiError) as refused:
        answer_permission(session, question)
    assert (refused.value.status, json.loads(refused.value.body)["code"]) == (410, "token_revoked")


def test_permission_timeout_is_reported_to_the_agent(deployment: Deployment) -> None:
    deployment.env["KANDEV_PERMISSION_TIMEOUT"] = "2"
    deployment.serve()
    session = deployment.start_session("ask")
    eventually(lambda: "session.run.cancelled" in session.names(), timeout=60, describe="the turn is cancelled")

    [resolved] = [event["payload"] for event in session.events() if event["name"] == "session.permission.resolved"]
    assert (resolved["state"], resolved["reason"]) == ("cancelled", "timeout")
    assert "session.token.expired" in session.names()
    assert "session.run.interrupted" not in session.names()


def test_external_wait_outlives_server_and_agent_and_wakes_the_agent(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("remember walrus")
    wait_for_turn(session)
    wait = open_wait(session)
    deployment.kill_server()
    session.kill_everything()
    deployment.serve()

    assert session.status()["derived_status"] == "waiting"
    status, response = redeem(deployment.url, wait["resume_token"], "what was the word?")
    assert (status, response) == (200, {"run_id": wait["run_id"], "status": "running"})
    wait_for_turn(session, 2)

    assert "The word was walrus." in session.agent_text()
    runs = deployment.api("GET", f"{session.path}/runs/")["results"]
    assert [(run["message_id"], run["state"]) for run in runs][-1] == (f"wait:{wait['wait_id']}", "completed")
    assert [run["id"] for run in runs][-1] == wait["run_id"]


def test_agent_asleep_in_an_external_wait_has_no_process_until_the_result_wakes_it(deployment: Deployment) -> None:
    deployment.env["KANDEV_IDLE_SLEEP"] = "2"
    deployment.serve()
    session = deployment.start_session("remember walrus")
    wait_for_turn(session)
    wait = open_wait(session)
    eventually(lambda: session.status()["asleep"], timeout=60, describe="the session sleeps in its wait")
    eventually(lambda: not session.processes(), timeout=60, describe="no process of the session runs")
    deployment.kill_server()
    deployment.env["KANDEV_IDLE_SLEEP"] = "3600"
    deployment.serve()

    assert session.processes() == []
    assert (session.status()["derived_status"], session.status()["asleep"]) == ("waiting", True)
    (listed,) = deployment.api("GET", "waits/")["results"]
    assert (listed["kind"], listed["owner"], listed["id"]) == ("external", "system", wait["run_id"])
    assert redeem(deployment.url, wait["resume_token"], "what was the word?")[0] == 200
    wait_for_turn(session, 2)

    assert session.agent_text().count("The word was walrus.") == 1
    assert redeem(deployment.url, wait["resume_token"], "once more")[1]["code"] == "token_consumed"
    assert deployment.api("GET", "waits/")["count"] == 0


def test_deadline_missed_while_the_server_is_down_is_reported_at_start(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("remember walrus")
    wait_for_turn(session)
    deadline = datetime.now(UTC) + timedelta(seconds=15)  # long enough for the request
    wait = open_wait(session, deadline=deadline.isoformat())
    deployment.kill_server()
    eventually(lambda: datetime.now(UTC) > deadline, describe="the deadline passes")
    deployment.serve()

    eventually(lambda: "session.token.expired" in session.names(), timeout=60, describe="the token has expired")
    [interrupted] = [event["payload"] for event in session.events() if event["name"] == "session.run.interrupted"]
    assert (interrupted["run_id"], interrupted["reason"]) == (wait["run_id"], "wait_timeout")
    assert session.status()["derived_status"] == "interrupted_waiting"
    assert redeem(deployment.url, wait["resume_token"], "x")[1]["code"] == "token_expired"
    session.prompt("what was the word?")
    wait_for_turn(session, 2)
    assert session.status()["derived_status"] == "idle"


def test_concurrent_builds_with_one_key_are_accepted_once(deployment: Deployment) -> None:
    with served_by(deployment, webs=3) as urls:
        session = deployment.start_session("remember walrus")
        wait_for_turn(session)
        key = open_wait(session)["resume_token"]
        calls = [(urls[number % len(urls)], key, f"what was word {number}?") for number in range(CALLERS)]
        with ThreadPoolExecutor(CALLERS) as pool:
            response = list(pool.map(lambda call: redeem(*call), calls))

        winners = [number for number, (status, _) in enumerate(response) if status == 200]
        assert len(winners) == 1, response
        refused = [body for status, body in response if status == 410 and body["code"] == "token_consumed"]
        assert len(refused) == CALLERS - 1, response
        assert len({body["details"]["consumed_at"] for body in refused}) == 1
        for url in urls:
            assert redeem(url, key, f"what was word {winners[0]}?") == response[winners[0]]
        wait_for_turn(session, 2)
    assert [row["text"] for row in session.prompts()] == ["remember walrus", f"what was word {winners[0]}?"]
    assert key.removeprefix("kwt_") not in all_texts(session)
