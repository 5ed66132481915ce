"""Each check of ``make soak`` finds the violation it is written for and accepts correct records."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.soak import soak
from tests.soak.deployment import remaining_processes
from tests.soak.invariants import Records, find_violations
from tests.soak.memory import MIN_SAMPLES, ProcessMemory, private_megabytes
from tests.soak.report import verdict
from tests.soak.soak import Result

CORRECT = {
    "accepted": {"p1": "s"},
    "received": {"s": ["p1"]},
    "prompts": {"p1": "done"},
    "answers": {"s": ["p1"]},
    "event_counts": {"s": (3, 3, 3)},
    "states": {"s": ("WAITING_FOR_INPUT", "ready")},
    "open_runs": {"s": 0},
    "running": {"s"},
}


@pytest.mark.parametrize(
    ("changed", "violations"),
    [
        ({}, set()),
        ({"prompts": {"p1": "held"}, "received": {}, "answers": {}}, set()),
        ({"received": {"s": ["p1", "p1"]}}, {"no duplicates", "nothing lost"}),
        ({"answers": {"s": ["p1", "p1"]}}, {"no duplicates", "nothing lost"}),
        ({"answers": {"s": []}}, {"nothing lost"}),
        ({"prompts": {}}, {"nothing lost"}),
        ({"prompts": {"p1": "queued"}}, {"nothing lost"}),
        ({"received": {}, "answers": {}}, {"nothing lost"}),
        ({"event_counts": {"s": (3, 4, 4)}}, {"no gap"}),
        ({"event_counts": {"s": (3, 3, 4)}}, {"no gap"}),
        ({"states": {"s": ("ERROR", "ready")}}, {"expected states"}),
        ({"open_runs": {"s": 1}}, {"expected states"}),
        ({"running": set()}, {"no orphans"}),
        ({"states": {"s": ("WAITING_FOR_INPUT", "stopped")}}, {"expected states", "no orphans"}),
    ],
)
def test_each_check_finds_its_violation(changed: dict[str, object], violations: set[str]) -> None:
    found = find_violations(Records(**{**CORRECT, **changed}))  # type: ignore[arg-type]
    assert {name for name, some in found.items() if some} == violations


@pytest.mark.parametrize(
    ("samples", "too_much"),
    [
        ([80.0] * MIN_SAMPLES, False),
        ([20.0] * (MIN_SAMPLES // 2) + [80.0] * (MIN_SAMPLES // 2), False),
        ([80.0 + number / 2 for number in range(MIN_SAMPLES)], False),
        ([80.0 + 2 * number for number in range(MIN_SAMPLES)], True),
        ([80.0, 800.0], False),
    ],
    ids=["flat", "starting up", "small growth", "leak", "too few samples"],
)
def test_growth_counts_once_a_process_is_up(samples: list[float], too_much: bool) -> None:
    assert ProcessMemory("web", 1, samples).grew_too_much is too_much


def test_private_memory_is_measured() -> None:
    assert 5 < private_megabytes(os.getpid()) < 5000
    assert private_megabytes(2**22 + 1) == 0.0


def test_remaining_processes_of_a_deployment_are_found(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        try:
            assert remaining_processes(tmp_path) == [f"process {process.pid} still runs"]
        finally:
            process.kill()
    assert remaining_processes(tmp_path) == []


def test_deadline_is_extended_by_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tests.soak.soak.time.monotonic", lambda: now)
    deadline, ended = soak.ProgressDeadline(10.0), []
    for now, left in ((5.0, 7), (14.0, 6), (20.0, 9), (24.5, 6)):  # noqa: B007 - the clock reads it
        ended.append(deadline.is_over(left))
    assert ended == [False, False, False, True]


def test_verdict_names_what_broke() -> None:
    assert verdict(Result(violations={"no gap": [], "no orphans": []})) == "GREEN: all of 2 invariants held"
    assert verdict(Result(violations={"no gap": ["one", "two"], "no orphans": []})) == "BROKEN: no gap (2)"
