"""Git of the control plane is started in one place, with limits, and nobody reads what it wrote to stderr."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.repositories import git as gits
from executors_app.repositories import git_errors, progress, recovery_refs
from executors_app.repositories.git import CHECK, COPY, LOOKUP, VIEW, Bounds, Git, GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.slots import Pool, git_slot
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import publish
from executors_app.wire.errors import NotKept, RuntimeUnavailable
from tests.executors.repositories import run_git
from tests.repositories import hostile_packs
from tests.repositories.usage import GitUsage
from tests.repositories.workspaces import BRANCH, HEAD, SESSION, Place, make_turn
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
CONTROL_PLANE = ("executors_app", "sessions_app", "kandev")
INSIDE_SANDBOXES = (
    "executors_app/agentctl/",
    "executors_app/machine/",  # git in a workspace, as the user of the agent
    "executors_app/demo_agent/",  # an agent
    "executors_app/runtimes/sprites/observation.py",  # the words of a command that runs in the sprite
)
SHARED_HELPERS = {"git_executable", "git_environment", "run_git", "write_git"}


def _starts_git(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and SHARED_HELPERS & {alias.name for alias in node.names}:
            return True
        # The first word of a command.
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
            first = node.elts[0]
            if isinstance(first, ast.Constant) and str(first.value).rpartition("/")[2] == "git":
                return True
    return False


def test_only_one_module_of_the_control_plane_starts_git() -> None:
    found = []
    for package in CONTROL_PLANE:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(INSIDE_SANDBOXES) and _starts_git(ast.parse(path.read_text())):
                found.append(name)
    assert found == ["executors_app/repositories/git.py"]


def test_git_processes_are_started_by_one_module_for_each_kind_of_directory() -> None:
    users = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "executors_app").rglob("*.py"))
        if re.search(r"machine\.git\.git_process import \([^)]*\bsubcommand\b", path.read_text())
    ]
    assert users == [
        "executors_app/machine/git/repository_git.py",  # a repository as it is configured, for making workspaces
        "executors_app/machine/git/workspace_git.py",  # a workspace, which an agent can write
        "executors_app/repositories/git.py",  # git directories of the control plane
    ]


@pytest.mark.parametrize("bounds", [LOOKUP, VIEW, CHECK, COPY])
def test_every_call_is_bounded(bounds: Bounds) -> None:
    assert 0 < bounds.memory <= 4 << 30
    assert 0 < bounds.cpu <= 1800
    assert 0 < bounds.seconds <= 3600
    assert 0 < bounds.output <= 64 << 20


def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Git:
    """Return a git whose program is a shell script."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setattr(gits, "git_executable", lambda: str(program))
    return Git(tmp_path)


def test_git_that_uses_too_much_cpu_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _program(tmp_path, monkeypatch, "while :; do :; done")
    with pytest.raises(GitFailed, match="more time than it may use") as failed:
        git.run("x", bounds=replace(LOOKUP, cpu=1))
    assert failed.value.cause is Cause.TIME


def test_git_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says_pid = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    git = _program(tmp_path, monkeypatch, f"trap '' TERM; (trap '' TERM; {says_pid}; sleep 100) & sleep 100")
    monkeypatch.setattr(gits, "_TERM_GRACE", 0.1)
    for seconds in (1.0, 5.0, 25.0):
        with pytest.raises(GitFailed, match="did not finish in time"):
            git.run("x", bounds=replace(LOOKUP, seconds=seconds))
        if (tmp_path / "pid").exists():
            break  # otherwise a busy machine has not started the program in time
    group = int((tmp_path / "pid").read_text())
    eventually(lambda: not _is_group_alive(group))


def test_git_that_waits_for_a_pipe_in_place_of_an_object_is_ended(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "IDLE_SECONDS", 1.0)
    head = run_git(repository, "rev-parse", "HEAD")
    team = TeamRepository.open(repository)
    place = repository / f".git/objects/{head[:2]}/{head[2:]}"
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(GitFailed, match="did not finish in time"):
        team.git.run("cat-file", "-t", head, bounds=replace(LOOKUP, seconds=3600.0))


@pytest.mark.parametrize("work", ["while :; do :; done", "while :; do sleep 0.01; done"], ids=["alone", "in children"])
def test_git_that_works_without_a_word_is_not_ended(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "IDLE_SECONDS", 1.0)
    git = _program(tmp_path, monkeypatch, f"timeout --foreground 4 sh -c '{work}'; echo done")
    assert git.run("x") == b"done\n"


def test_child_that_outlives_git_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _program(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; sleep 100 > /dev/null 2>&1 & echo done")
    assert git.run("x") == b"done\n"
    group = int((tmp_path / "pid").read_text())
    eventually(lambda: not _is_group_alive(group))


def _is_group_alive(group: int) -> bool:
    # If an earlier test made this process a subreaper, what it adopted stays a zombie until it is waited for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_output_beyond_the_limit_ends_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _program(tmp_path, monkeypatch, "exec cat /dev/zero")
    bounds = replace(LOOKUP, output=1000)
    assert len(git.read("x", limit=1000, bounds=bounds)) == 1000
    with pytest.raises(GitFailed, match="wrote more than 1000 bytes"):
        git.run("x", bounds=bounds)
    with pytest.raises(GitFailed, match="wrote more than 1000 bytes"):
        git.count_output("x", bounds=bounds)


def test_file_beyond_the_limit_ends_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _program(tmp_path, monkeypatch, f"exec cat /dev/zero > {tmp_path}/file")
    with pytest.raises(GitFailed, match="larger file than it may"):
        git.run("x", bounds=replace(LOOKUP, file=1 << 20))
    assert (tmp_path / "file").stat().st_size <= 1 << 20


def test_stderr_is_logged_under_a_reference_and_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    git = _program(tmp_path, monkeypatch, r"printf 'fatal: unexpected line: root:SECRET\033[2J\n' >&2; exit 128")
    with pytest.raises(GitFailed) as failed:
        git.run("x")
    message = failed.value.message_for_staff
    assert "SECRET" not in message
    reference = message.partition("See ")[2].partition(" ")[0]
    (logged,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert reference in logged
    assert "SECRET" in logged
    assert "\x1b" not in logged


CAUSES = {
    "fatal: Out of memory, malloc failed": (128, Cause.MEMORY),
    "fatal: attempting to allocate 5 over limit 4": (128, Cause.MEMORY),
    "fatal: pack exceeds maximum allowed size (2.00 GiB)": (128, Cause.FILE_SIZE),
    "error: file write error: No space left on device": (128, Cause.NO_SPACE),
    "fatal: Unable to create '/x/refs/heads/y.lock': File exists.": (128, Cause.LOCKED),
    "fatal: cannot lock ref 'refs/x': is at 1 but expected 2": (128, Cause.MOVED),
    f"error: object {'1' * 40}: hasDotgit: contains '.git'": (1, Cause.RULES),
    "fatal: bad tree object 1": (128, Cause.MISSING),
    "error: inflate: data stream error": (128, Cause.DAMAGED),
    "fatal: bad config line 1 in file x": (128, Cause.SYNTAX),
    "error: opening x: Permission denied": (128, Cause.PERMISSION),
    "": (-signal.SIGXCPU, Cause.TIME),
    " ": (-signal.SIGXFSZ, Cause.FILE_SIZE),
    "nonsense": (128, Cause.UNKNOWN),
}


@pytest.mark.parametrize("text", CAUSES)
def test_cause_is_read_from_stderr(text: str) -> None:
    code, cause = CAUSES[text]
    assert git_errors.classify(text, code) is cause


def test_sentence_of_a_cause_quotes_nothing_but_git_s_word_for_a_rule() -> None:
    text = f"error: object {'1' * 40}: hasDotgit: SECRET"
    assert git_errors.describe(Cause.RULES, text) == "An object breaks git's rule hasDotgit."
    for cause in Cause:
        assert "SECRET" not in git_errors.describe(cause, "SECRET")


@pytest.fixture
def bomb(repository: Path, settings: Any, tmp_path: Path) -> recovery_refs.SavedWork:
    """Return saved work in the team's repository whose tree has 10 ** 12 files."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    hostile_packs.write_tree_bomb(repository, HEAD, depth=12, width=10)
    kept = recovery_refs.find_saved_work(repository, SESSION, BRANCH)
    parent = kept.source.git.text("rev-parse", f"{kept.head}^")
    return replace(kept, head=parent)


def test_viewing_a_tree_bomb_is_refused_within_limits(
    bomb: recovery_refs.SavedWork, usage: GitUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without limits, one git grew to 5.9 GB."""
    usage.reset()
    for view in (recovery_refs.saved_status, recovery_refs.saved_diff):
        with pytest.raises(NotKept, match="too large to show"):
            view(bomb)
    assert recovery_refs.list_saved_directory(bomb, "")["entries"]
    assert usage.peak_memory <= 1 << 30
    assert usage.cpu_seconds < 30


def test_viewing_waits_for_a_slot_of_its_repository(
    bomb: recovery_refs.SavedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors_app.repositories.slots.WAIT_SECONDS", {Pool.VIEW: 0.1, Pool.HEAVY: 0.1})
    with (
        git_slot(Pool.VIEW, bomb.source.git.account),
        pytest.raises(RuntimeUnavailable, match="at this moment"),
    ):
        recovery_refs.list_saved_directory(bomb, "")


def test_archive_and_repository_take_the_slot_of_one_repository(place: Place, sandbox: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = place.root
    make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    archived = recovery_refs.find_saved_work(place.repository, SESSION, BRANCH).source
    shutil.rmtree(place.archive.path)
    published = recovery_refs.find_saved_work(place.repository, SESSION, BRANCH).source
    assert isinstance(published, TeamRepository)
    assert archived.git.account == published.git.account
