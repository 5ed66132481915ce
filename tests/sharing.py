"""The tests shared out among processes, ``pytest -n 3``: file by file, and what takes long first.

A file's tests stay together, in their order, so fixtures of a module are made once. Starting a Docker engine
and building its image takes half a minute, so all tests of one engine are one piece of work.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

FIRST: Final = (
    *("docker", "chaos", "drills", "deploy", "workflows", "remote", "sprites", "bench", "portable", "pages"),
    *("real_agents", "live"),
)
"""Areas whose tests start many processes, or wait; one that began last would be waited for alone."""
ENGINES: Final = {"tests/docker/test_remote_engine_": "the remote engine", "tests/docker/": "the engine"}
"""Whose tests stay together, by how the names of their files begin."""


def order(file: str) -> int:
    """The lower, the sooner a file of this name begins."""
    area = file.removeprefix("tests/").partition("/")[0]
    return FIRST.index(area) if area in FIRST else len(FIRST)


class FileByFile(LoadFileScheduling):  # type: ignore[misc]
    """One piece of work for each file, and one for each of the engines."""

    def _split_scope(self, nodeid: str) -> str:
        engine = next((name for start, name in ENGINES.items() if nodeid.startswith(start)), "")
        return engine or str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    """Keep to the order of the collection, which is ours."""
    config.option.loadscopereorder = False
    return FileByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process that gets a share: what takes long comes first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: order(item.nodeid))


class Teller:
    """Where only dots are shown, a failure is named when it happens; its story follows at the end, as always."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\nFAILED at its {report.when}: {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """In the process that shares out: name failures at once."""
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Teller(config))
