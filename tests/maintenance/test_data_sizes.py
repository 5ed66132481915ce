"""The room that each kind of data takes is measured in bounded time; what cannot be is unknown."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from kandev.metrics import collect_metrics
from sessions_app.hosts.heartbeats import host_name
from sessions_app.maintenance import data_sizes
from sessions_app.models import DataSize
from tests.maintenance.chores import LONG_AGO, run_chore

pytestmark = pytest.mark.django_db
SIZE = 64 << 10


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path


def filled(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(b"x" * SIZE)
    return directory


def sizes() -> dict[str, int | None]:
    return dict(DataSize.objects.values_list("what", "bytes"))


def test_every_kind_of_data_is_measured(data: Path) -> None:
    filled(data / "worktrees" / "a")
    filled(data / "archives")
    filled(data / "repositories")
    done = run_chore("sizes")
    assert (done.failed, done.removed, done.said) == (False, 0, [])
    measured = sizes()
    assert set(measured) == {*data_sizes.DIRECTORIES, data_sizes.DATABASE}
    assert SIZE <= (measured["worktrees"] or 0) < SIZE + (64 << 10)
    assert (measured["archives"] or 0) >= 2 * SIZE
    assert measured["journals"] == 0


def test_files_behind_links_are_not_counted(data: Path) -> None:
    outside = filled(data / "elsewhere")
    (data / "worktrees").mkdir()
    (data / "worktrees" / "link").symlink_to(outside)
    run_chore("sizes")
    assert (sizes()["worktrees"] or 0) < SIZE


def test_what_takes_too_long_is_unknown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(data / "worktrees")

    def slow(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", slow)
    done = run_chore("sizes")
    assert any("worktrees is unknown" in note for note in done.said)
    assert sizes()["worktrees"] is None
    named = {labels["what"] for labels, _ in collect_metrics()["kandev_data_bytes"]}
    assert "worktrees" not in named and "journals" in named


def test_files_that_may_not_be_read_make_the_size_unknown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(data / "worktrees")
    answer = "4096\t/worktrees\n"
    problem = "du: cannot read directory '/worktrees/a': Permission denied\n"
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **options: subprocess.CompletedProcess(args, 1, answer, problem)
    )
    assert data_sizes.measure_directories(("worktrees",)) is None


def test_metric_names_host_and_kind(data: Path) -> None:
    filled(data / "agentctl")
    run_chore("sizes")
    values = {labels["what"]: (labels["host"], value) for labels, value in collect_metrics()["kandev_data_bytes"]}
    host, value = values["journals"]
    assert host == host_name() and value >= SIZE


def test_sizes_of_a_host_that_is_gone_are_forgotten() -> None:
    DataSize.objects.create(host="gone", what="journals", bytes=1, measured_at=LONG_AGO)
    DataSize.objects.create(host="other", what="journals", bytes=1, measured_at=timezone.now())
    run_chore("sizes")
    assert set(DataSize.objects.values_list("host", flat=True)) >= {"other"}
    assert not DataSize.objects.filter(host="gone").exists()


def test_dry_run_measures_nothing() -> None:
    run_chore("sizes", dry_run=True)
    assert not DataSize.objects.exists()
