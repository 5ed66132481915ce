"""A pytest plugin for ``pytest -n``: distribute the tests among processes by file, slow areas first.

The tests of a file run in one process, in their order, so module fixtures are created once. Starting a Docker engine
and building its image takes half a minute, so all tests of one engine also run in one process.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SLOW_AREAS: Final = (
    *("docker", "chaos", "drills", "deploy", "house", "workflows", "remote", "sprites", "bench", "portable", "pages"),
    *("real_agents", "live"),
)
"""Areas whose tests start many processes or wait. They start first, so that no process is left with one at the end."""
WITHOUT_ENGINE: Final = "tests/hostile_agent/test_sprite"
"""Prefix of the hostile agent's tests that use no Docker engine."""


def file_priority(file: str) -> int:
    """Return the sort key of a test file; lower numbers start earlier."""
    area = file.removeprefix("tests/").partition("/")[0]
    return SLOW_AREAS.index(area) if area in SLOW_AREAS else len(SLOW_AREAS)


def engine_of(nodeid: str) -> str:
    """Return the name of the Docker engine that a test uses; an empty string if it uses none."""
    if nodeid.startswith("tests/docker/"):
        is_remote = nodeid.startswith("tests/docker/test_remote_engine_")
    elif nodeid.startswith("tests/hostile_agent/") and not nodeid.startswith(WITHOUT_ENGINE):
        is_remote = "remote_docker" in nodeid
    else:
        return ""
    return "the remote engine" if is_remote else "the engine"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Schedule each file, and all tests of a Docker engine, as one unit of work."""

    def _split_scope(self, nodeid: str) -> str:
        return engine_of(nodeid) or str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """Return the scheduler; it keeps the collection's order, which is sorted below."""
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by priority in worker processes."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: file_priority(item.nodeid))


class FailureReporter:
    """Print the name of a failed test at once; the traceback still follows at the end of the run."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\nFAILED ({report.when}): {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Report failures at once in the process that distributes the tests."""
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(FailureReporter(config))
