"""The checks of ``make soak`` can fail: each sees what it is there for, and lets pass what is right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.soak import soak
from tests.soak.deployment import left_running
from tests.soak.invariants import Seen, violations
from tests.soak.memory import ENOUGH, Life, private
from tests.soak.report import verdict
from tests.soak.soak import Result

RIGHT = {
    "given": {"p1": "s"},
    "heard": {"s": ["p1"]},
    "prompts": {"p1": "done"},
    "said": {"s": ["p1"]},
    "numbers": {"s": (3, 3, 3)},
    "states": {"s": ("WAITING_FOR_INPUT", "ready")},
    "open_runs": {"s": 0},
    "up": {"s"},
}


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, set()),
        ({"prompts": {"p1": "held"}, "heard": {}, "said": {}}, set()),
        ({"heard": {"s": ["p1", "p1"]}}, {"nothing twice", "nothing lost"}),
        ({"said": {"s": ["p1", "p1"]}}, {"nothing twice", "nothing lost"}),
        ({"said": {"s": []}}, {"nothing lost"}),
        ({"prompts": {}}, {"nothing lost"}),
        ({"prompts": {"p1": "queued"}}, {"nothing lost"}),
        ({"heard": {}, "said": {}}, {"nothing lost"}),
        ({"numbers": {"s": (3, 4, 4)}}, {"no gap"}),
        ({"numbers": {"s": (3, 3, 4)}}, {"no gap"}),
        ({"states": {"s": ("ERROR", "ready")}}, {"every state as it should be"}),
        ({"open_runs": {"s": 1}}, {"every state as it should be"}),
        ({"up": set()}, {"no orphans"}),
        ({"states": {"s": ("WAITING_FOR_INPUT", "stopped")}}, {"every state as it should be", "no orphans"}),
    ],
)
def test_a_check_sees_what_it_is_there_for(changed: dict[str, object], broken: set[str]) -> None:
    found = violations(Seen(**{**RIGHT, **changed}))  # type: ignore[arg-type]
    assert {name for name, some in found.items() if some} == broken


@pytest.mark.parametrize(
    ("samples", "too_much"),
    [
        ([80.0] * ENOUGH, False),
        ([20.0] * (ENOUGH // 2) + [80.0] * (ENOUGH // 2), False),
        ([80.0 + number / 2 for number in range(ENOUGH)], False),
        ([80.0 + 2 * number for number in range(ENOUGH)], True),
        ([80.0, 800.0], False),
    ],
    ids=["flat", "starting up", "small growth", "leak", "too few samples"],
)
def test_growth_counts_once_a_process_is_up(samples: list[float], too_much: bool) -> None:
    assert Life("web", 1, samples).grew_too_much is too_much


def test_memory_is_what_a_process_has_for_itself() -> None:
    assert 5 < private(os.getpid()) < 5000
    assert private(2**22 + 1) == 0.0


def test_what_still_runs_of_a_deployment_is_found(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        try:
            assert left_running(tmp_path) == [f"process {process.pid} still runs"]
        finally:
            process.kill()
    assert left_running(tmp_path) == []


def test_patience_counts_from_the_last_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tests.soak.soak.time.monotonic", lambda: now)
    patience, ended = soak.Patience(10.0), []
    for now, left in ((5.0, 7), (14.0, 6), (20.0, 9), (24.5, 6)):  # noqa: B007 - the clock reads it
        ended.append(patience.ends(left))
    assert ended == [False, False, False, True]


def test_the_verdict_names_what_broke() -> None:
    assert verdict(Result(broken={"no gap": [], "no orphans": []})) == "GREEN: all of 2 invariants held"
    assert verdict(Result(broken={"no gap": ["one", "two"], "no orphans": []})) == "BROKEN: no gap (2)"
