"""Time from the agent's output to the screen in real Chromium, and to render the page of a long session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Page

from executors_app.machine.process import identity
from executors_app.machine.storage import state_directory
from executors_app.models import ExecutorRunning
from executors_app.wire import journal_files
from sessions_app.board.services import tasks
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.models import Message, MessagePart, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from tests.bench.bare_chain import bare_chain
from tests.bench.fanout import serving
from tests.bench.figures import Figure, in_turn
from tests.bench.latencies import quantile, supervising
from tests.bench.world import World
from tests.pages.browsers import COOKIE, Visit, real_browser
from tests.waiting import eventually

RATE = 200
"""Ticks per second."""
BUDGETS = (("p50", 0.5, 0.015, 24.0), ("p95", 0.95, 0.03, 24.0))
"""Name and share of each quantile, its budget in seconds, and its limit as a multiple of the bare programs."""
ROUNDS = 3
"""The most rounds: each needs a new agent."""
WATCH = """(selector) => {
  window.seen = {};
  const look = () => {
    const text = document.querySelector(selector).textContent;
    const last = text.lastIndexOf("tick ");
    const number = last < 0 ? 0 : parseInt(text.slice(last + 5));
    if (number && !(number in window.seen)) window.seen[number] = (performance.timeOrigin + performance.now()) / 1000;
  };
  new MutationObserver(look).observe(document.querySelector(selector),
    {subtree: true, childList: true, characterData: true});
}"""
BARE = """(url) => new Promise((opened, failed) => {
  const place = document.body.appendChild(document.createElement("pre"));
  window.socket = new WebSocket(url);
  window.socket.onopen = opened;
  window.socket.onerror = () => failed(new Error("no WebSocket"));
  window.socket.onmessage = (message) => place.append(message.data);
})"""


def of_a_fast_agent(world: World, seconds: float, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure an agent with ``RATE`` ticks per second on an open session page, beside bare programs and a page."""
    with real_browser() as browser, serving("kandev.asgi:application") as port:
        page = Visit(browser, f"http://127.0.0.1:{port}", cookie_of(world)).page
        measured = [
            (
                _beside_agent(world, page, seconds),
                _beside_bare_chain(browser.new_page(), world.home / f"chain-{number}", seconds),
            )
            for number in range(min(rounds, ROUNDS))
        ]
    figures = []
    for name, share, budget, limit in BUDGETS:
        row = f"agent to screen, {RATE} a second, {name}"
        waited, floor = (min(quantile(one, share) for one in delays) for delays in zip(*measured, strict=True))
        figures.append(
            Figure(row, waited, f"bare programs for the same steps, {name}", floor, limit=limit if limited else None)
        )
        figures.append(Figure(row, waited, "the budget", budget))
    return figures


def cookie_of(world: World) -> str:
    """Return the session cookie of a logged-in browser."""
    client = Client()
    client.force_login(world.user)
    return client.cookies[COOKIE].value


def _beside_agent(world: World, page: Page, seconds: float) -> list[float]:
    with running_session(world, "Fast") as session:
        page.goto(reverse("session", args=[session.task_id, session.id]))
        page.evaluate(WATCH, "#messages")
        prompts.queue_prompt(session.id, "fast", f"work {seconds:g} at {RATE}", world.user)
        eventually(lambda: session.runs.filter(state="completed").exists(), timeout=60, describe="the turn has ended")
        seen = _seen(page, seconds)
        page.goto("about:blank")  # the page of a deleted session would load itself again when the next one is opened
        return _delays(seen, _sent_times(ExecutorRunning.objects.get(session=session)))


@contextmanager
def running_session(world: World, title: str) -> Iterator[TaskSession]:
    """Yield a session with a running agent and a supervisor; both are ended afterwards."""
    world.empty()
    task = world.task(title)
    task.save()
    with supervising():
        session = tasks.create_session(world.user, task, world.profile, world.executor)
        executions = ExecutorRunning.objects.filter(session=session)
        try:
            eventually(lambda: _fresh(session).launch_id, timeout=60, describe="the agent runs")
            yield session
        finally:
            intents.request_stop(session.id, world.user)
            with suppress(AssertionError):
                eventually(lambda: executions.get().status == "stopped", timeout=30)
            for execution in executions:
                identity.kill_all(identity.find_marked(str(execution.id)), 10)


def _fresh(session: TaskSession) -> TaskSession:
    row: TaskSession = TaskSession.objects.get(id=session.id)
    return row


def _seen(page: Page, seconds: float) -> dict[str, float]:
    """Return when each tick was shown, once the last one is on the screen."""
    last = str(round(seconds * RATE))
    eventually(lambda: last in page.evaluate("Object.keys(window.seen)"), timeout=30, describe=f"tick {last} is shown")
    seen: dict[str, float] = page.evaluate("window.seen")
    return seen


def _sent_times(execution: ExecutorRunning) -> dict[int, float]:
    """Return when each tick entered the journal."""
    place = state_directory(settings.KANDEV_DATA_DIR, str(execution.id))
    lines = journal_files.read_lines(journal_files.journal_directory(place.path))
    texts = [(line["text"], line["ts"]) for line in lines if line["kind"] == "message.agent"]
    return {int(text.split()[1]): ts for text, ts in texts if text.startswith("tick ")}


def _delays(seen: Mapping[str, float], sent_at: Mapping[int, float]) -> list[float]:
    """Return the delay of each tick: it is on the screen as soon as the same or a later tick is."""
    times = sorted((int(number), at) for number, at in seen.items())
    delays, index = [], 0
    for number in sorted(sent_at):
        while index < len(times) and times[index][0] < number:
            index += 1
        if index < len(times):
            delays.append(times[index][1] - sent_at[number])
    return delays


def _beside_bare_chain(page: Page, directory: Path, seconds: float) -> list[float]:
    """Return the delays on an empty page that the bare programs feed."""
    with bare_chain(directory) as chain:
        page.goto(f"http://127.0.0.1:{chain.port}/page")
        page.evaluate(WATCH, "body")
        page.evaluate(BARE, f"ws://127.0.0.1:{chain.port}/")
        sent_at = chain.talk(seconds, RATE)
        return _delays(_seen(page, seconds), sent_at)


def of_a_long_session(world: World, messages: int, rounds: int) -> Figure:
    """Measure rendering the session page of ``messages`` messages, beside reading as many rows."""
    world.empty()
    task = world.task("Long")
    task.save()
    session = tasks.create_session(world.user, task, world.profile, world.executor, desired_state="stopped")
    _talk_long(session, messages)
    client, path = Client(SERVER_NAME="127.0.0.1"), reverse("session", args=[task.id, session.id])
    client.force_login(world.user)

    def render() -> None:
        answer = client.get(path)
        assert answer.status_code == 200, answer.status_code

    def read() -> None:
        assert len(list(MessagePart.objects.values_list("message_id", "text"))) == messages

    render()
    seconds, floor = asyncio.run(in_turn_with_orm(rounds, render, read))
    return Figure(f"session page, {messages} messages", min(seconds), "reading the rows", min(floor))


def _talk_long(session: TaskSession, messages: int) -> None:
    now = timezone.now()
    rows = [
        Message(session=session, seq=n, updated_seq=n, role="agent" if n % 2 else "user", created_at=now)
        for n in range(1, messages + 1)
    ]
    Message.objects.bulk_create(rows)
    MessagePart.objects.bulk_create(
        MessagePart(message=row, number=0, text=f"Message {row.seq}, **bold**") for row in rows
    )
    TaskSession.objects.filter(id=session.id).update(last_seq=messages)


async def in_turn_with_orm(rounds: int, *runs: Callable[[], None]) -> list[list[float]]:
    """Measure as ``in_turn`` does, in a database thread, because the ORM needs a thread without an event loop."""
    writer = DatabaseThread("bench")
    try:
        return await in_turn(rounds, *(partial(writer, run) for run in runs))
    finally:
        writer.close()
