"""House rules that no linter checks: readers of environment variables, unfinished work, links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from executors_app.machine import crash_points
from tests.services import ROOT
from tests.source_files import source_files

CODE = ("kandev", "executors_app", "sessions_app")

ENVIRONMENT_READERS = {
    "kandev/environment.py",
    "kandev/healthcheck.py",  # a separate program that runs every ten seconds, too often to load Django's settings
    "kandev/liveness.py",  # the same for supervisors and workers in a cluster
    "executors_app/machine/process/spawning.py",
    "executors_app/agentctl_client/cluster_access.py",  # where a cluster puts the address of its API for Pods
    "executors_app/demo_agent/agent.py",  # an agent: a separate program that imports nothing from the project
}
SETTINGS_MODULE_SETTERS = {"manage.py", "kandev/asgi.py"}
"""They set only ``DJANGO_SETTINGS_MODULE``."""

UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home/\w+)/")


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of these folders, without migrations."""
    return [path for path in source_files(*folders) if "migrations" not in path.parts]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Forget the parsed files after this module: they take hundreds of megabytes."""
    yield
    tree_of.cache_clear()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ALL = [*python_files(*CODE, "tests"), ROOT / "manage.py"]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, at any depth; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reads_environment(path: Path) -> bool:
    attributes = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute))
    return any(
        isinstance(node.value, ast.Name) and node.value.id == "os" and node.attr in {"environ", "getenv", "environb"}
        for node in attributes
    ) or any(name in {"os.environ", "os.getenv"} for name in imports_of(path))


def test_only_listed_modules_read_the_environment() -> None:
    readers = {name_of(path) for path in [*python_files(*CODE), ROOT / "manage.py"] if reads_environment(path)}
    assert readers <= ENVIRONMENT_READERS | SETTINGS_MODULE_SETTERS


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished work", "path on one machine"])
def test_no_line_contains(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in ALL
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_conditional_expression_holds_one_condition() -> None:
    nested = [
        f"{path.relative_to(ROOT)}:{outer.lineno}"
        for path in python_files(*CODE)
        for outer in ast.walk(tree_of(path))
        if isinstance(outer, ast.IfExp)
        if any(isinstance(inner, ast.IfExp) for inner in list(ast.walk(outer))[1:])
    ]
    assert nested == [], "a second condition is an if statement or a table"


def test_no_symbolic_link_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")]


def test_every_crash_point_is_reached_in_the_code() -> None:
    code = "".join(path.read_text() for path in python_files(*CODE))
    assert not [name for name in crash_points.POINT_NAMES if f'reached("{name}"' not in code]


def test_lock_files_name_no_host() -> None:
    locks = [
        *(ROOT / "requirements").glob("*.txt"),
        ROOT / "tests" / "real_agents" / "package-lock.json",
        ROOT / "frontend" / "package-lock.json",
    ]
    assert locks
    assert not [path.name for path in locks if "://" in path.read_text()]
