"""A pytest plugin for ``pytest -n``: distribute the tests among processes by file, the longest first.

The tests of a file run in one process, in their order, so module fixtures are created once. Starting a Docker engine
and building its image takes half a minute, so all tests of one engine, and those of the cluster, run in one process.

How long each unit takes is remembered in pytest's cache, so that no process is left with a long one at the end.
What is not remembered is estimated by its area.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SLOW_AREAS: Final = (
    *(
        "docker",
        "three_hosts",
        "chaos",
        "drills",
        "deploy",
        "house",
        "workflows",
        "remote",
        "sprites",
        "bench",
        "portable",
        "pages",
    ),
    *("real_agents", "live", "web", "hostile_load", "upgrades", "suspensions", "demo", "entrances", "agent_matrix"),
    *("workspace", "agentctl"),
)
"""Folders whose tests start many processes or wait, the slowest first; such a folder may be part of a topic's."""
SLOW_SECONDS: Final = 60.0
"""Estimated duration of a unit in the first of them."""
WITHOUT_ENGINE: Final = "tests/hostile_agent/test_sprite"
"""Prefix of the hostile agent's tests that use no Docker engine."""

CLUSTER_TESTS: Final = "tests/kubernetes/test_cluster"
"""Prefix of the tests that use the Kubernetes cluster."""
ENGINES: Final = ("the engine", "the remote engine", "the cluster")
"""The units of work that consist of all tests of a Docker engine, or of the Kubernetes cluster."""
Durations = dict[str, tuple[float, int]]
"""Seconds and number of tests by unit."""


def estimate(unit: str) -> float:
    """Return the seconds that a unit may take, by its area."""
    if unit in ENGINES:
        return 2 * SLOW_SECONDS
    ranks = [SLOW_AREAS.index(folder) for folder in unit.split("/") if folder in SLOW_AREAS]
    return SLOW_SECONDS - min(ranks, default=SLOW_SECONDS)


def longest(units: Iterable[str], durations: Mapping[str, tuple[float, int]]) -> str:
    """Return the unit that probably takes longest; of equal ones, the first."""
    return max(units, key=lambda unit: durations[unit][0] if unit in durations else estimate(unit))


def engine_of(nodeid: str) -> str:
    """Return the name of the Docker engine or cluster that a test uses; an empty string if it uses none."""
    if nodeid.startswith(CLUSTER_TESTS):
        return ENGINES[2]
    if nodeid.startswith("tests/docker/"):
        is_remote = nodeid.startswith("tests/docker/test_remote_engine_")
    elif nodeid.startswith("tests/hostile_agent/") and not nodeid.startswith(WITHOUT_ENGINE):
        is_remote = "remote_docker" in nodeid
    else:
        return ""
    return ENGINES[is_remote]


def unit_of(nodeid: str) -> str:
    """Return the unit of work that a test belongs to: its engine or its file."""
    return engine_of(nodeid) or nodeid.partition("::")[0]


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Schedule each file, and all tests of a Docker engine, as one unit of work."""

    def __init__(self, config: pytest.Config, log: Any, durations: Durations):
        super().__init__(config, log)
        self.durations = durations

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(longest(self.workqueue, self.durations), last=False)
        super()._assign_work_unit(node)


class RunDurations:
    """Measures units of work in the process that distributes them, and remembers them for later runs."""

    def __init__(self, cache: Any, database: str):
        self._cache, self._key = cache, f"kandev/durations/{database}"
        self.known: Durations = dict(cache.get(self._key, {}))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        unit = unit_of(report.nodeid)
        self._seconds[unit] += report.duration
        self._tests[unit].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Replace what is known, except by measurements of a part of a unit."""
        for unit, tests in self._tests.items():
            if len(tests) >= self.known.get(unit, (0.0, 0))[1]:
                self.known[unit] = (self._seconds[unit], len(tests))
        self._cache.set(self._key, self.known)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """Return the scheduler."""
    config.option.loadscopereorder = False
    durations: Any = config.pluginmanager.get_plugin("run durations")
    return FileScheduling(config, log, durations.known)


class FailureReporter:
    """Print the name of a failed test at once; the traceback still follows at the end of the run."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\nFAILED ({report.when}): {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """In the process that distributes the tests, report failures at once and measure durations."""
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(FailureReporter(config))
        config.pluginmanager.register(RunDurations(config.cache, config.option.database), "run durations")
