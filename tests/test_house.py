"""House rules that no linter checks: sizes, readers of environment variables, what agentctl may import."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from executors_app import crash_points
from tests.services import ROOT

CODE = ("kandev", "executors_app", "sessions_app")
LONGEST_FILE = 400
LONG_FILES: dict[str, int] = {}
"""Files that may be longer, with their limit."""
LONGEST_FUNCTION = 60

ENVIRONMENT_READERS = {
    "kandev/environment.py",
    "kandev/healthcheck.py",  # a separate program that runs every ten seconds, too often to load Django's settings
    "executors_app/agentctl/process/spawning.py",
    "executors_app/demo_agent.py",  # an agent: a separate program that imports nothing from the project
}
SETTINGS_MODULE_SETTERS = {"manage.py", "kandev/asgi.py"}
"""They set only ``DJANGO_SETTINGS_MODULE``."""

SHARED_WITH_AGENTCTL = {
    "protocol",
    *("process.identity", "process.spawning"),
    "process.execution_processes",  # finds the processes of an execution on a machine
    "journal.line_format",
    "agent_settings",  # the shape of what an agent reports, checked on both sides
    *("workspace.workspace_root", "workspace.worktrees", "workspace.recovery_snapshots"),
    *("workspace.git", "workspace.repository_git", "workspace.files"),
    *(
        "http.sockets",
        "http.bulk_status",
    ),  # proves who listens on a socket and sends requests, in the same way on both sides
    "questions",  # the questions an agent may ask, and which answers are valid
    *("local_runtime.storage", "local_runtime.launch", "local_runtime.machine"),  # agentctl host uses them elsewhere
}
"""The modules of agentctl that the control plane may import."""
SHARED_BELOW = ("executors_app.crash_points", "executors_app.domain", "executors_app.errors")
"""What agentctl may import from outside its package: modules without imports of ours."""

UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home/\w+)/")


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of these folders, without migrations."""
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if "migrations" not in path.parts]


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
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, Function))


def length_of(function: Function) -> int:
    """Return the number of lines in the body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


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


def test_no_file_is_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in ALL}
    long = {name: lines for name, lines in lengths.items() if lines > LONG_FILES.get(name, LONGEST_FILE)}
    assert not long


def test_no_function_is_long() -> None:
    long = {
        f"{name_of(path)}:{function.name}": length
        for path in ALL
        for function in functions_of(path)
        if (length := length_of(function)) > LONGEST_FUNCTION
    }
    assert not long


def test_only_listed_modules_read_the_environment() -> None:
    readers = {name_of(path) for path in [*python_files(*CODE), ROOT / "manage.py"] if reads_environment(path)}
    assert readers <= ENVIRONMENT_READERS | SETTINGS_MODULE_SETTERS


def test_agentctl_imports_neither_django_nor_the_control_plane() -> None:
    for path in python_files("executors_app/agentctl"):
        for name in imports_of(path):
            assert name.split(".")[0] not in {"django", "kandev", "sessions_app", "rest_framework"}, name_of(path)
            ours = name.startswith("executors_app")
            shared = name.startswith(("executors_app.agentctl", *SHARED_BELOW))
            assert not ours or shared, f"{name_of(path)} imports {name}"


def test_control_plane_imports_only_shared_modules_of_agentctl() -> None:
    for path in python_files(*CODE):
        if "agentctl" in path.parts:
            continue
        for name in imports_of(path):
            if name.startswith("executors_app.agentctl."):
                shared = name.removeprefix("executors_app.agentctl.")
                assert shared.startswith(tuple(SHARED_WITH_AGENTCTL)), f"{name_of(path)} imports {name}"


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
def test_no_symbolic_link_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")]


def test_every_crash_point_is_reached_in_the_code() -> None:
    code = "".join(path.read_text() for path in python_files(*CODE))
    assert not [name for name in crash_points.POINT_NAMES if f'reached("{name}"' not in code]


def test_lock_files_name_no_host() -> None:
    locks = [
        *(ROOT / "requirements").glob("*.txt"),
        ROOT / "package-lock.json",
        ROOT / "frontend" / "package-lock.json",
    ]
    assert locks
    assert not [path.name for path in locks if "://" in path.read_text()]
