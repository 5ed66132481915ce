"""The object store contains exactly the published objects, keeps them for good, and costs nothing when idle."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executors_app.repositories import object_store
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from tests.executors.repositories import commit, run_git
from tests.repositories.workspaces import Place


def objects(path: Path) -> set[str]:
    return set(run_git(path, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())


def state(path: Path) -> dict[str, int]:
    return {str(one): one.stat().st_mtime_ns for one in path.rglob("*")}


def test_store_has_only_published_objects(place: Place, repository: Path) -> None:
    run_git(repository, "tag", "-a", "-m", "one", "v1")
    for ref in ("refs/heads/kandev/1234567890ab", "refs/kandev/recovery/1", "refs/stash"):
        run_git(repository, "checkout", "--quiet", "--detach", "main")
        run_git(repository, "update-ref", ref, commit(repository, "hidden", ref))
    reachable = set(run_git(repository, "rev-list", "--objects", "--no-object-names", "main", "v1").split())
    place.store.update()
    assert objects(place.store.path) == reachable
    assert set(place.store.refs()) == {"refs/heads/main", "refs/tags/v1"}


def test_update_without_changes_writes_nothing(place: Place, repository: Path) -> None:
    place.store.update()
    before = state(place.store.path)
    place.store.update()
    assert state(place.store.path) == before
    made = commit(repository, "news", "x")
    place.store.update()
    assert place.store.refs()["refs/heads/main"] == made
    assert len(list(place.store.path.glob("objects/pack/*.pack"))) == 2


def test_nothing_is_ever_removed(place: Place, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MAX_PACKS", 2)
    known = set()
    for number in range(6):
        commit(repository, f"file-{number}", os.urandom(200).hex())
        place.store.update()
        known |= objects(place.store.path)
        run_git(repository, "reset", "--quiet", "--hard", "HEAD~1")
        run_git(repository, "reflog", "expire", "--all", "--expire=now")
        run_git(repository, "gc", "--quiet", "--prune=now")
        place.store.update()
        assert objects(place.store.path) == known
    assert len(list(place.store.path.glob("objects/pack/*.pack"))) <= 3
    run_git(place.store.path, "fsck", "--full")


def test_store_is_world_readable_and_has_no_secrets(place: Place, repository: Path) -> None:
    run_git(repository, "config", "remote.origin.url", "https://user:secret@example.org/x")
    old = os.umask(0o077)
    try:
        place.store.update()
    finally:
        os.umask(old)
    for path in [place.store.path, *place.store.path.rglob("*")]:
        assert path.stat().st_mode & 0o444 == 0o444, path
        assert not path.stat().st_mode & 0o022, path
        assert path.is_dir() or b"secret" not in path.read_bytes()


def test_empty_repository_has_an_empty_store(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet", "team")
    place = Place(tmp_path / "data", tmp_path / "team")
    place.store.update()
    assert place.store.refs() == {}
    made = commit(place.repository, "first", "x")
    place.store.update()
    assert place.store.refs() == {"refs/heads/main": made}


def test_broken_ref_does_not_affect_others(place: Place, repository: Path) -> None:
    (repository / ".git/refs/heads/lost").write_text("0123456789" * 4 + "\n")
    place.store.update()
    assert set(place.store.refs()) == {"refs/heads/main"}


def test_damaged_objects_are_reported_and_change_nothing(place: Place, repository: Path) -> None:
    place.store.update()
    before = place.store.refs()
    made = commit(repository, "news", "x")
    tree = run_git(repository, "rev-parse", f"{made}^{{tree}}")
    (repository / ".git/objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(RepositoryUnusable, match="git fsck"):
        place.store.update()
    assert place.store.refs() == before


def test_object_with_a_false_name_is_not_stored(place: Place, repository: Path) -> None:
    made = commit(repository, "news", "x")
    wrong, right = (run_git(repository, "rev-parse", f"{made}:{name}") for name in ("README", "news"))
    folder = repository / ".git/objects"
    place_of_right = folder / right[:2] / right[2:]
    place_of_right.unlink()
    place_of_right.write_bytes((folder / wrong[:2] / wrong[2:]).read_bytes())
    with pytest.raises(RepositoryUnusable, match="git fsck"):
        place.store.update()
    assert place.store.refs() == {}
    assert right not in objects(place.store.path)


def _update(root: Path, repository: Path) -> None:
    ObjectStore.of(root, TeamRepository.open(repository)).update()


def test_concurrent_updates_make_one_pack(place: Place, repository: Path) -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_update, args=(place.root, repository)) for _ in range(2)]
    threads = [threading.Thread(target=_update, args=(place.root, repository)) for _ in range(3)]
    for process in others:
        process.start()
    for thread in threads:
        thread.start()
    for process in others:
        process.join(60)
    for thread in threads:
        thread.join(60)
    assert [process.exitcode for process in others] == [0, 0]
    assert len(list(place.store.path.glob("objects/pack/*.pack"))) == 1


def _pointer(text: bytes) -> tuple[str, str]:
    oid = hashlib.sha256(text).hexdigest()
    return oid, f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(text)}\n"


def test_lfs_files_of_published_commits_are_provided(place: Place, repository: Path) -> None:
    folder = repository / ".git/lfs/objects"

    def write_lfs_object(oid: str, text: bytes) -> None:
        (folder / oid[:2] / oid[2:4]).mkdir(parents=True, exist_ok=True)
        (folder / oid[:2] / oid[2:4] / oid).write_bytes(text)

    texts = {name: f"{name} contents".encode() for name in ("named", "unnamed", "false", "late", "elsewhere")}
    oids = {name: _pointer(text)[0] for name, text in texts.items()}
    for name in ("named", "false", "late", "elsewhere"):
        commit(repository, name, _pointer(texts[name])[1])
    write_lfs_object(oids["named"], texts["named"])
    write_lfs_object(oids["unnamed"], texts["unnamed"])
    write_lfs_object(oids["false"], b"something else")
    write_lfs_object(oids["elsewhere"], b"")
    link = folder / oids["elsewhere"][:2] / oids["elsewhere"][2:4] / oids["elsewhere"]
    link.unlink()
    (repository.parent / "host file").write_bytes(texts["elsewhere"])
    link.symlink_to(repository.parent / "host file")
    place.store.update()

    def lfs_objects() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in place.store.path.glob("lfs/objects/*/*/*")}

    assert lfs_objects() == {oids["named"]: texts["named"]}
    write_lfs_object(oids["late"], texts["late"])
    place.store.update()
    assert lfs_objects() == {oids[name]: texts[name] for name in ("named", "late")}
    copied = place.store.path / f"lfs/objects/{oids['named'][:2]}/{oids['named'][2:4]}/{oids['named']}"
    assert (copied.stat().st_nlink, copied.stat().st_mode & 0o777) == (1, 0o444)


def _sparse_lfs_object(repository: Path, size: int) -> Path:
    """Publish a pointer to a file of zeros, which takes no room on the disk; return the file."""
    zeros = hashlib.sha256()
    for _ in range(size >> 20):
        zeros.update(bytes(1 << 20))
    oid = zeros.hexdigest()
    commit(repository, "pointer", f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n")
    path = repository / f".git/lfs/objects/{oid[:2]}/{oid[2:4]}/{oid}"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("limit", ["of a file", "of the disk"])
def test_lfs_file_that_would_fill_the_disk_is_not_copied(
    limit: str, place: Place, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 8 << 20
    _sparse_lfs_object(repository, size)
    if limit == "of a file":
        monkeypatch.setattr(object_store, "LFS_LIMIT", size - 1)
    else:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10 * size, free=size + size // 4))
    place.store.update()
    assert not list(place.store.path.glob("lfs/objects/*/*/*"))
    monkeypatch.undo()
    place.store.update()
    assert [path.stat().st_size for path in place.store.path.glob("lfs/objects/*/*/*")] == [size]


def test_lfs_file_that_grows_while_it_is_copied_is_copied_as_it_was(
    place: Place, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    grown = _sparse_lfs_object(repository, size)
    copy = object_store._copy_beginning

    def grow_and_copy(*arguments: Any) -> None:
        with grown.open("ab") as file:
            file.truncate(2 * size)
        copy(*arguments)

    monkeypatch.setattr(object_store, "_copy_beginning", grow_and_copy)
    place.store.update()
    assert [path.stat().st_size for path in place.store.path.glob("lfs/objects/*/*/*")] == [size]
