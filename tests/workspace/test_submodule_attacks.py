"""Nothing that a submodule or a forged snapshot says leads out of the workspace, runs a program or fetches anything."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import pytest

from executors_app.agentctl.workspace.changes import git_status
from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import recovery_snapshots, saved_submodules, workspace_git, worktrees
from executors_app.machine.git.saved_submodules import (
    SavedSubmodule,
    SubmoduleRestorer,
    parse_description,
    read_saved_submodules,
    split_commits,
)
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.machine.git.worktrees import Worktree
from tests.executors.repositories import commit, make_repository, run_git
from tests.workspace.trees import LOCAL, REF, SESSION, add_submodule, git_of, snapshot_tree, state_of


def _traps(sub: Path, trap: Path) -> None:
    """Set a trap in every setting by which git runs a program, and in every hook."""
    own = Path(run_git(sub, "rev-parse", "--absolute-git-dir"))
    script = own / "trap"
    script.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    script.chmod(0o755)
    (own / "hooks").mkdir(exist_ok=True)
    for hook in ("reference-transaction", "post-index-change", "post-checkout", "pre-auto-gc", "fsmonitor-watchman"):
        shutil.copy(script, own / "hooks" / hook)
    (own / "info").mkdir(exist_ok=True)
    (own / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    settings = {
        "core.hooksPath": str(own / "hooks"),
        "core.fsmonitor": str(script),
        "core.sshCommand": str(script),
        "core.alternateRefsCommand": str(script),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "filter.evil.required": "true",
        "diff.evil.textconv": str(script),
        "diff.external": str(script),
        "uploadpack.packObjectsHook": str(script),
        "gpg.program": str(script),
        "commit.gpgSign": "true",
        "core.excludesFile": str(own / "everything"),
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{script}",
    }
    (own / "everything").write_text("*\n")
    for key, value in settings.items():
        run_git(sub, "-c", "core.fsmonitor=false", "config", key, value)


@pytest.mark.parametrize("lost", [False, True])
def test_no_setting_and_no_hook_of_a_submodule_applies(
    repository: Path,
    place: Worktree,
    tmp_path: Path,
    lost: bool,
) -> None:
    sub, trap = place.path / "sub", tmp_path / "ran"
    commit(sub, "f.txt", "precious\n")
    (sub / "new").write_text("precious\n")
    _traps(sub, trap)
    trap.unlink(missing_ok=True)
    taken = snapshot_tree(place.path)
    assert taken.left_out == []
    shutil.rmtree(place.path)
    if lost:
        run_git(repository, "worktree", "prune")
    worktrees.make_worktree(repository, "", place, existed=True)
    assert [(sub / name).read_text() for name in ("f.txt", "new")] == ["precious\n"] * 2
    assert not trap.exists()


def _forge(repository: Path, root: Path, change: Mapping[str, Any]) -> None:
    """Replace the session's snapshot by one whose description of its submodule is changed."""
    taken = snapshot_tree(root).commit
    carrier = run_git(repository, "rev-parse", f"{taken}^3")
    about = json.loads(run_git(repository, "cat-file", "blob", f"{carrier}:000/about"))
    (root.parent / "about").write_text(json.dumps({**about, **change}))
    blob = run_git(repository, "hash-object", "-w", str(root.parent / "about"))
    entries = run_git(repository, "ls-tree", f"{carrier}:000").splitlines()
    forged = [f"100644 blob {blob}\tabout" if entry.endswith("\tabout") else entry for entry in entries]
    tree = _make_tree(repository, root, forged)
    _replace_carrier(repository, root, taken, _make_tree(repository, root, [f"040000 tree {tree}\t000"]))


def _make_tree(repository: Path, root: Path, entries: list[str]) -> str:
    listed = root.parent / "entries"
    listed.write_text("".join(f"{entry}\n" for entry in entries))
    return run_git(repository, "mktree", stdin=listed)


def _replace_carrier(repository: Path, root: Path, taken: str, tree: str, *, is_parent: bool = True) -> None:
    carrier = run_git(repository, "rev-parse", f"{taken}^3")
    forged = run_git(repository, "commit-tree", tree, "-m", "x")
    text = run_git(repository, "cat-file", "commit", taken).replace(f"Submodules: {carrier}", f"Submodules: {forged}")
    if is_parent:
        text = text.replace(f"parent {carrier}", f"parent {forged}")
    (root.parent / "text").write_text(text + "\n")
    made = run_git(repository, "hash-object", "-t", "commit", "-w", "--literally", str(root.parent / "text"))
    run_git(repository, "update-ref", REF, made)


HOSTILE_PATHS = [
    b"../evil",
    b"/tmp/evil",
    b"sub/../../evil",
    b".git/hooks",
    b"sub/.GIT/x",
    b"./sub",
    b"sub//x",
    b"",
    b"README",
    b"nowhere",
    b"sub\0x",
]


def _tree_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if "worktrees" not in path.parts}


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize("lost", [False, True])
def test_path_in_a_forged_snapshot_leads_to_nothing_but_its_submodule(
    repository: Path,
    place: Worktree,
    tmp_path: Path,
    path: bytes,
    lost: bool,
) -> None:
    (place.path / "sub" / "f.txt").write_text("precious\n")
    (place.path / "beside").write_text("kept\n")
    _forge(repository, place.path, {"path": quote_from_bytes(path)})
    shutil.rmtree(place.path)
    if lost:
        run_git(repository, "worktree", "prune")
    before = _tree_of(tmp_path / "data")
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "not restored" in note.replace("are not restored", "")
    assert (place.path / "beside").read_text() == "kept\n"
    assert _tree_of(tmp_path / "data") == before
    assert not (place.path / "nowhere").exists()
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"modules": "modules/../../evil"},
        {"modules": "../../../evil"},
        {"modules": "/tmp"},
        {"modules": "modules/missing"},
    ],
)
def test_git_directory_in_a_forged_snapshot_is_not_used(
    repository: Path,
    place: Worktree,
    change: Mapping[str, str],
) -> None:
    sub = place.path / "sub"
    (sub / "f.txt").write_text("precious\n")
    _forge(repository, place.path, change)
    shutil.rmtree(place.path)
    worktrees.make_worktree(repository, "", place, existed=True)
    assert (sub / "f.txt").read_text() == "precious\n"
    assert (sub / ".git").is_dir(), "a repository of its own was made"


INVALID: list[dict[str, Any]] = [
    {"head": "HEAD"},
    {"head": "--all"},
    {"head": None},
    {"ref": "refs/tags/x"},
    {"ref": "--upload-pack=x"},
    {"refs": {"HEAD": "0" * 40}},
    {"refs": {"refs/heads/../../x": "0" * 40}},
    {"refs": {"refs/heads/x": "main"}},
    {"refs": []},
    {"refs": {f"refs/heads/b{number}": "0" * 40 for number in range(1001)}},
    {"path": 1, "modules": None, "refs": None},
]


@pytest.mark.parametrize("change", INVALID, ids=str)
def test_invalid_description_is_refused_and_everything_else_returns(
    repository: Path,
    place: Worktree,
    change: Mapping[str, Any],
) -> None:
    (place.path / "sub" / "f.txt").write_text("precious\n")
    (place.path / "beside").write_text("kept\n")
    _forge(repository, place.path, change)
    shutil.rmtree(place.path)
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "The work inside submodules was not restored" in note
    assert (place.path / "beside").read_text() == "kept\n"


def test_snapshot_that_names_another_sessions_work_is_refused(repository: Path, place: Worktree) -> None:
    (place.path / "sub" / "f.txt").write_text("precious\n")
    taken = snapshot_tree(place.path).commit
    tree = run_git(repository, "rev-parse", f"{taken}^3^{{tree}}")
    _replace_carrier(repository, place.path, taken, tree, is_parent=False)
    shutil.rmtree(place.path)
    assert "not its own" in worktrees.make_worktree(repository, "", place, existed=True)


@pytest.mark.parametrize(
    "batch", [b"garbage", b"x blob 1\nx\n", b"x commit 5\nabc", b"x commit 99999999999\n", b"x commit -1\n", b"\n"]
)
def test_commits_that_cannot_be_read_are_refused(batch: bytes) -> None:
    with pytest.raises(ValueError, match="submodule"):
        split_commits(batch)


def test_garbage_instead_of_a_description_is_refused() -> None:
    for text in (b"", b"[]", b"null", b"{}", b"\xff", b"[" * 200_000):
        with pytest.raises(ValueError, match="description"):
            parse_description(text)


def _link_to_outside(sub: Path, outside: Path) -> None:
    shutil.rmtree(sub)
    sub.symlink_to(outside)


def _pointer_to_outside(sub: Path, outside: Path) -> None:
    (sub / ".git").write_text(f"gitdir: {outside / '.git'}\n")


def _git_directory_that_is_a_link(sub: Path, outside: Path) -> None:
    (sub / ".git").unlink()
    (sub / ".git").symlink_to(outside / ".git")


def _moved_modules(sub: Path, outside: Path) -> None:
    modules = Path(run_git(sub, "rev-parse", "--absolute-git-dir"))
    shutil.rmtree(modules)
    modules.symlink_to(outside / ".git")


def _common_directory(sub: Path, outside: Path) -> None:
    (Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / "commondir").write_text(f"{outside / '.git'}\n")


def _objects_that_are_a_link(sub: Path, outside: Path) -> None:
    objects = Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / "objects"
    shutil.rmtree(objects)
    objects.symlink_to(outside / ".git" / "objects")


REDIRECTS = (
    _link_to_outside,
    _pointer_to_outside,
    _git_directory_that_is_a_link,
    _moved_modules,
    _common_directory,
    _objects_that_are_a_link,
)


@pytest.mark.parametrize("redirect", REDIRECTS)
def test_repository_outside_of_the_workspace_is_not_read(
    repository: Path,
    place: Worktree,
    tmp_path: Path,
    redirect: Callable[[Path, Path], None],
) -> None:
    outside = make_repository(tmp_path / "outside", "secret", "secret\n")
    (outside / "secret").write_text("newer secret\n")
    redirect(place.path / "sub", outside)
    (place.path / "beside").write_text("kept\n")
    before = {str(path) for path in outside.rglob("*")}
    taken = snapshot_tree(place.path)
    assert run_git(repository, "show", f"{taken.commit}:beside") == "kept"
    assert "Kandev-Submodules" not in run_git(repository, "log", "-1", "--format=%B", REF)
    assert redirect is _link_to_outside or "sub/" in taken.left_out
    assert {str(path) for path in outside.rglob("*")} == before


@pytest.mark.parametrize("url", ["ext::sh -c touch% {trap}", "-u./trap", "{outside}", "../outside"])
def test_address_in_gitmodules_is_never_fetched_from(
    repository: Path,
    place: Worktree,
    tmp_path: Path,
    url: str,
) -> None:
    outside = make_repository(tmp_path / "outside", "secret", "secret\n")
    trap = tmp_path / "trap"
    text = url.format(trap=trap, outside=outside)
    settings = f"path = sub\n\turl = {text}\n\tupdate = !touch {trap}\n"
    (place.path / ".gitmodules").write_text(f'[submodule "sub"]\n\t{settings}')
    (place.path / "sub" / "f.txt").write_text("precious\n")
    snapshot_tree(place.path)
    shutil.rmtree(place.path)
    run_git(repository, "worktree", "prune")
    worktrees.make_worktree(repository, "", place, existed=True)
    assert (place.path / "sub" / "f.txt").read_text() == "precious\n"
    assert not trap.exists()
    assert "secret" not in os.listdir(place.path / "sub")  # noqa: PTH208


def test_submodule_whose_files_a_transfer_would_refuse_is_named(
    repository: Path,
    place: Worktree,
    tmp_path: Path,
) -> None:
    sub = place.path / "sub"
    (sub / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = -u./evil\n\tupdate = !evil\n')
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path)
    assert taken.left_out == ["sub/.gitmodules"]
    assert "cannot be saved" in taken.left_out_reasons[0]
    head = run_git(repository, "rev-parse", REF)
    target = tmp_path / "target"
    run_git(tmp_path, "init", "--quiet", "--bare", str(target))
    run_git(target, *LOCAL, "-c", "fetch.fsckObjects=true", "fetch", "--quiet", str(repository), f"{REF}:{REF}")
    assert run_git(target, "rev-parse", REF) == head


def _alternates(sub: Path, outside: Path) -> None:
    own = Path(run_git(sub, "rev-parse", "--absolute-git-dir"))
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_text(f"{outside / '.git' / 'objects'}\n")


def _linked_objects(sub: Path, outside: Path) -> None:
    blob = run_git(outside, "rev-parse", "HEAD:secret")
    own = Path(run_git(sub, "rev-parse", "--absolute-git-dir"))
    (own / "objects" / blob[:2]).symlink_to(outside / ".git" / "objects" / blob[:2])


@pytest.mark.parametrize("borrow", [_alternates, _linked_objects])
def test_objects_of_a_repository_outside_are_not_read(
    repository: Path, place: Worktree, tmp_path: Path, borrow: Callable[[Path, Path], None]
) -> None:
    outside = make_repository(tmp_path / "outside", "secret", "secret\n")
    blob = run_git(outside, "rev-parse", "HEAD:secret")
    borrow(place.path / "sub", outside)
    run_git(place.path / "sub", "update-index", "--add", "--cacheinfo", f"100644,{blob},leak")
    assert snapshot_tree(place.path).left_out == ["sub/"]
    with pytest.raises(subprocess.CalledProcessError):
        run_git(repository, "cat-file", "-e", blob)


def _write_index(root: Path, path: bytes, commit_id: str) -> None:
    """Write an index with one submodule, at a path that git itself would refuse."""
    entry = struct.pack(">10I", *[0] * 6, 0o160000, 0, 0, 0) + bytes.fromhex(commit_id)
    entry += struct.pack(">H", len(path)) + path
    entry += b"\0" * (8 - len(entry) % 8)
    data = b"DIRC" + struct.pack(">II", 2, 1) + entry
    own = Path(run_git(root, "rev-parse", "--absolute-git-dir"))
    (own / "index").write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())


@pytest.mark.parametrize("path", ["{outside}", "../../../outside", ".", ".git", "sub/../sub"])
def test_path_that_no_submodule_can_have_is_named(place: Worktree, tmp_path: Path, path: str) -> None:
    outside = make_repository(tmp_path / "outside", "secret", "secret\n")
    (outside / "secret").write_text("newer secret\n")
    name = path.format(outside=outside)
    _write_index(place.path, name.encode(), run_git(outside, "rev-parse", "HEAD"))
    try:
        taken = snapshot_tree(place.path)
    except GitError:
        return  # git itself refuses such an index
    assert name in taken.left_out
    assert "Kandev-Submodules" not in run_git(place.path, "log", "-1", "--format=%B", REF)


def _link_to_other_refs(sub: Path, outside: Path) -> None:
    heads = Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / "refs" / "heads"
    shutil.rmtree(heads)
    heads.symlink_to(outside / ".git" / "refs" / "heads")


def _link_to_a_file(name: str) -> Callable[[Path, Path], None]:
    def link(sub: Path, outside: Path) -> None:
        file = Path(run_git(sub, "rev-parse", "--absolute-git-dir")) / name
        file.unlink(missing_ok=True)
        file.symlink_to(outside / ".git" / "description")

    return link


WRITES = (
    _pointer_to_outside,
    _git_directory_that_is_a_link,
    _common_directory,
    _alternates,
    _link_to_other_refs,
    _link_to_a_file("index"),
    _link_to_a_file("shallow"),
)


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("redirect", WRITES)
@pytest.mark.parametrize("rebuilt", [False, True])
def test_restore_writes_into_no_repository_outside(
    repository: Path, place: Worktree, tmp_path: Path, redirect: Callable[[Path, Path], None], rebuilt: bool
) -> None:
    outside = make_repository(tmp_path / "outside", "f.txt", "other\n")
    sub = place.path / "sub"
    run_git(sub, "switch", "--quiet", "-c", "evil")
    commit(sub, "new", "new\n")
    (sub / "f.txt").write_text("precious\n")
    snapshot_tree(place.path)
    redirect(sub, outside)
    before = _contents(outside)
    if rebuilt:
        shutil.rmtree(place.path)
        worktrees.make_worktree(repository, "", place, existed=True)
    else:
        git = git_of(place.path)
        found = recovery_snapshots.find_recovery(git.text, REF)
        assert found
        assert len(SubmoduleRestorer(git, found, rebuilt=False).restore()) == 1
    assert _contents(outside) == before


def test_one_damaged_description_costs_nothing_of_other_submodules(
    repository: Path, library: Path, place: Worktree
) -> None:
    add_submodule(place.path, library, "other")
    for name in ("sub", "other"):
        (place.path / name / "f.txt").write_text("precious\n")
    taken = snapshot_tree(place.path).commit
    carrier = run_git(repository, "rev-parse", f"{taken}^3")
    (entry, *_), rest = (run_git(repository, "ls-tree", f"{carrier}:{name}").splitlines() for name in ("000", "001"))
    broken = _make_tree(repository, place.path, [entry.replace("\tabout", "\tother")])
    other = _make_tree(repository, place.path, rest)
    entries = [f"040000 tree {broken}\t000", f"040000 tree {other}\t001"]
    _replace_carrier(repository, place.path, taken, _make_tree(repository, place.path, entries))
    shutil.rmtree(place.path)
    assert "was not restored" in worktrees.make_worktree(repository, "", place, existed=True)
    found = [(place.path / name / "f.txt") for name in ("sub", "other")]
    assert [file.read_text() for file in found if file.exists()] == ["precious\n"]


@pytest.mark.parametrize("is_link", [False, True])
def test_file_beside_a_submodule_is_not_taken_for_an_index(
    repository: Path, place: Worktree, tmp_path: Path, is_link: bool
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("outside\n")
    (place.path / "sub" / "f.txt").write_text("precious\n")
    beside = place.path / "sub.index"
    if is_link:
        beside.symlink_to(outside)
    else:
        beside.write_text("precious\n")
    before = state_of(place.path)
    snapshot_tree(place.path)
    shutil.rmtree(place.path)
    worktrees.make_worktree(repository, "", place, existed=True)
    assert outside.read_bytes() == b"outside\n"
    assert state_of(place.path) == before


def _read_saved(root: Path) -> list[SavedSubmodule]:
    git = git_of(root)
    found = recovery_snapshots.find_recovery(git.text, REF)
    assert found
    return read_saved_submodules(git, found, [])


def _temporary_files(repository: Path) -> list[str]:
    return [path.name for path in (repository / ".git" / "objects").rglob("*") if path.name.startswith("tmp")]


@pytest.mark.parametrize("is_refused", [False, True])
def test_many_files_of_a_submodule_leave_nothing_but_a_checked_pack(
    repository: Path, place: Worktree, is_refused: bool
) -> None:
    sub = place.path / "sub"
    for number in range(150):
        (sub / f"n{number}").write_text(f"{number}\n")
    if is_refused:
        (sub / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = -u./evil\n')
    taken = snapshot_tree(place.path)
    assert bool(taken.left_out) == is_refused
    assert _temporary_files(repository) == []
    shutil.rmtree(place.path)
    worktrees.make_worktree(repository, "", place, existed=True)
    assert (sub / "n149").exists() != is_refused


def test_settings_that_never_end_cost_no_other_submodule(
    repository: Path, library: Path, place: Worktree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_git, "_SETTINGS_SECONDS", 5.0)  # others answer in time on a busy machine
    add_submodule(place.path, library, "other")
    for name in ("sub", "other"):
        (place.path / name / "f.txt").write_text("precious\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    run_git(place.path / "sub", "config", "include.path", str(pipe))
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path)
    assert run_git(repository, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == ["sub/"]
    assert [each.path for each in _read_saved(place.path)] == [b"other"]


def test_submodule_that_hangs_leaves_time_for_others(repository: Path, library: Path, place: Worktree) -> None:
    add_submodule(place.path, library, "zz")
    for name in ("sub", "zz"):
        (place.path / name / "f.txt").write_text("precious\n")
    os.mkfifo(place.path / "sub" / ".gitignore")
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path, SnapshotLimits(seconds=20))
    assert run_git(repository, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == ["sub/"]
    assert [each.path for each in _read_saved(place.path)] == [b"zz"]


def test_filter_of_a_submodule_does_not_run_when_the_files_around_it_are_added(place: Worktree, tmp_path: Path) -> None:
    sub, trap = place.path / "sub", tmp_path / "ran"
    own = Path(run_git(sub, "rev-parse", "--absolute-git-dir"))
    (own / "info").mkdir(exist_ok=True)
    (own / "info" / "attributes").write_text("* filter=evil\n")
    run_git(sub, "config", "filter.evil.clean", f"touch {trap}; cat")
    (sub / "f.txt").write_text("LIB\n")  # as long as before, so that git compares the content
    (place.path / "beside").write_text("kept\n")
    assert snapshot_tree(place.path).left_out == []
    assert run_git(place.path, "show", f"{REF}:beside") == "kept"
    assert not trap.exists()


def _git_directory_of(root: Path) -> Path:
    return Path(run_git(root, "rev-parse", "--absolute-git-dir"))


PIPES = ("config", "HEAD", "index", "packed-refs", "commondir", "info/exclude", "refs/heads/x", "MERGE_HEAD")


@pytest.mark.parametrize("name", [*PIPES, "../.gitignore"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_pipe_in_a_submodule_costs_only_that(
    repository: Path, library: Path, place: Worktree, name: str, is_nested: bool
) -> None:
    around = place.path / "sub" if is_nested else place.path
    for other in ("evil", "zz"):
        add_submodule(around, library, other)
        (around / other / "f.txt").write_text("precious\n")
    (place.path / "beside").write_text("kept\n")
    evil = around / "evil"
    run_git(evil, "symbolic-ref", "HEAD", "refs/heads/x")
    run_git(evil, "pack-refs", "--all")
    pipe = evil / ".gitignore" if name == "../.gitignore" else _git_directory_of(evil) / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    taken = snapshot_tree(place.path, SnapshotLimits(seconds=20))
    assert run_git(repository, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == ["sub/evil/" if is_nested else "evil/"]
    assert str(pipe.name) in taken.left_out_reasons[0]
    assert (b"sub/zz" if is_nested else b"zz") in [each.path for each in _read_saved(place.path)]


def test_device_in_place_of_the_settings_of_a_submodule_costs_only_that(repository: Path, place: Worktree) -> None:
    settings = _git_directory_of(place.path / "sub") / "config"
    settings.unlink()
    settings.symlink_to("/dev/zero")
    (place.path / "beside").write_text("kept\n")
    taken = snapshot_tree(place.path, SnapshotLimits(seconds=20))
    assert run_git(repository, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == ["sub/"]


def test_pipe_for_which_a_snapshot_waits_is_named(worktree: Worktree) -> None:
    pipe = worktree.path / "deep" / ".git" / "HEAD"
    for name in ("objects", "refs"):
        (pipe.parent / name).mkdir(parents=True)
    os.mkfifo(pipe)
    with pytest.raises(GitError, match=r"deep/\.git/HEAD$"):
        snapshot_tree(worktree.path, SnapshotLimits(seconds=5))


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize(
    "name", [".gitignore", ".gitattributes", ".gitmodules", "src/.gitignore", "src/.gitattributes"]
)
def test_pipe_that_git_reads_costs_only_itself(worktree: Worktree, name: str, is_committed: bool) -> None:
    pipe = worktree.path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    if is_committed:
        commit(worktree.path, name, "# nothing\n")
        pipe.unlink()
    (pipe.parent / "beside").write_text("kept\n")
    os.mkfifo(pipe)
    git = git_of(worktree.path)
    seconds = 10 if "/" in name else 60  # git waits for a pipe that is not found before

    taken = take_snapshot(git, SESSION, worktree.path.with_name("copy"), "turn_end", SnapshotLimits(seconds=seconds))

    beside = (pipe.parent / "beside").relative_to(worktree.path)
    assert run_git(worktree.path, "show", f"{REF}:{beside}") == "kept"
    assert (taken.left_out, taken.left_out_reasons) == ([name], ["it is a pipe, which git reads as an empty file"])
    assert str(beside) in git_status(git)["untracked"], "the pages work, too"
    assert pipe.is_fifo()


def test_link_or_pipe_that_git_does_not_read_costs_nothing(worktree: Worktree) -> None:
    (worktree.path / ".gitignore").symlink_to(os.devnull)
    os.mkfifo(_git_directory_of(worktree.path) / "pipe")
    (worktree.path / "beside").write_text("kept\n")
    taken = snapshot_tree(worktree.path, SnapshotLimits(seconds=20))
    assert run_git(worktree.path, "show", f"{taken.commit}:beside") == "kept"
    assert taken.left_out == []


def test_submodule_that_takes_too_long_to_restore_leaves_time_for_others(
    repository: Path, library: Path, place: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_submodule(place.path, library, "zz")
    for name in ("sub", "zz"):
        (place.path / name / "f.txt").write_text("precious\n")
    snapshot_tree(place.path)
    shutil.rmtree(place.path)
    bring = SubmoduleRestorer._bring_commits

    def bring_without_end(self: SubmoduleRestorer, saved: SavedSubmodule, inner: WorkspaceGit) -> None:
        assert inner.deadline is not None
        while saved.path == b"sub":
            inner.run("rev-parse", "HEAD")
            inner.deadline = time.monotonic()  # as after many of them
        bring(self, saved, inner)

    monkeypatch.setattr(SubmoduleRestorer, "_bring_commits", bring_without_end)
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "the submodule sub was not restored" in note
    assert "the submodule zz" not in note
    assert (place.path / "zz" / "f.txt").read_text() == "precious\n"


def test_submodules_for_which_no_time_is_left_are_named(
    repository: Path, place: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.path / "sub" / "f.txt").write_text("precious\n")
    (place.path / "beside").write_text("kept\n")
    snapshot_tree(place.path)
    shutil.rmtree(place.path)
    monkeypatch.setattr(saved_submodules, "_SECONDS", 0.0)
    note = worktrees.make_worktree(repository, "", place, existed=True)
    assert "the submodule sub was not restored: the time for submodules was over. The snapshot is kept at" in note
    assert (place.path / "beside").read_text() == "kept\n"
