"""Only a workspace's own refs are published to the team's repository, and never to a checked-out branch."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from executors_app.repositories import workspace_store
from executors_app.repositories.workspace_store import publish
from tests.executors.repositories import commit, run_git
from tests.repositories.workspaces import (
    BRANCH,
    HEAD,
    OTHER,
    RECOVERY,
    SESSION,
    Place,
    bundle,
    create_sandbox,
    make_turn,
)


@pytest.fixture
def sandbox(place: Place, tmp_path: Path) -> Path:
    place.begin()
    return create_sandbox(place, tmp_path / "sandbox")


def refs(repository: Path) -> dict[str, str]:
    lines = run_git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split(" ") for line in lines)


def test_branch_and_snapshot_are_published_and_nothing_else(place: Place, repository: Path, sandbox: Path) -> None:
    run_git(repository, "update-ref", f"refs/kandev/recovery/{OTHER}", "HEAD")
    before = refs(repository)
    made = commit(sandbox, "one", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    place.archive.take_in(bundle(sandbox, HEAD, RECOVERY), BRANCH)
    published = publish(place.team, place.archive, BRANCH)
    assert (published.moved, published.refused) == ({HEAD: made, RECOVERY: made}, {})
    assert refs(repository) == {**before, HEAD: made, RECOVERY: made}
    assert publish(place.team, place.archive, BRANCH).moved == {}
    run_git(repository, "fsck", "--full", "--strict")
    assert len(list((repository / ".git").glob("objects/pack/*.pack"))) == 1


def test_many_objects_arrive_as_one_pack(place: Place, repository: Path, sandbox: Path) -> None:
    for number in range(150):
        (sandbox / f"file-{number}").write_text(str(number))
    run_git(sandbox, "add", "--all")
    make_turn(place, sandbox, "one")
    assert publish(place.team, place.archive, BRANCH).moved
    assert len(list((repository / ".git").glob("objects/pack/*.pack"))) == 1
    run_git(repository, "fsck", "--full", "--strict")


def _packs(repository: Path) -> set[str]:
    return {path.name for path in (repository / ".git").glob("objects/pack/*.pack")}


def test_packs_of_many_turns_stay_few(place: Place, repository: Path, sandbox: Path) -> None:
    for turn in range(16):
        made = make_turn(place, sandbox, f"turn-{turn}", f"{turn}\n")
        assert publish(place.team, place.archive, BRANCH).moved == {HEAD: made}
    assert len(_packs(repository)) <= 5
    assert len(list((repository / ".git").glob("objects/pack/*"))) == 2 * len(_packs(repository))
    run_git(repository, "fsck", "--full", "--strict")
    assert len(run_git(repository, "rev-list", HEAD).splitlines()) == 17


@pytest.mark.parametrize("why", ["of others", "kept", "indexed"])
def test_packs_that_somebody_relies_on_are_not_merged(why: str, place: Place, repository: Path, sandbox: Path) -> None:
    make_turn(place, sandbox, "one", "1\n")
    publish(place.team, place.archive, BRANCH)
    (first,) = _packs(repository)
    folder = repository / ".git/objects/pack"
    if why == "kept":
        (folder / first).with_suffix(".keep").write_text("")
    elif why == "indexed":
        run_git(repository, "multi-pack-index", "write")
    else:
        for index in (place.archive.path / "published").glob("*.idx"):
            index.unlink()
    make_turn(place, sandbox, "two", "2\n")
    publish(place.team, place.archive, BRANCH)
    assert first in _packs(repository)
    assert len(_packs(repository)) == 2


def test_merging_goes_on_after_the_team_has_collected_garbage(place: Place, repository: Path, sandbox: Path) -> None:
    for turn in range(4):
        make_turn(place, sandbox, f"turn-{turn}", f"{turn}\n")
        publish(place.team, place.archive, BRANCH)
        run_git(repository, "gc", "--quiet", "--prune=now")
    run_git(repository, "fsck", "--full", "--strict")
    assert len(list((place.archive.path / "published").iterdir())) <= 2


def test_replaced_commits_of_the_branch_are_kept(place: Place, repository: Path, sandbox: Path) -> None:
    make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    run_git(repository, "checkout", "--quiet", BRANCH)
    theirs = commit(repository, "by a person", "x")
    run_git(repository, "checkout", "--quiet", "main")
    made = make_turn(place, sandbox, "two")
    publish(place.team, place.archive, BRANCH)
    kept = f"refs/kandev/kept/{SESSION}/{theirs[:12]}"
    assert {ref: at for ref, at in refs(repository).items() if "kandev" in ref} == {HEAD: made, kept: theirs}


@pytest.mark.parametrize("where", ["repository", "worktree", "rebase"])
def test_checked_out_branch_is_left_alone(
    where: str, place: Place, repository: Path, sandbox: Path, tmp_path: Path
) -> None:
    first = make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    if where == "repository":
        run_git(repository, "checkout", "--quiet", BRANCH)
    else:
        run_git(repository, "worktree", "add", "--quiet", str(tmp_path / "side"), BRANCH)
    if where == "rebase":
        run_git(tmp_path / "side", "-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "-q", "-i", "HEAD~1")
    made = commit(sandbox, "two", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    place.archive.take_in(bundle(sandbox, HEAD, RECOVERY), BRANCH)
    published = publish(place.team, place.archive, BRANCH)
    assert published.moved == {RECOVERY: made}
    assert "checked out" in published.refused[HEAD]
    assert refs(repository)[HEAD] == first


def test_symbolic_ref_is_not_followed(place: Place, repository: Path, sandbox: Path) -> None:
    main = run_git(repository, "rev-parse", "main")
    made = commit(sandbox, "one", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    place.archive.take_in(bundle(sandbox, HEAD, RECOVERY), BRANCH)
    run_git(repository, "symbolic-ref", HEAD, "refs/heads/main")
    run_git(repository, "symbolic-ref", RECOVERY, "refs/heads/new")
    published = publish(place.team, place.archive, BRANCH)
    assert published.moved == {}
    assert {ref: "symbolic" in why for ref, why in published.refused.items()} == {HEAD: True, RECOVERY: True}
    assert run_git(repository, "rev-parse", "main") == main
    assert "refs/heads/new" not in refs(repository)


def test_no_hook_of_the_team_runs(place: Place, repository: Path, sandbox: Path, tmp_path: Path) -> None:
    hooks = repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-update", "update", "pre-receive", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{tmp_path}/canary'\n")
        (hooks / name).chmod(0o755)
    make_turn(place, sandbox, "one")
    assert publish(place.team, place.archive, BRANCH).moved
    assert not (tmp_path / "canary").exists()


def test_old_lock_of_a_killed_git_is_removed(place: Place, repository: Path, sandbox: Path) -> None:
    made = make_turn(place, sandbox, "one")
    lock = repository / ".git" / f"{HEAD}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("")
    published = publish(place.team, place.archive, BRANCH)
    assert "lock" in published.refused[HEAD]
    os.utime(lock, (0, 0))
    assert publish(place.team, place.archive, BRANCH).moved == {HEAD: made}


def test_ref_moved_meanwhile_is_not_overwritten(
    place: Place, repository: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    made = commit(sandbox, "two", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    place.archive.take_in(bundle(sandbox, HEAD, RECOVERY), BRANCH)
    theirs = run_git(repository, "rev-parse", "main")
    send = workspace_store._send

    def send_and_move_ref(*arguments: object) -> None:
        send(*arguments)  # type: ignore[arg-type]
        run_git(repository, "update-ref", HEAD, theirs)

    monkeypatch.setattr(workspace_store, "_send", send_and_move_ref)
    published = publish(place.team, place.archive, BRANCH)
    assert published.moved == {RECOVERY: made}
    assert HEAD in published.refused
    assert refs(repository)[HEAD] == theirs


def test_concurrent_publishing_moves_refs_once(place: Place, repository: Path, sandbox: Path) -> None:
    made = make_turn(place, sandbox, "one")
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(publish(place.team, place.archive, BRANCH))) for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert sum(bool(one.moved) for one in results) == 1
    assert not any(one.refused for one in results)
    assert refs(repository)[HEAD] == made


def test_permissions_of_a_shared_repository_are_kept(place: Place, repository: Path, sandbox: Path) -> None:
    run_git(repository, "config", "core.sharedRepository", "group")
    make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    assert (repository / ".git" / HEAD).stat().st_mode & 0o060 == 0o060
