"""Nobody takes *too many open files* for *there is none*."""

from __future__ import annotations

import ast
import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.agentctl.host.records import _read_json
from executors_app.agentctl.jobs.files import JobFiles
from executors_app.agentctl.process import guard_process, process_tree
from executors_app.agentctl.state_files import TokenFile
from executors_app.agentctl.workspace.submodule_snapshots import _has_entries
from executors_app.machine import untrusted_files
from executors_app.machine.git import git_directory
from executors_app.machine.launch import read_ready_file
from executors_app.machine.storage import StateDirectory
from executors_app.repositories import progress
from executors_app.wire import journal_files
from tests.services import ROOT
from tests.waiting import PATIENCE

OPENING: Final = frozenset(
    {
        *("open", "fdopen", "read_text", "read_bytes", "scandir", "listdir", "iterdir", "walk", "opened"),
        *("read_regular_file", "open_regular_file", "open_file", "_read_proc", "Directory", "directory"),
        *("is_lock_free", "socket", "socketpair", "pidfd_open", "Popen", "run"),
    }
)
"""What needs a descriptor."""
HARMLESS: Final = {
    **dict.fromkeys(
        (
            "executors_app/agentctl/__main__.py main",
            "executors_app/agentctl/volume.py main",
            "executors_app/agentctl/host/daemon.py main",
            "sessions_app/portable/reader.py RecordReader.contents",
            "sessions_app/workflows/loader/client.py load_file_isolated",
            "executors_app/demo_agent/agent.py Turn.tool",
            "sessions_app/management/startup.py _restrict",
        ),
        "the error is reported as what it is",
    ),
    **dict.fromkeys(
        (
            "executors_app/cleanup.py is_idle",
            "sessions_app/maintenance/data_sizes.py measure_directories",
            "executors_app/demo_agent/change.py Change._has_changes",
            "executors_app/machine/git/worktrees.py _is_occupied",
            "executors_app/machine/launch.py has_ended_with_its_host",
            "executors_app/machine/git/ref_locks.py _ref_lock",
        ),
        "the answer is the careful one: it may be there, or it could not be locked",
    ),
    **dict.fromkeys(
        (
            "sessions_app/catalogue/services/repository_checks.py _check",
            "sessions_app/finish/services.py read_merge_state",
            "sessions_app/finish/unfinished.py _count_unmerged",
            "sessions_app/remotes/push_requests.py read_push_state",
            "sessions_app/review/services.py find_base",
            "sessions_app/hosts/heartbeats.py _open_files",
        ),
        "the page shows it as unknown, and nothing is done",
    ),
    **dict.fromkeys(
        (
            "executors_app/agentctl/jobs/files.py JobFiles.tail",
            "executors_app/agentctl/process/guard_process.py command_line_of",
            "executors_app/agentctl/process/subreaper.py _open_file",
            "executors_app/agentctl/process/subreaper.py read_killed_processes",
            "executors_app/agentctl/workspace/branch_review.py _opened",
            "executors_app/machine/launch.py _last_log_line",
            "sessions_app/supervisor/leases.py SupervisorLock.held_by",
        ),
        "a text for people is missing",
    ),
    **dict.fromkeys(
        (
            "executors_app/agentctl/journal.py SegmentStore.make_reserve",
            "executors_app/repositories/ref_files.py remove_stale_lock",
            "sessions_app/kernel/wakeups.py _notify_sockets",
            "sessions_app/recovery/services/restarts.py _read",
        ),
        "it is tried again",
    ),
    "kandev/liveness.py read_database_url": "no process is judged, and the next probe reads it again",
    "sessions_app/portable/export_cursor.py read_cursor": "the export begins again, and writes no line twice",
    "sessions_app/pages/assets.py read_bundles": "the pages load the sources instead",
    **dict.fromkeys(
        ("executors_app/demo_agent/agent.py Turn.has_written", "executors_app/demo_agent/change.py _read"),
        "the demonstration only",
    ),
}
"""Places that take such an error for another answer, and why that does no harm."""


def suppressing_places() -> Iterator[str]:
    for package in ("executors_app", "sessions_app", "kandev"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node, name in _named(ast.parse(path.read_text()), ()):
                if _suppresses(node):
                    yield f"{path.relative_to(ROOT)} {name}"


def _named(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, child.name)
        yield child, ".".join(inner)
        yield from _named(child, inner)


def _suppresses(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        return _opens(*node.body) and any(_takes_for_absence(handler) for handler in node.handlers)
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(_is_suppress(item.context_expr) for item in node.items) and _opens(node)
    return False


def _takes_for_absence(handler: ast.ExceptHandler) -> bool:
    if "OSError" not in ast.unparse(handler.type or ast.Name("OSError")):
        return False
    names = {ast.unparse(node) for line in handler.body for node in ast.walk(line) if isinstance(node, ast.Name)}
    raises = any(isinstance(node, ast.Raise) for line in handler.body for node in ast.walk(line))
    if raises or names & {"raise_if_exhausted", "is_exhausted"}:
        return False
    return isinstance(handler.body[-1], ast.Return | ast.Continue | ast.Pass | ast.Assign)


def _is_suppress(expression: ast.expr) -> bool:
    is_call = isinstance(expression, ast.Call) and ast.unparse(expression.func).endswith("suppress")
    return is_call and "OSError" in ast.unparse(expression)


def _opens(*nodes: ast.AST) -> bool:
    calls = [one.func for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(ast.unparse(called).rpartition(".")[2] in OPENING for called in calls)


def test_every_place_that_suppresses_such_an_error_is_known_to_be_harmless() -> None:
    found = set(suppressing_places())
    assert (found - set(HARMLESS), set(HARMLESS) - found) == (set(), set())


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing: its limit is the highest descriptor that is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "resume token": lambda folder: TokenFile(folder / "token.json"),
    "journal": journal_files.read_meta,
    "ready file": lambda folder: read_ready_file(StateDirectory(folder)),
    "instance of a host": lambda folder: _read_json(folder / "instance.json"),
    "guard of a job": lambda folder: JobFiles(folder).is_guarded,
    "pointer of a worktree": lambda folder: git_directory.read_git_file(folder / ".git"),
    "worktrees of a repository": lambda folder: list(git_directory.list_records(folder)),
    "file": lambda folder: untrusted_files.read_regular_file(folder / "file", 10),
    "file below a folder": lambda folder: untrusted_files.read_file_below(folder, "file"),
    "submodule": _has_entries,
    "children of a process": lambda _: guard_process.children_of(os.getpid()),
    "process": lambda _: process_tree.read_process(os.getpid()),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_process_without_descriptors_raises_instead_of_finding_nothing(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with no_descriptors(), pytest.raises(OSError) as raised:
        read(tmp_path)
    assert raised.value.errno == errno.EMFILE


@pytest.mark.parametrize("name", ["journal", "file", "submodule"])
def test_what_is_missing_is_read_as_nothing(name: str, tmp_path: Path) -> None:
    assert not READERS[name](tmp_path / "missing")


def test_descendants_that_cannot_be_seen_are_not_all() -> None:
    with no_descriptors():
        found = process_tree.descendants_of([os.getpid()])
    assert (found.processes, found.is_complete) == ([], False)


def test_git_that_cannot_be_seen_counts_as_at_work() -> None:
    with no_descriptors():
        assert progress._work_of([os.getpgrp()]) is None


class StoppedGuard(guard_process.Guard):
    """A guard whose agent is another process of the test."""

    def __init__(self, agent: int, words: int):
        self.agent, self.words = agent, words
        self.kill_at: float | None = None
        self.reaped = self.exited = False


def test_guard_ends_an_agent_that_has_used_up_all_descriptors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def see_nothing(pid: int) -> list[int]:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    def wait_for_ever() -> list[int]:
        pytest.fail("the guard waits for descriptors that only the end of its agent frees")

    monkeypatch.setattr(guard_process, "children_of", see_nothing)
    monkeypatch.setattr(guard_process, "own_children", wait_for_ever)
    words = os.open(tmp_path / "killed", os.O_WRONLY | os.O_CREAT)
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as agent:
        StoppedGuard(agent.pid, words).soft_stop(5.0)
        assert agent.wait(PATIENCE) == -signal.SIGTERM
