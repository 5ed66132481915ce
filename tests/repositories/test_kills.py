"""An operation that is killed before or during any of its git processes is completed by the next call."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.repositories import ref_files
from executors_app.repositories.git import Git
from executors_app.repositories.workspace_store import publish
from tests.executors.repositories import commit, run_git
from tests.repositories.workspaces import BRANCH, HEAD, RECOVERY, SESSION, Place, bundle, create_sandbox

Operation = Callable[[Place], None]


def _take_in(place: Place) -> None:
    place.archive.take_in(place.root.parent / "turn.bundle", BRANCH)


def _publish(place: Place) -> None:
    publish(place.team, place.archive, BRANCH)


def _begin(place: Place) -> None:
    place.archive.begin(BRANCH, place.team.start_of("kandev/abcdef123456"))


def _update(place: Place) -> None:
    place.store.update()


def _killed_at(place: Place, operation: Operation, number: int, *, with_git: bool) -> bool:
    """Run an operation in a process that dies at its nth git process; return False if it starts fewer."""
    child = multiprocessing.get_context("fork").Process(target=_dies, args=(place, operation, number, with_git))
    child.start()
    child.join(120)
    assert child.exitcode in {0, -signal.SIGKILL}
    return child.exitcode != 0


def _dies(place: Place, operation: Operation, number: int, with_git: bool) -> None:
    start, left = Git._start, [number]

    def counted(self: Git, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if with_git:
                os.killpg(start(self, *arguments).pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return start(self, *arguments)

    Git._start = counted  # type: ignore[assignment,method-assign]
    operation(place)
    os._exit(0)


@pytest.fixture
def unpublished_commit(place: Place, repository: Path, tmp_path: Path) -> str:
    """Return the commit of a turn that has not arrived yet, in a sandbox whose branch had other work before."""
    run_git(repository, "branch", "kandev/abcdef123456")
    place.begin()
    sandbox = create_sandbox(place, tmp_path / "sandbox")
    lost = commit(sandbox, "lost", "x\n")
    place.archive.take_in(bundle(sandbox), BRANCH)
    publish(place.team, place.archive, BRANCH)
    run_git(sandbox, "reset", "--quiet", "--hard", "HEAD~1")
    made = commit(sandbox, "work", "x\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    bundle(sandbox, HEAD, RECOVERY)
    commit(repository, "news", "x\n")
    return f"{lost} {made}"


@pytest.mark.parametrize("with_git", [False, True], ids=["before", "within"])
@pytest.mark.parametrize("operation", [_update, _begin, _take_in, _publish])
def test_next_call_recovers_from_a_kill_at_any_point(
    operation: Operation, with_git: bool, place: Place, unpublished_commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ref_files, "STALE_SECONDS", -1.0)  # a lock of a killed git counts as old immediately
    lost, made = unpublished_commit.split()
    if operation is _publish:
        _take_in(place)
    elif operation is _begin:
        place.archive.remove()
    number = 1
    while _killed_at(place, operation, number, with_git=with_git):
        number += 1
    assert number > 2
    operation(place)
    expected = {HEAD: made, RECOVERY: made, f"refs/kandev/kept/{SESSION}/{lost[:12]}": lost}
    if operation is _update:
        assert place.store.refs() == place.team.published_refs()
        assert not list(place.store.path.rglob("tmp_*"))
    elif operation is _begin:
        assert place.archive.tips() == {HEAD: run_git(place.repository, "rev-parse", "kandev/abcdef123456")}
    else:
        assert place.archive.tips() == expected
        assert not [*place.archive.path.glob("incoming-*"), *place.archive.path.rglob("*.lock")]
    if operation is _publish:
        ours = place.team.refs("refs/kandev/", HEAD)
        assert ours == expected
    for path in (place.repository, place.store.path, place.archive.path):
        run_git(path, "fsck", "--full", "--strict")
