"""A shell is a real terminal that survives its readers, has limits, and ends with agentctl."""

from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc
from pathlib import Path

import aiohttp
import pytest

from executors_app.agentctl.workspace.scrollback import SCROLLBACK_BYTES, Scrollback
from executors_app.agentctl.workspace.shells import MAX_SHELLS
from executors_app.machine.process import identity
from executors_app.wire.protocol import CLOSE_OVERTAKEN
from tests.agentctl.running import Running, agentctl
from tests.agentctl.shells import Typist, shell
from tests.waiting import eventually, eventually_async


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use a shell that every machine has, without a user's settings."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KANDEV_SECRET_KEY", "a secret of the control plane")


async def test_shell_runs_in_the_workspace_on_its_own_terminal(running: Running) -> None:
    async with shell(running, cols=101, rows=37) as typist:
        assert typist.hello == {"shell": "main", "offset": 0, "running": True, "new": True, "replay": 0}
        await typist.type("pwd; stty size; test -t 0 && echo is-a-$((1+1))-tty\n")
        await typist.wait_for("is-a-2-tty")
        assert str(running.workspace).encode() in typist.output
        assert b"37 101" in typist.output
        await typist.resize(50, 20)
        await typist.type("stty size\n")
        await typist.wait_for("20 50")
    assert (await running.get("/status"))["workspace"]["shells"] == 1


@pytest.mark.parametrize(("last", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("sleep 600 & exit 3", 3)])
async def test_exit_code_is_reported_and_the_name_is_reusable(running: Running, last: str, code: int) -> None:
    async with shell(running) as typist:
        await typist.type(f"echo last-$((40+2))\n{last}\n")
        assert await typist.ends() == code
        assert b"last-42" in typist.output
        assert typist.socket.close_code == aiohttp.WSCloseCode.OK
    async with shell(running) as typist:
        assert (typist.hello["running"], typist.hello["offset"]) == (True, 0)
        await typist.type("echo fresh-$((1+1))\n")
        await typist.wait_for("fresh-2")
        assert b"last-42" not in typist.output


async def test_shell_survives_a_reload_with_its_scrollback(running: Running) -> None:
    async with shell(running) as typist:
        await typist.type("here=me; echo before-$((1+1))\n")
        await typist.wait_for("before-2")
    async with shell(running) as typist:
        assert typist.hello["new"] is False
        await typist.wait_for("before-2")
        await typist.type("echo still-$here\n")
        await typist.wait_for("still-me")


async def test_replay_is_counted_so_that_no_terminal_answers_it(running: Running) -> None:
    async with shell(running) as typist:
        await typist.type("stty -echo; printf '\\033[c\\033[6n'; echo asked-$((1+1))\n")
        await typist.wait_for("asked-2")
        seen = len(typist.output)
    async with shell(running) as typist:
        assert typist.hello["replay"] >= seen
        await typist.wait_for("asked-2")
        await typist.type("echo new-$((1+1))\n")
        await typist.wait_for("new-2")
        assert len(typist.output) > typist.hello["replay"], "what is new is not a replay"


async def test_full_screen_program_draws_again_after_its_beginning_was_dropped(running: Running) -> None:
    async with shell(running, cols=90, rows=30) as typist:
        await typist.type("stty -echo; printf '\\033[?1049h\\033[?25l'; seq 400000\n")
        # A program of its own: the kernel tells the processes in the foreground of a change of the size.
        loop = "while :; do sleep 0.1; done"
        await typist.type(f"exec sh -c 'trap \"echo redrawn\" WINCH; echo ready-$((1+1)); {loop}'\n")
        await typist.wait_for("ready-2")
    async with shell(running, cols=90, rows=30) as typist:
        await typist.wait_for("redrawn")
        assert typist.output.startswith(b"\x1b[?1049h\x1b[?25l")


async def test_output_and_exit_without_a_reader_are_replayed_later(running: Running) -> None:
    async with shell(running) as typist:
        await typist.type("sleep 0.2; echo meanwhile-$((1+1)); exit 5\n")
        await typist.wait_for("sleep")

    async def has_ended() -> bool:
        return (await running.get("/status"))["workspace"]["shells"] == 0  # type: ignore[no-any-return]

    await eventually_async(has_ended)
    async with shell(running) as typist:
        assert typist.hello["running"] is False
        assert await typist.ends() == 5
        assert b"meanwhile-2" in typist.output


async def test_shells_are_independent(running: Running) -> None:
    async with shell(running, "one") as one, shell(running, "two") as two:
        await one.type("x=1; echo one-$x\n")
        await two.type("echo two-$x-\n")
        await one.wait_for("one-1")
        await two.wait_for("two--")
    assert (await running.get("/status"))["workspace"]["shells"] == 2


async def test_second_reader_takes_the_shell_over(running: Running) -> None:
    async with shell(running) as first, shell(running) as second:
        await first.ends()
        assert first.socket.close_code == CLOSE_OVERTAKEN
        await second.type("echo mine-$((1+1))\n")
        await second.wait_for("mine-2")


async def test_control_c_interrupts_the_running_program(running: Running) -> None:
    async with shell(running) as typist:
        trapped = """trap 'echo caught-$((1+1)); exit' INT; echo begin-$((1+1)); while :; do sleep 1; done"""
        await typist.type(f'sh -c "{trapped}"\n'.replace("$", "\\$"))
        await typist.wait_for("begin-2")
        await typist.type("\x03")
        await typist.wait_for("caught-2")


async def test_bytes_are_passed_unchanged(running: Running) -> None:
    async with shell(running) as typist:
        await typist.type("stty -opost; printf '\\377\\000gr\\303\\274\\303'; printf '\\237e'; echo -end\n")
        await typist.wait_for("-end\n")
        assert b"\xff\0gr\xc3\xbc\xc3\x9fe-end" in typist.output


async def test_environment_holds_no_control_plane_secrets(running: Running) -> None:
    async with shell(running) as typist:
        await typist.type("env; echo done-$((1+1))\n")
        await typist.wait_for("done-2")
        assert b"KANDEV_SECRET_KEY" not in typist.output
        assert b"TERM=xterm-256color" in typist.output


async def test_slow_reader_pauses_its_shell_and_loses_nothing(running: Running, tmp_path: Path) -> None:
    size = 12_000_000
    async with shell(running) as typist:
        await typist.type(
            f"stty -echo -opost; head -c {size} /dev/zero | tr '\\0' x; touch {tmp_path}/said; echo -end\n"
        )
        # nothing is read: the socket buffers fill up, then the shell blocks
        with pytest.raises(AssertionError):
            await eventually_async((tmp_path / "said").exists, timeout=1)
        assert running.sidecar.workspace.shells._shells["main"].scrollback.end < size
        await typist.wait_for("-end\n")
        assert typist.output.count(b"x") >= size


async def test_output_is_gathered_into_large_frames(running: Running, tmp_path: Path) -> None:
    size = SCROLLBACK_BYTES - 1000
    async with shell(running) as typist:
        await typist.type("stty -echo -opost; echo quiet-$((1+1))\n")
        await typist.wait_for("quiet-2")
        await typist.type(f"head -c {size} /dev/zero | tr '\\0' x; touch {tmp_path}/said\n")
    await eventually_async((tmp_path / "said").exists)
    async with shell(running) as typist:
        frames = 0
        while typist.output.count(b"x") < size:
            assert await typist._next()
            frames += 1
        assert frames <= 6


async def test_only_the_end_of_unread_output_is_kept(running: Running, tmp_path: Path) -> None:
    async with shell(running) as typist:
        await typist.type(f"stty -echo; seq 400000; touch {tmp_path}/said; echo -end\n")
        await typist.wait_for("stty")
    await eventually_async((tmp_path / "said").exists)
    async with shell(running) as typist:
        await typist.wait_for("400000\r\n-end")
        assert len(typist.output) <= SCROLLBACK_BYTES + (128 << 10), (
            "the replay has at most the scrollback and what arrived meanwhile"
        )
        assert typist.hello["offset"] > 0
        assert typist.output[:6].strip().isdigit(), "the replay begins with a whole line"


async def test_shell_that_reads_no_input_blocks_only_its_own_typist(running: Running) -> None:
    async with shell(running, "stuck") as typist:
        await typist.type("stty raw -echo; echo ready-$((1+1)); sleep 600\n")
        await typist.wait_for("ready-2")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    await typist.socket.send_bytes(b"x" * 65536)
        assert len(running.sidecar.workspace.shells._shells["stuck"]._input) < 3 << 20
        assert (await running.get("/health"))["status"] == "ok"


@pytest.mark.parametrize(
    "query",
    ["cols=0", "rows=0", "cols=1001", "cols=x", "rows=-1", "shell=a/b", "shell=", "shell=..", "shell=" + "x" * 33],
)
async def test_invalid_shell_request_is_refused(running: Running, query: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with running.http.ws_connect(f"{running.url}/shell?{query}", headers=running.headers):
            pass
    assert caught.value.status == 400
    assert (await running.get("/status"))["workspace"]["shells"] == 0


@pytest.mark.parametrize("text", ["", "x", "[]", '{"resize": [0, 1]}', '{"resize": [true, 5]}', '{"resize": "ab"}'])
async def test_invalid_text_message_is_reported_and_changes_nothing(running: Running, text: str) -> None:
    async with shell(running, cols=80, rows=24) as typist:
        await typist.socket.send_str(text)
        await typist.type("stty size\n")
        await typist.wait_for("24 80")
        assert [list(one) for one in typist.messages] == [["error"]]


async def test_number_of_shells_is_limited(running: Running) -> None:
    for number in range(MAX_SHELLS):
        async with shell(running, f"n{number}"):
            pass
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with shell(running, "one-more"):
            pass
    assert caught.value.status == 409
    async with shell(running, "n0") as typist:
        await typist.type("exit\n")
        await typist.ends()
    async with shell(running, "one-more") as typist:
        assert typist.hello["running"]


async def test_shell_requires_a_token(running: Running) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with running.http.ws_connect(f"{running.url}/shell"):
            pass
    assert caught.value.status == 401


async def test_missing_workspace_has_no_shell(running: Running) -> None:
    running.workspace.rmdir()
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with shell(running):
            pass
    assert caught.value.status == 404


async def _starts(typist: Typist, command: str, pid_file: Path) -> int:
    await typist.type(f"{command} sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600' &\n")
    await eventually_async(pid_file.exists)
    return int(pid_file.read_text())


JOBS = {
    "a job": "",
    "a job that ignores the hang-up": "nohup",
    "a job in its own session": "setsid",
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
async def test_shell_and_its_processes_end_with_agentctl(tmp_path: Path, job: str) -> None:
    async with agentctl(tmp_path) as running:
        async with shell(running) as typist:
            pid = await _starts(typist, job, tmp_path / "pid")
            started = identity.identify(pid)
            assert started
            (inner,) = [one.terminal.pid for one in running.sidecar.workspace.shells._shells.values()]
        assert identity.is_alive(started)
    for left in [one for one in (identity.identify(inner), started) if one]:
        eventually(lambda: not identity.is_alive(left))  # noqa: B023


async def test_shell_that_ignores_hangup_is_killed(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running, shell(running) as typist:
        await typist.type("trap '' HUP TERM; echo deaf-$((1+1))\n")
        await typist.wait_for("deaf-2")
        (terminal,) = [one.terminal for one in running.sidecar.workspace.shells._shells.values()]
        await running.sidecar.workspace.shells.close()
        assert await typist.ends() == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{terminal.pid}/fd/0")  # noqa: PTH110


def test_truncated_replay_starts_at_a_whole_line() -> None:
    kept = Scrollback(limit=10)
    for chunk in (b"12345\n", b"\x1b[31m6", b"\n789\nabc"):
        kept.append(chunk)
    assert (kept.start, kept.end) == (6, 20)
    assert kept.read(kept.replay_start(), 100) == b"789\nabc"
    assert kept.read(0, 3) == b"\x1b[3"
    assert kept.read(20, 3) == b""


def test_output_of_single_bytes_is_kept_compactly() -> None:
    kept = Scrollback()
    tracemalloc.start()
    try:
        for number in range(100_000):
            kept.append(b"%d" % (number % 10))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 200_000
    assert kept.read(99_990, 100) == b"0123456789"
