"""Whatever a repository, a bundle or the environment contains, git runs no command and touches no other files."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app import cleanup
from executors_app.repositories import recovery_refs
from executors_app.repositories.archive import Archive
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import publish
from executors_app.wire.errors import NotKept, RepositoryUnusable
from tests.executors.repositories import commit, make_repository, run_git
from tests.repositories import attacks
from tests.repositories.attacks import Trap
from tests.repositories.workspaces import BRANCH, HEAD, RECOVERY, SESSION, Place, bundle, create_sandbox


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap").set_up()


@pytest.fixture
def place(tmp_path: Path, settings: Any) -> Place:
    """Return a repository with two commits, and the arrived work of one session."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    place = Place(tmp_path / "data", make_repository(tmp_path / "team"))
    commit(place.repository, "second", "x\n")
    place.begin()
    sandbox = create_sandbox(place, tmp_path / "sandbox")
    work = commit(sandbox, "work", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, work)
    bundle(sandbox, HEAD, RECOVERY)
    return place


def run_all_operations(place: Place) -> None:
    """Run every operation of the package, and those built on it."""
    team = TeamRepository.open(place.repository)
    team.start_of("")
    team.start_of("main")
    team.commit_of("main~1")
    team.published_refs()
    team.carried()
    store = place.store
    store.update()
    fresh = Archive.of(place.root, "fresh", store)
    fresh.begin("kandev/abcdef012345", team.start_of("main"))
    fresh.adopt("kandev/abcdef012345")
    place.archive.take_in(place.root.parent / "turn.bundle", BRANCH)
    for borrow in (True, False):
        place.seed(borrow=borrow)
    publish(team, place.archive, BRANCH)
    fresh.remove()
    read_everything(place, SESSION)
    cleanup.sessions_with_snapshots(place.repository)
    cleanup.find_redundant_snapshot(place.repository, SESSION, BRANCH)
    cleanup.drop_refs(place.repository, SESSION, cleanup.session_refs(place.repository, SESSION))
    place.archive.remove()
    read_everything(place, SESSION)  # now from the team's repository


def read_everything(place: Place, session_id: str) -> None:
    with contextlib.suppress(NotKept):
        kept = recovery_refs.find_saved_work(place.repository, session_id, BRANCH)
        recovery_refs.list_saved_directory(kept, "")
        recovery_refs.read_saved_content(kept, "work")
        recovery_refs.saved_status(kept)
        recovery_refs.saved_diff(kept)
        recovery_refs.saved_diff(kept, "work")
        recovery_refs.saved_log(kept, 10, 0)


def snapshot_of(root: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in root.rglob("*")}


@pytest.fixture
def untouched(trap: Trap) -> Iterator[list[dict[str, tuple[int, bytes]]]]:
    """Check at the end that the snapshot of the outside directory in this list still holds, without a canary."""
    before: list[dict[str, tuple[int, bytes]]] = []
    yield before
    assert not trap.canary.exists(), trap.canary.read_text()
    assert before == [snapshot_of(trap.outside)]


def test_canary_is_created_by_an_unguarded_git(place: Place, trap: Trap) -> None:
    run_git(place.repository, "config", "core.fsmonitor", str(trap.script))
    run_git(place.repository, "status")
    assert trap.canary.exists()


def test_git_lists_its_configuration_keys() -> None:
    assert len(attacks.keys()) > 500
    assert {"core.fsmonitor", "diff.x.textconv", "filter.x.smudge", "gpg.x.program"} <= set(attacks.keys())


@pytest.mark.parametrize("attack", attacks.FILES)
def test_no_file_of_a_repository_runs_or_redirects_anything(
    attack: str, place: Place, trap: Trap, untouched: list[dict[str, tuple[int, bytes]]]
) -> None:
    genuine = run_git(place.repository, "rev-list", "main").splitlines()
    attacks.FILES[attack](place.repository / ".git", trap)
    untouched.append(snapshot_of(trap.outside))
    try:
        run_all_operations(place)
    except RepositoryUnusable:
        return  # Keys with words, which have their own tests
    listed = run_git(place.store.path, "rev-list", "refs/heads/main").splitlines()
    assert listed[-len(genuine) :] == genuine


def test_environment_has_no_effect(
    place: Place, trap: Trap, monkeypatch: pytest.MonkeyPatch, untouched: list[dict[str, tuple[int, bytes]]]
) -> None:
    (trap.outside / ".gitconfig").write_text(attacks.configuration(trap, "command"))
    (trap.outside / "git").mkdir()
    (trap.outside / "git/config").write_text(attacks.configuration(trap, "command"))
    (trap.outside / "config").write_text(attacks.configuration(trap, "command"))
    untouched.append(snapshot_of(trap.outside))
    for name, value in attacks.environment(trap):
        monkeypatch.setenv(name, value)
    run_all_operations(place)


def test_tampered_data_directory_runs_nothing(
    place: Place, trap: Trap, untouched: list[dict[str, tuple[int, bytes]]]
) -> None:
    """Only the guards on the command line are left when everything else has been tampered with."""
    untouched.append(snapshot_of(trap.outside))
    keys = ("core.hooksPath", "core.fsmonitor", "core.alternateRefsCommand", "diff.external", "gpg.program")
    for path in (place.archive.path, place.store.path):
        for key in keys:
            run_git(path, "config", key, str(trap.script))
        run_git(path, "config", "log.showSignature", "true")
        attacks.FILES["hooks"](path, trap)
    run_all_operations(place)


def test_git_never_runs_in_a_directory_of_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    start = subprocess.Popen.__init__

    def watched(self: Any, argv: Any, *rest: Any, **options: Any) -> None:
        if options.get("env", {}).get("GIT_DIR"):
            seen.append((str(options["cwd"]), options["env"]["GIT_DIR"]))
        start(self, argv, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    publish(place.team, place.archive, BRANCH)
    place.store.update()
    assert seen
    assert not [pair for pair in seen if str(place.repository) in "".join(pair)]
