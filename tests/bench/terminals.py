"""Time from a shell of the workspace to a WebSocket and to the terminal of a page, beside a bare PTY.

The kernel passes at most 4 KiB of a PTY to each read, so a long text needs thousands of switches between its writer, a
kernel worker and the reader. Their rate depends on the other load, so bare reads alternate with the rounds, and wait
until the browser is idle. The screen has another floor: xterm.js with the same text in memory, in a page of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import aiohttp
import orjson
from django.contrib.auth.models import Permission
from django.urls import reverse
from playwright.sync_api import Page
from rest_framework.authtoken.models import Token

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from tests.bench.fanout import serving
from tests.bench.figures import Figure, in_turn, seconds_of
from tests.bench.latencies import quantile
from tests.bench.screens import cookie_of, running_session
from tests.bench.world import World
from tests.pages.browsers import Visit, real_browser
from tests.services import ROOT, missing
from tests.waiting import eventually

LINE = b"0123456789 abcdefghijklmnopqrstuvwxyz a line as a build says it, of eighty signs..\n"
MEGABYTE = 1 << 20
ACK_EVERY = MEGABYTE // 4
"""As in the page's script."""
READ_LIMIT = 2.0
ECHO_ALLOWANCE = 0.015
"""Seconds that an echo may take longer than that of a bare PTY."""
KEYSTROKE_PAUSE = 0.02
VENDOR = ROOT / "frontend/static/kandev/vendor"
PREPARE = """async ([source, rows, line, lines]) => {
  const { Terminal } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.term = new Terminal({ fontSize: 13, scrollback: 5000, cols: 120, rows });
  window.term.open(document.body.appendChild(document.createElement("div")));
  const [text, chunk] = [new TextEncoder().encode(line.replaceAll("\\n", "\\r\\n").repeat(lines)), 64 * 1024];
  const count = Math.ceil(text.length / chunk);
  window.chunks = Array.from({ length: count }, (_, n) => text.slice(n * chunk, (n + 1) * chunk));
}"""
DRAW = """() => new Promise((done) => {
  const began = performance.now();
  for (const chunk of window.chunks) window.term.write(chunk);
  window.term.write("", () => requestAnimationFrame(() => done(performance.now() - began)));
})"""
IDLE = "() => new Promise((done) => requestIdleCallback(done))"
SHOWS = """(words) => [...document.querySelectorAll(".xterm-rows > div")]
  .some((row) => row.textContent.replaceAll("\\u00a0", " ").startsWith(words))"""


def of_a_shell(world: World, megabytes: int, keystrokes: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure ``cat`` of a long file until its end has arrived, and the echo of a keystroke."""
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    with serving("kandev.asgi:application") as port, running_session(world, "Loud") as session:
        execution = ExecutorRunning.objects.get(session=session)
        text = Path(execution.workspace_path) / "long.txt"
        text.write_bytes(LINE * (megabytes * MEGABYTE // len(LINE)))
        token = Token.objects.get_or_create(user=world.user)[0].key
        url = f"http://127.0.0.1:{port}/ws/sessions/{session.id}/shell/?shell=bench"
        (reads, bare_reads), (echoes, bare_echoes) = asyncio.run(_over_socket(url, token, text, keystrokes, rounds))
        on_screen = _on_screen(world, port, session, text, rounds)
    bare, limit = "bare PTY read", READ_LIMIT if limited else None
    # Medians: how fast a bare read is depends on the cores that its three processes happen to get.
    rows = [("to a socket", median(reads), bare, median(bare_reads), limit)]
    if on_screen:
        shown, read, drawn = on_screen
        rows += [("to the screen", shown, bare, read, None), ("to the screen", shown, "xterm.js alone", drawn, None)]
    bare_echo = quantile(bare_echoes, 0.95) + ECHO_ALLOWANCE
    return [
        *(
            Figure(f"terminal, {megabytes} MB {where}", seconds, beside, floor, "MB/s", megabytes, most)
            for where, seconds, beside, floor, most in rows
        ),
        Figure(
            "keystroke echo, p95",
            quantile(echoes, 0.95),
            "bare PTY, p95, + 15 ms",
            bare_echo,
            limit=1.0 if limited else None,
        ),
    ]


# -- a client without a screen


class _Client:
    """A client of a shell that acknowledges output as the page does."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket
        self._end = b""
        self._taken = self._acked = 0

    async def type(self, text: str) -> None:
        await self._socket.send_bytes(text.encode())

    async def wait_for(self, words: bytes) -> None:
        """Read until ``words`` have arrived."""
        while words not in self._end:
            data = await self._socket.receive_bytes(timeout=60)
            self._end = self._end[-len(words) :] + data
            self._taken += len(data)
            if self._taken - self._acked >= ACK_EVERY:
                self._acked = self._taken
                await self._socket.send_str(orjson.dumps({"ack": self._taken}).decode())
        self._end = self._end.partition(words)[2]


@asynccontextmanager
async def _shell(url: str, token: str) -> AsyncIterator[_Client]:
    headers = {"Authorization": f"Token {token}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(url, max_msg_size=0) as socket:
        assert "shell" in await socket.receive_json(timeout=60)
        yield _Client(socket)


async def _over_socket(
    url: str, token: str, text: Path, keystrokes: int, rounds: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the seconds of each read and of each echo, beside those of a bare PTY."""
    async with _shell(url, token) as client:

        async def read() -> None:
            await client.type(f"cat {text.name}; echo over-$((1))\n")
            await client.wait_for(b"over-1")

        await client.type("echo over-$((1))\n")
        await client.wait_for(b"over-1")
        reads = await in_turn(rounds, read, lambda: _read(text))
        await client.type("echo over-$((1)); cat\n")  # the terminal itself echoes
        await client.wait_for(b"over-1\r\n")

        async def echo() -> None:
            await client.type("x")
            await client.wait_for(b"x")

        return reads, await _in_turn_typed(keystrokes, echo)


async def _in_turn_typed(count: int, echo: Callable[[], Awaitable[None]]) -> list[list[float]]:
    """Return the seconds of each echo, with a pause before each keystroke as in typing."""
    ours, theirs = os.openpty()

    def bare() -> None:
        os.write(ours, b"x")
        os.read(ours, 1)

    taken: list[list[float]] = [[], []]
    try:
        for _ in range(count):
            for run, seconds in zip((echo, bare), taken, strict=True):
                await asyncio.sleep(KEYSTROKE_PAUSE)
                seconds.append(await seconds_of(run))
    finally:
        os.close(ours)
        os.close(theirs)
    return taken


# -- the page


def _on_screen(world: World, port: int, session: TaskSession, text: Path, rounds: int) -> tuple[float, ...]:
    """Return the best seconds until the last line is shown, of a bare read and of xterm.js; () without a browser."""
    if missing("chromium") or missing("terminal"):
        return ()
    with real_browser() as browser:
        page = Visit(browser, f"http://127.0.0.1:{port}", cookie_of(world)).page
        page.goto(reverse("session", args=[session.task_id, session.id]))
        page.get_by_role("tab", name="Terminal").click()
        page.locator(".xterm-helper-textarea").focus()
        _until(page, "ready-", "echo ready-$((1))")
        alone = browser.new_page()
        alone.add_style_tag(path=VENDOR / "xterm.css")
        source, lines = (VENDOR / "xterm.js").read_text(), page.locator(".xterm-rows > div").count()
        alone.evaluate(PREPARE, [source, lines, LINE.decode(), text.stat().st_size // len(LINE)])
        taken = []
        for number in range(min(rounds, 3)):
            page.bring_to_front()
            page.evaluate(IDLE)
            shown = (_shown(page, number), _read(text))
            alone.bring_to_front()
            alone.evaluate(IDLE)
            taken.append((*shown, alone.evaluate(DRAW) / 1000))
    return tuple(min(one) for one in zip(*taken, strict=True))


def _shown(page: Page, number: int) -> float:
    """Return the seconds from the Enter key until the last word is shown."""
    began = time.perf_counter()
    _until(page, f"over-{number}-", f"cat long.txt; echo over-{number}-$((1))")
    return time.perf_counter() - began


def _until(page: Page, words: str, command: str) -> None:
    page.keyboard.type(command)
    page.keyboard.press("Enter")
    eventually(lambda: page.evaluate(SHOWS, f"{words}1"), timeout=120, describe=f"the terminal shows {words}")


def _read(text: Path) -> float:
    """Return the seconds to read the whole file from a PTY."""
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
