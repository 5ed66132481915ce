"""The session page of a long conversation: the server's CPU time, and a real Chromium; and what pages weigh."""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Callable, Iterator
from time import process_time
from typing import Final

from django.test import Client
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Page

from sessions_app.board.services import tasks
from sessions_app.models import Message, MessagePart, TaskSession
from sessions_app.stream.views import PAGE_SIZE
from tests.bench.fanout import serving
from tests.bench.figures import Figure
from tests.bench.screens import cookie_of
from tests.bench.world import AT_ONCE, World
from tests.pages.browsers import Visit, real_browser, wait_until
from tests.services import BUNDLES

LIMIT: Final = 1.5
"""Maximum of a page of a long conversation, as a multiple of a page of one that fits on it."""
FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
IS_PAINTED: Final = "performance.getEntriesByName('first-contentful-paint').length > 0"
WATCH_EARLIER: Final = """() => {
  const list = document.getElementById("messages"), before = list.childElementCount;
  delete window.drawn;
  const clicked = () => (window.clicked = performance.now());
  document.getElementById("earlier").addEventListener("click", clicked, { once: true, capture: true });
  const observer = new MutationObserver(() => {
    if (list.childElementCount === before) return;
    observer.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => (window.drawn = performance.now())));
  });
  observer.observe(list, { childList: true });
}"""
MOST_BYTES: Final = {"board": 100_000, "session": 140_000}
"""Of a page at first paint: its HTML, its style sheet and its script, compressed."""
LAZY_BYTES: Final = {"highlight.js": 60_000, "diff.js": 15_000, "xterm.js": 110_000}
"""Of what is loaded when it is needed, compressed."""
TEXT: Final = "Message {}: the tests of `src/mail/module_03.py` **fail**, because the queue is empty.\n\n- one\n- two\n"


def of_a_conversation(world: World, messages: int, rounds: int, *, limited: bool) -> Iterator[Figure]:
    """Measure the CPU of one view of ``messages`` messages, beside a conversation of one page and reading its rows."""
    world.empty()
    paths = {count: _path(_conversation(world, count)) for count in (messages, PAGE_SIZE)}
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(world.user)

    def view(count: int) -> None:
        answer = client.get(paths[count])
        assert answer.status_code == 200, answer.status_code

    def read() -> None:
        newest = Message.objects.filter(session__messages__seq=messages).order_by("-seq").distinct()[:PAGE_SIZE]
        ids = [message.id for message in newest]
        assert MessagePart.objects.filter(message__in=ids).count() == len(ids)

    view(messages)
    view(PAGE_SIZE)
    read()
    gc.collect()
    taken = [(_cpu(lambda: view(messages)), _cpu(lambda: view(PAGE_SIZE)), _cpu(read)) for _ in range(rounds)]
    long, short, floor = map(min, zip(*taken, strict=True))
    row, limit = f"session page of {messages:,} messages, CPU", LIMIT if limited else None
    yield Figure(row, long, "reading the rows that it shows", floor)
    yield Figure(row, long, f"the same of {PAGE_SIZE} messages", short, limit=limit)


def in_a_browser(world: World, messages: int, rounds: int, *, limited: bool) -> Iterator[Figure]:
    """Measure how soon Chromium shows the same pages, and how long it takes to add a page of earlier messages."""
    world.empty()
    paths = {count: _path(_conversation(world, count)) for count in (messages, PAGE_SIZE)}
    painted: dict[int, list[float]] = {count: [] for count in paths}
    with real_browser() as browser, serving("kandev.asgi:application") as port:
        page = Visit(browser, f"http://127.0.0.1:{port}", cookie_of(world)).page
        for _ in range(rounds + 1):
            for count, path in paths.items():
                page.goto(path)
                wait_until(page, IS_PAINTED)  # a loaded page may not be drawn yet
                painted[count].append(page.evaluate(FIRST_PAINT))
        page.goto(paths[messages])
        added = [_add_earlier(page) for _ in range(min(rounds, messages // PAGE_SIZE - 1))]
    long, short = (min(painted[count][1:]) for count in (messages, PAGE_SIZE))
    row, limit = f"session page of {messages:,} messages, first paint", LIMIT if limited else None
    yield Figure(row, long, f"the same of {PAGE_SIZE} messages", short, limit=limit)
    if added:
        yield Figure(f"{PAGE_SIZE} earlier messages, until they are drawn", min(added), "first paint of as many", short)


def _add_earlier(page: Page) -> float:
    """Load a page of earlier messages; return the seconds until they are drawn, as the page itself measures."""
    page.evaluate(WATCH_EARLIER)
    page.click("#earlier")
    wait_until(page, "window.drawn !== undefined")
    seconds: float = page.evaluate("(window.drawn - window.clicked) / 1000")
    return seconds


def of_weights(world: World, *, limited: bool) -> Iterator[Figure]:
    """Weigh what board and session page load at first paint, and the largest things that they load later."""
    world.empty()
    paths = {"board": reverse("board"), "session": _path(_conversation(world, PAGE_SIZE))}
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(world.user)
    files = json.loads(BUNDLES.read_text())["files"]
    static = BUNDLES.parents[2]
    for name, most in MOST_BYTES.items():
        built = [static / f"{files[f'kandev/pages/{name}.{kind}']}.gz" for kind in ("css", "js")]
        weight = sum(path.stat().st_size for path in built) + len(gzip.compress(client.get(paths[name]).content))
        yield _weight(f"{name} at first paint, compressed", weight, most, limited=limited)
    for name, most in LAZY_BYTES.items():
        path = BUNDLES.parents[1] / "vendor" / name
        if path.exists():
            yield _weight(f"{name}, compressed", len(gzip.compress(path.read_bytes())), most, limited=limited)


def _weight(row: str, weight: int, most: int, *, limited: bool) -> Figure:
    limit = 1.0 if limited else None
    return Figure(row, weight / 1000, "the budget", most / 1000, unit="kB", limit=limit)


def _cpu(run: Callable[[], None]) -> float:
    began = process_time()
    run()
    return process_time() - began


def _path(session: TaskSession) -> str:
    return reverse("session", args=[session.task_id, session.id])


def _conversation(world: World, messages: int) -> TaskSession:
    task = world.task(f"{messages} messages")
    task.save()
    session = tasks.create_session(world.user, task, world.profile, world.executor, desired_state="stopped")
    now = timezone.now()
    rows = [
        Message(session=session, seq=n, updated_seq=n, role="agent" if n % 4 else "user", created_at=now)
        for n in range(1, messages + 1)
    ]
    Message.objects.bulk_create(rows, batch_size=AT_ONCE)
    parts = (MessagePart(message=row, number=0, text=TEXT.format(row.seq)) for row in rows)
    MessagePart.objects.bulk_create(parts, batch_size=AT_ONCE)
    TaskSession.objects.filter(id=session.id).update(last_seq=messages)
    return session
