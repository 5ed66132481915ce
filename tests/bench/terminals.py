"""From a shell of the workspace to the terminal of a page, in real Chromium; beside whoever only reads its PTY."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from django.contrib.auth.models import Permission
from django.urls import reverse
from playwright.sync_api import Page

from executors_app.models import ExecutorRunning
from tests.bench.fanout import serving
from tests.bench.figures import Figure
from tests.bench.screens import cookie_of, running_session
from tests.bench.world import World
from tests.pages.browsers import Visit, real_browser
from tests.services import missing
from tests.waiting import eventually

LINE = b"0123456789 abcdefghijklmnopqrstuvwxyz a line as a build says it, of eighty signs..\n"
MEGABYTE = 1 << 20
SHOWS = """(words) => [...document.querySelectorAll(".xterm-rows > div")]
  .some((row) => row.textContent.replaceAll("\\u00a0", " ").startsWith(words))"""


def of_a_long_text(world: World, megabytes: int, rounds: int) -> list[Figure]:
    """``cat`` of a long file, until its end is on the screen."""
    if missing("chromium") or missing("terminal"):
        return []
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    with (
        real_browser() as browser,
        serving("kandev.asgi:application") as port,
        running_session(world, "Loud") as session,
    ):
        execution = ExecutorRunning.objects.get(session=session)
        text = Path(execution.workspace_path) / "long.txt"
        text.write_bytes(LINE * (megabytes * MEGABYTE // len(LINE)))
        page = Visit(browser, f"http://127.0.0.1:{port}", cookie_of(world)).page
        page.goto(reverse("session", args=[session.task_id, session.id]))
        page.get_by_role("tab", name="Terminal").click()
        page.locator(".xterm-helper-textarea").focus()
        _until(page, "ready-", "echo ready-$((1))")
        taken = [(_shown(page, number), _read(text)) for number in range(min(rounds, 3))]
    seconds, floor = (min(one) for one in zip(*taken, strict=True))
    return [Figure(f"terminal, {megabytes} MB to the screen", seconds, "bare PTY read", floor, "MB/s", megabytes)]


def _shown(page: Page, number: int) -> float:
    """Seconds from the Enter key to the last word."""
    began = time.perf_counter()
    _until(page, f"over-{number}-", f"cat long.txt; echo over-{number}-$((1))")
    return time.perf_counter() - began


def _until(page: Page, words: str, command: str) -> None:
    page.keyboard.type(command)
    page.keyboard.press("Enter")
    eventually(lambda: page.evaluate(SHOWS, f"{words}1"), timeout=120, describe=f"the terminal shows {words}")


def _read(text: Path) -> float:
    """Seconds until all of it came out of a PTY."""
    ours, theirs = os.openpty()
    began = time.perf_counter()
    with subprocess.Popen(["cat", str(text)], stdin=subprocess.DEVNULL, stdout=theirs):
        os.close(theirs)
        try:
            while os.read(ours, 1 << 16):
                pass
        except OSError:  # EIO: the other end is closed
            pass
    os.close(ours)
    return time.perf_counter() - began
