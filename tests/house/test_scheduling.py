"""The longest units of work start first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.xdist_scheduler import ENGINES, RunDurations, longest, unit_of

UNITS = ["tests/kernel/test_locking.py", "tests/drills/test_sweeps.py", "tests/stream/live/test_served.py"]


def test_units_without_a_known_duration_are_ordered_by_area() -> None:
    assert longest([*UNITS, ENGINES[0]], {}) == ENGINES[0]
    assert longest(UNITS, {}) == "tests/drills/test_sweeps.py"
    assert longest([UNITS[0], "tests/kernel/test_event.py"], {}) == UNITS[0]


def test_known_durations_come_before_estimates() -> None:
    assert longest(UNITS, {UNITS[0]: (300.0, 9), UNITS[1]: (1.0, 2)}) == UNITS[0]
    assert longest(UNITS[:2], {UNITS[1]: (1.0, 2)}) == UNITS[1]


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("tests/kernel/test_locking.py::test_x[a::b]", "tests/kernel/test_locking.py"),
        ("tests/docker/test_containers.py::test_x", ENGINES[0]),
        ("tests/docker/test_remote_engine_config.py::test_x", ENGINES[1]),
        ("tests/hostile_agent/test_files.py::test_x[remote_docker]", ENGINES[1]),
        ("tests/kubernetes/test_cluster.py::test_x", ENGINES[2]),
        ("tests/hostile_agent/test_sprites.py::test_x", "tests/hostile_agent/test_sprites.py"),
    ],
)
def test_unit_is_a_file_or_an_engine(test: str, unit: str) -> None:
    assert unit_of(test) == unit


class Cache(dict[str, Any]):
    """The cache of pytest, in memory."""

    def set(self, key: str, value: object) -> None:
        self[key] = value


def run(cache: Cache, seconds: dict[str, float]) -> None:
    """Measure a run of tests."""
    durations = RunDurations(cache, "sqlite")
    for test, duration in seconds.items():
        report: Any = SimpleNamespace(nodeid=f"{UNITS[0]}::{test}", duration=duration)
        durations.pytest_runtest_logreport(report)
    durations.pytest_sessionfinish()


def test_durations_are_remembered_except_those_of_a_part() -> None:
    cache = Cache()
    run(cache, {"a": 1.0, "b": 2.0})
    run(cache, {"a": 9.0})
    (known,) = cache.values()
    assert known == {UNITS[0]: (3.0, 2)}
    run(cache, {"a": 0.5, "b": 0.5})
    (known,) = cache.values()
    assert known == {UNITS[0]: (1.0, 2)}
