"""The liveness probe: a process that hangs is restarted, and one that waits for its database is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kandev import liveness
from sessions_app.kernel import beat_file
from sessions_app.kernel.beat_file import BeatFile
from tests import postgresql
from tests.migrated_database import copy_migrated
from tests.services import ROOT
from tests.supervisor.commands import Running, environment
from tests.waiting import eventually

HOUR = 3600.0
LIMIT = "2"
"""Seconds; in a deployment they are minutes."""


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    """Yield a PostgreSQL that a test may stop."""
    with postgresql.own_server() as made:
        yield made


@pytest.fixture
def beat(tmp_path: Path) -> Path:
    return tmp_path / "beat"


def probe(beat: Path, url: str, limit: str = LIMIT) -> tuple[int, str]:
    """Return the status of the probe, and what it says."""
    env = {**os.environ, "KANDEV_BEAT_PATH": str(beat), "KANDEV_DATABASE_URL": url}
    command = [sys.executable, "-P", str(ROOT / "kandev" / "liveness.py"), limit]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def touched(beat: Path, seconds_ago: float) -> None:
    beat.touch()
    at = beat.stat().st_mtime - seconds_ago
    os.utime(beat, (at, at))


@pytest.mark.parametrize(("every", "again"), [(HOUR, False), (0.0, True)])
def test_file_is_touched_at_most_every_few_seconds(
    beat: Path, every: float, again: bool, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.KANDEV_BEAT_PATH = beat  # type: ignore[attr-defined]
    monkeypatch.setattr(beat_file, "TOUCH_EVERY", every)
    file = BeatFile()
    file.touch()
    beat.unlink()
    file.touch()
    assert beat.exists() == again


def test_file_that_cannot_be_touched_is_logged_once(
    tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.KANDEV_BEAT_PATH = tmp_path / "missing" / "beat"  # type: ignore[attr-defined]
    monkeypatch.setattr(beat_file, "TOUCH_EVERY", 0)
    file = BeatFile()
    file.touch()
    file.touch()
    assert caplog.text.count("cannot be touched, so this process looks as if it hung") == 1


def test_process_that_goes_on_is_healthy_whatever_its_database_does(beat: Path) -> None:
    touched(beat, 0)
    assert probe(beat, "postgres://127.0.0.1:1/x") == (0, "")


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_embedded_database_always_answers(beat: Path, seconds: float) -> None:
    """A file of the future, because the clock was set back, says as little as one of the past."""
    touched(beat, seconds)
    status, says = probe(beat, "")
    assert (status, says.startswith("The process has done nothing for 3")) == (1, True)
    assert says.endswith(" s, although its database answers.\n")


def test_process_that_never_went_on_is_named(beat: Path) -> None:
    assert probe(beat, "") == (1, "The process has done nothing since its start, although its database answers.\n")


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_process_is_not_judged_without_its_database(beat: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs accepts connections, because the kernel does, and answers nothing."""
    monkeypatch.setattr(liveness, "ANSWERS_WITHIN", 0.2)
    monkeypatch.setenv("KANDEV_BEAT_PATH", str(beat))
    monkeypatch.delenv("KANDEV_DATABASE_URL_FILE", raising=False)
    monkeypatch.setattr(sys, "argv", ["liveness.py"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not hangs:
            listener.close()
        monkeypatch.setenv("KANDEV_DATABASE_URL", f"postgres://kandev:secret@127.0.0.1:{port}/kandev")
        assert liveness.main() == 0


def test_database_url_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("postgres://db/kandev\n")
    monkeypatch.setenv("KANDEV_DATABASE_URL_FILE", str(tmp_path / "url"))
    assert liveness.read_database_url() == "postgres://db/kandev"


def test_process_is_not_judged_while_the_file_with_its_database_url_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANDEV_BEAT_PATH", str(tmp_path / "beat"))
    monkeypatch.setenv("KANDEV_DATABASE_URL_FILE", str(tmp_path / "missing"))
    monkeypatch.setattr(sys, "argv", ["liveness.py"])
    assert liveness.main() == 0


@pytest.mark.postgresql
def test_hanging_process_is_found_and_one_that_waits_for_its_database_is_not(
    tmp_path: Path, server: postgresql.Server
) -> None:
    url = server.new_database()
    copy_migrated(url)
    server.stop()
    with started("supervise", url, tmp_path) as supervisor, started("qcluster", url, tmp_path) as worker:
        both = ((supervisor, tmp_path / "supervise"), (worker, tmp_path / "qcluster"))
        for running, beat in both:
            running.wait_for_output("the database cannot be reached, waiting for it")
            assert (beat.exists(), probe(beat, url)) == (False, (0, ""))
        server.start()
        for running, beat in both:
            eventually(beat.exists, timeout=60, describe="it has gone on")
            running.process.send_signal(signal.SIGSTOP)
        for _, beat in both:
            eventually(lambda beat=beat: probe(beat, url)[0] == 1, timeout=60, describe="it is found")  # type: ignore[misc]
        server.stop()
        for running, beat in both:
            assert probe(beat, url) == (0, "")
            running.process.send_signal(signal.SIGCONT)
        server.start()
        for running, beat in both:
            eventually(lambda beat=beat: probe(beat, url, "30") == (0, ""), timeout=60, describe="it goes on")  # type: ignore[misc]
            assert running.process.poll() is None


@contextmanager
def started(command: str, url: str, home: Path) -> Iterator[Running]:
    """Run a command that waits for its database, which ends with the block."""
    beat = {"KANDEV_BEAT_PATH": str(home / command), "KANDEV_LEASE_TTL": "3", "KANDEV_LOG_FORMAT": "console"}
    env = environment(home / f"data of {command}", KANDEV_DATABASE_URL=url, **beat)
    running = Running(env, home / f"{command}.log", command, "--wait-for-database")
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGCONT)
        running.ends(signal.SIGKILL)
