"""Concurrent callers and callers that hang up: one agent, every prompt once and in order, a correct answer to each."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.drills.deployment import ROOT, ApiError, Deployment, Session
from tests.drills.kandev_processes import served_by
from tests.waiting import PATIENCE, eventually

CALLERS = 50
AGENT = str(ROOT / "executors_app" / "demo_agent")
COUNTED = 'echo $$ >> "$KANDEV_DEMO_AGENT_HOME/starts"; exec "$0" "$1"'
"""An agent that records each of its processes before it starts."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one Kandev of two web processes and one supervisor."""
    made = Deployment(tmp_path_factory.mktemp("callers"))
    made.prepare()
    try:
        with served_by(made, webs=2) as made.urls:
            yield made
    finally:
        made.close()


def counted_session(deployment: Deployment) -> Session:
    """Return a session whose agent counts its own starts; its first turn is over."""
    session = deployment.start_session("remember walrus", {"command": ["sh", "-c", COUNTED, sys.executable, AGENT]})
    eventually(lambda: session.prompts()[0]["state"] == "done", timeout=60, describe="the first prompt is done")
    return session


def stop(session: Session) -> None:
    session.deployment.api("POST", f"{session.path}/stop/", {})
    eventually(lambda: session.execution["status"] == "stopped", timeout=60, describe="the execution is stopped")


def start_count(session: Session) -> int:
    """Return how many processes the agent had, by its own count."""
    return len((session.agent_home / "starts").read_text().splitlines())


def received_prompts(session: Session) -> list[str]:
    """Return the prompts that the agent got, in order, by its own record."""
    lines = [line for path in session.agent_home.glob("*.jsonl") for line in path.read_text().splitlines()]
    answers = [json.loads(line) for line in lines]
    return [one["text"] for one in answers if one.get("role") == "user"]


def all_done(session: Session) -> bool:
    return {row["state"] for row in session.prompts()} == {"done"}


def test_concurrent_resumes_start_one_agent_and_keep_prompt_order(shared: Deployment) -> None:
    session = counted_session(shared)
    stop(session)
    together = threading.Barrier(CALLERS)

    def call(number: int) -> tuple[int, Any]:
        url = shared.urls[number % 2]
        together.wait(60)
        if number % 4 < 2:
            return number, shared.api("POST", f"{session.path}/resume/", {"mode": "auto"}, at=url)
        body = {"message_id": f"caller-{number}", "text": f"This is caller {number}."}
        return number, shared.api("POST", f"{session.path}/prompt/", body, at=url)

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = dict(pool.map(call, range(CALLERS)))

    prompting = [number for number in answers if number % 4 >= 2]
    assert [answers[number]["message_id"] for number in prompting] == [f"caller-{number}" for number in prompting]
    assert {answers[number]["status"]["desired_state"] for number in answers if number % 4 < 2} == {"running"}
    eventually(lambda: all_done(session), timeout=180, describe="every prompt is done")
    ledger = session.prompts()
    assert received_prompts(session) == [row["text"] for row in ledger]
    assert sorted(row["message_id"] for row in ledger[1:]) == sorted(f"caller-{number}" for number in prompting)
    assert start_count(session) == 2
    assert session.journal().count('"kind":"agent.started"') == 2
    orders = shared.rows(
        "SELECT outcome FROM session_intents WHERE session_id = ? AND kind = 'start' ORDER BY created_at", raw(session)
    )
    assert [row["outcome"] for row in orders] == ["fresh", "loaded"]


def test_concurrent_prompts_with_one_message_id_are_delivered_once(shared: Deployment) -> None:
    session = counted_session(shared)
    stop(session)
    together = threading.Barrier(CALLERS)

    def call(number: int) -> tuple[str, Any]:
        together.wait(60)
        text = "Say it once." if number % 5 else "Something else under the same name."
        try:
            body = {"message_id": "only", "text": text}
            return text, shared.api("POST", f"{session.path}/prompt/", body, at=shared.urls[number % 2])
        except ApiError as error:
            return text, json.loads(error.body)["code"]

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(call, range(CALLERS)))

    eventually(lambda: all_done(session), timeout=60, describe="the prompt is done")
    [won] = [row["text"] for row in session.prompts() if row["message_id"] == "only"]
    assert {json.dumps(answer) for text, answer in answers if text == won} == {json.dumps(dict(answers)[won])}
    assert {answer for text, answer in answers if text != won} == {"conflict"}
    assert received_prompts(session) == ["remember walrus", won]
    assert start_count(session) == 2


def test_requests_of_clients_that_hang_up_are_still_carried_out(shared: Deployment) -> None:
    session = counted_session(shared)
    stop(session)
    for number in range(12):
        leave_after_asking(session, shared.urls[number % 2], f"gone-{number}")

    # A client that repeats its request gets one prompt, whether or not the first request was carried out.
    for number in range(12):
        shared.api("POST", f"{session.path}/prompt/", {"message_id": f"gone-{number}", "text": f"I am {number}."})
    eventually(lambda: all_done(session), timeout=120, describe="every prompt is done")
    assert sorted(received_prompts(session)[1:]) == sorted(f"I am {number}." for number in range(12))
    assert received_prompts(session) == [row["text"] for row in session.prompts()]
    assert start_count(session) == 2


def leave_after_asking(session: Session, url: str, message_id: str) -> None:
    """Send a whole request and hang up without reading the response."""
    body = json.dumps({"message_id": message_id, "text": f"I am {message_id.removeprefix('gone-')}."}).encode()
    head = (
        f"POST /api/v1/{session.path}/prompt/ HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Authorization: Token {session.deployment.seeded['token']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + body)


async def test_requests_of_a_socket_that_closes_are_still_carried_out(shared: Deployment) -> None:
    session = counted_session(shared)
    stop(session)
    requests = [{"message_id": os.urandom(8).hex(), "text": text} for text in ("I hang up now.", "Still there?")]
    headers = {"Authorization": f"Token {shared.seeded['token']}"}
    url = f"{shared.urls[1]}/ws/sessions/{session.id}/"
    async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=headers) as connection:
        await connection.receive(PATIENCE)
        for one in requests:
            await connection.send_json({"type": "request", "id": 1, "action": "task.session.prompt", "payload": one})

    eventually(lambda: len(session.prompts()) == 3 and all_done(session), timeout=60, describe="both prompts are done")
    assert received_prompts(session) == ["remember walrus", "I hang up now.", "Still there?"]
    assert start_count(session) == 2


def test_prompt_during_a_permission_wait_cancels_the_turn_and_follows(shared: Deployment) -> None:
    session = counted_session(shared)
    session.prompt("ask")
    eventually(lambda: session.status()["pending_permissions"], timeout=60, describe="the agent requests a permission")
    session.prompt("what was the word?")

    eventually(lambda: len(session.prompts()) == 3 and all_done(session), timeout=60, describe="every prompt is done")
    names = session.names()
    cancelled, resolved = names.index("session.run.cancelled"), names.index("session.permission.resolved")
    assert resolved < cancelled < len(names) - 1 - names[::-1].index("session.run.started")
    assert session.status()["pending_permissions"] == 0
    assert "walrus" in session.agent_text().splitlines()[-1]


def raw(session: Session) -> str:
    """Return the session's id as SQLite stores it."""
    return session.id.replace("-", "")
