"""An archive checks what a workspace sends before it changes anything, and can restore all of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from executors_app.repositories import archive as archives
from executors_app.repositories.archive import Archive
from executors_app.repositories.git import GitFailed
from executors_app.wire.errors import BundleRefused, RepositoryUnusable
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
    files,
    make_turn,
)


def test_new_branch_is_created_once_and_borrows_all_objects(place: Place, repository: Path) -> None:
    archive = place.begin()
    first = run_git(repository, "rev-parse", "HEAD")
    assert archive.tips() == {HEAD: first}
    commit(repository, "later", "x")
    assert place.begin().tips() == {HEAD: first}
    assert not list((archive.path / "objects").rglob("*.pack"))
    assert archive.path.stat().st_mode & 0o777 == 0o700


def test_data_directory_can_be_moved(place: Place, sandbox: Path) -> None:
    make_turn(place, sandbox, "one")
    moved = place.root.rename(place.root.with_name("moved"))
    archive = Archive.of(moved, SESSION)
    assert run_git(archive.path, "log", "--format=%s", BRANCH) == "Write one\nWrite README"


def test_unpublished_base_is_included(place: Place, repository: Path, tmp_path: Path) -> None:
    run_git(repository, "checkout", "--quiet", "-b", "kandev/abcdef123456")
    made = commit(repository, "of another session", "x")
    archive = place.begin("kandev/abcdef123456")
    assert archive.tips() == {HEAD: made}
    assert place.store.refs().keys() == {"refs/heads/main"}
    sandbox = create_sandbox(place, tmp_path / "sandbox")
    assert (sandbox / "of another session").exists()
    make_turn(place, sandbox, "more")
    assert run_git(create_sandbox(place, tmp_path / "far", borrow=False), "rev-list", "--count", "HEAD") == "3"


def test_pushed_work_arrives_and_repeating_changes_nothing(place: Place, sandbox: Path) -> None:
    made = commit(sandbox, "one", "work\n")
    run_git(sandbox, "update-ref", RECOVERY, made)
    sent = bundle(sandbox, f"{made}~1..{HEAD}", RECOVERY)
    archive = place.archive
    assert archive.take_in(sent, BRANCH) == {HEAD: made, RECOVERY: made}
    before = files(archive.path)
    assert archive.take_in(sent, BRANCH) == {HEAD: made, RECOVERY: made}
    assert files(archive.path) == before
    run_git(archive.path, "fsck", "--full", "--strict")


def test_replaced_commits_of_a_branch_are_kept(place: Place, sandbox: Path) -> None:
    lost = make_turn(place, sandbox, "lost")
    run_git(sandbox, "reset", "--quiet", "--hard", "HEAD~1")
    made = make_turn(place, sandbox, "instead")
    assert place.archive.tips() == {HEAD: made, f"refs/kandev/kept/{SESSION}/{lost[:12]}": lost}


def test_branch_is_reset_by_a_bundle_without_a_pack(place: Place, sandbox: Path, tmp_path: Path) -> None:
    lost = make_turn(place, sandbox, "lost")
    first = run_git(sandbox, "rev-parse", "HEAD~1")
    (tmp_path / "back").write_text(f"# v2 git bundle\n{first} {HEAD}\n\n")
    assert place.archive.take_in(tmp_path / "back", BRANCH)[HEAD] == first
    assert place.archive.tips()[f"refs/kandev/kept/{SESSION}/{lost[:12]}"] == lost


def test_branch_follows_only_to_commits_that_arrived(place: Place, sandbox: Path) -> None:
    lost = make_turn(place, sandbox, "lost")
    first = run_git(sandbox, "rev-parse", "HEAD~1")
    place.archive.follow(BRANCH, {HEAD: first, RECOVERY: "0" * 40, "refs/heads/main": lost})
    assert place.archive.tips() == {HEAD: first, f"refs/kandev/kept/{SESSION}/{lost[:12]}": lost}


def test_branch_does_not_follow_to_an_incomplete_commit(place: Place, sandbox: Path) -> None:
    tree = "0123456789" * 4
    text = f"tree {tree}\nauthor x <x> 1 +0000\ncommitter x <x> 1 +0000\n\nx\n"
    (place.root / "commit").write_text(text)
    words = ("hash-object", "--literally", "-t", "commit", "-w", str(place.root / "commit"))
    broken, before = run_git(place.archive.path, *words), place.archive.tips()
    with pytest.raises(BundleRefused, match="missing"):
        place.archive.follow(BRANCH, {HEAD: broken})
    assert place.archive.tips() == before


def test_many_turns_leave_few_packs_and_lose_nothing(
    place: Place, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MAX_PACKS", 3)
    for number in range(8):
        make_turn(place, sandbox, f"file-{number}")
    archive = place.archive
    assert len(list(archive.path.glob("objects/pack/*.pack"))) <= 4
    assert run_git(archive.path, "rev-list", "--count", BRANCH) == "9"
    run_git(archive.path, "fsck", "--full", "--strict")


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_whole_archive_is_restored_from_one_bundle(object_format: str, tmp_path: Path) -> None:
    path = tmp_path / "team"
    path.mkdir()
    run_git(path, "init", "--quiet", f"--object-format={object_format}")
    commit(path, "README", "hello\n")
    place = Place(tmp_path / "data", path)
    archive = place.begin()
    sandbox = create_sandbox(place, tmp_path / "sandbox")
    made = make_turn(place, sandbox, "one")
    run_git(archive.path, "bundle", "create", "--quiet", str(tmp_path / "whole"), "--all")
    elsewhere = Archive.of(tmp_path / "elsewhere", SESSION)
    assert not elsewhere.exists()
    assert elsewhere.take_in(tmp_path / "whole", BRANCH) == {HEAD: made} == archive.tips()
    run_git(elsewhere.path, "fsck", "--full", "--strict")
    run_git(tmp_path, "clone", "--quiet", "-b", BRANCH, str(tmp_path / "whole"), str(tmp_path / "clone"))


def test_seed_contains_what_a_sandbox_needs(place: Place, repository: Path) -> None:
    run_git(repository, "config", "user.name", "Somebody")
    (repository / ".git/hooks").mkdir(exist_ok=True)
    (repository / ".git/hooks/pre-push").write_text("#!/bin/sh\n")
    (repository / ".git/hooks/pre-push").chmod(0o755)
    run_git(repository, "branch", "other")
    archive = place.begin()
    first = archive.tips()[HEAD]
    head, pack = place.seed(borrow=True)
    assert head == {
        "version": 1,
        "branch": BRANCH,
        "refs": {"refs/heads/main": first, "refs/heads/other": first, HEAD: first},
        "objects": [str(place.store.objects)],
        "complete": True,
        "object_format": "sha1",
        "identity": {"name": "Somebody"},
        "remotes": {},
        "exclude": (repository / ".git/info/exclude").read_text()
        if (repository / ".git/info/exclude").exists()
        else "",
        "hooks": {"pre-push": "IyEvYmluL3NoCg=="},
        "base": "main",
    }
    assert pack[:4] == b"PACK"
    assert int.from_bytes(pack[8:12], "big") == 0
    head, pack = place.seed(borrow=False)
    assert (head["refs"], head["objects"]) == ({"refs/heads/main": first, HEAD: first}, [])
    assert int.from_bytes(pack[8:12], "big") == 3
    head, pack = place.seed(borrow=False, whole=False)
    assert (head["complete"], pack) == (False, b"")


def test_lost_archive_adopts_the_refs_of_the_repository(place: Place, repository: Path, sandbox: Path) -> None:
    place.archive.remove()
    for ref in (RECOVERY, f"refs/kandev/recovery/{OTHER}", f"refs/kandev/arrived/{SESSION}/0"):
        made = commit(repository, "old work", ref)
        run_git(repository, "update-ref", ref, made)
    run_git(repository, "update-ref", HEAD, made)
    run_git(repository, "reset", "--quiet", "--hard", "HEAD~3")
    kept = run_git(repository, "rev-parse", RECOVERY)
    assert place.archive.adopt(BRANCH) == {HEAD: made, RECOVERY: kept}
    assert place.archive.adopt(BRANCH) == {}
    run_git(place.archive.path, "fsck", "--full", "--strict")


def test_removed_archive_can_be_created_again(place: Place, sandbox: Path) -> None:
    make_turn(place, sandbox, "one")
    place.archive.remove()
    place.archive.remove()
    assert not list((place.root / "archives").iterdir())
    assert place.begin().tips().keys() == {HEAD}


def test_ref_moved_meanwhile_is_not_deleted(place: Place, sandbox: Path) -> None:
    old = place.archive.tips()
    make_turn(place, sandbox, "one")
    with pytest.raises(GitFailed):
        place.archive.drop(old)
    place.archive.drop(place.archive.tips())
    assert place.archive.tips() == {}


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "-x", "x\n", "ü"])
def test_unsafe_id_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable):
        Archive.of(tmp_path, name)


@pytest.mark.parametrize("name", ["main", "kandev/", "kandev/one", "kandev/1234567890ab/x", "-kandev/1234567890ab"])
def test_branch_that_belongs_to_no_workspace_is_refused(name: str, place: Place, sandbox: Path) -> None:
    with pytest.raises(RepositoryUnusable, match="not a workspace's branch"):
        place.archive.take_in(bundle(sandbox), name)


def test_leftovers_of_killed_calls_are_removed(place: Place, sandbox: Path) -> None:
    path = place.archive.path
    shutil.copytree(path / "objects", path / "incoming-x")
    (path / "refs/heads/kandev").mkdir(exist_ok=True)
    for name in ("objects/pack/tmp_pack_x", f"{HEAD}.lock", "packed-refs.lock"):
        (path / name).write_text("")
    make_turn(place, sandbox, "one")
    assert not [*path.glob("incoming-*"), *path.rglob("tmp_*"), *path.rglob("*.lock")]
