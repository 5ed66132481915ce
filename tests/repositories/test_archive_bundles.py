"""An invalid bundle is refused and changes nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.repositories import archive as archives
from executors_app.repositories import git
from executors_app.repositories.archive import Archive
from executors_app.wire.errors import BundleRefused
from tests.executors.repositories import commit, run_git
from tests.repositories.workspaces import BRANCH, HEAD, OTHER, RECOVERY, SESSION, Place, bundle, files


def test_bundle_without_refs_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("# v2 git bundle\n\n")
    archive = Archive.of(tmp_path / "data", SESSION)
    assert archive.take_in(tmp_path / "sent", BRANCH) == {}
    archive.follow(BRANCH, {})


STRANGE = [
    "refs/heads/main",
    "refs/heads/kandev/abcdef123456",
    f"refs/kandev/recovery/{OTHER}",
    f"refs/kandev/kept/{OTHER}/0123456789ab",
    f"refs/kandev/kept/{SESSION}/../{OTHER}/0123456789ab",
    f"refs/kandev/kept/{SESSION}/x",
    f"refs/kandev/kept/{SESSION}",
    f"refs/kandev/arrived/{SESSION}/0123456789ab",
    "refs/tags/v1",
    "refs/replace/0123456789012345678901234567890123456789",
    "refs/heads/kandev/1234567890ab/x",
    "refs/heads/kandev/1234567890ab.lock",
]


@pytest.mark.parametrize("ref", STRANGE)
def test_bundle_with_foreign_refs_is_refused(ref: str, place: Place, sandbox: Path, tmp_path: Path) -> None:
    made = commit(sandbox, "one", "work\n")
    pack = bundle(sandbox).read_bytes().partition(b"\n\n")[2]
    (tmp_path / "sent").write_bytes(f"# v2 git bundle\n{made} {HEAD}\n{made} {ref}\n\n".encode() + pack)
    before = files(place.archive.path)
    with pytest.raises(BundleRefused, match="not this workspace's"):
        place.archive.take_in(tmp_path / "sent", BRANCH)
    assert files(place.archive.path) == before


def _pack(sandbox: Path) -> tuple[str, bytes]:
    made = commit(sandbox, "one", "work\n")
    return made, bundle(sandbox).read_bytes().partition(b"\n\n")[2]


def test_truncated_bundle_changes_nothing(place: Place, sandbox: Path, tmp_path: Path) -> None:
    made = commit(sandbox, "one", "work\n")
    whole = bundle(sandbox).read_bytes()
    before, sent = files(place.archive.path), tmp_path / "sent"
    head = whole.index(b"\n\n") + 2
    cuts = {*range(0, head, 7), *range(head + 1, len(whole), 53), len(whole) - 1}
    for cut in sorted(cuts):
        sent.write_bytes(whole[:cut])
        with pytest.raises(BundleRefused):
            place.archive.take_in(sent, BRANCH)
    for flip in range(head + 12, len(whole), 47):
        sent.write_bytes(whole[:flip] + bytes([whole[flip] ^ 1]) + whole[flip + 1 :])
        with pytest.raises(BundleRefused):
            place.archive.take_in(sent, BRANCH)
    assert files(place.archive.path) == before
    sent.write_bytes(whole)
    assert place.archive.take_in(sent, BRANCH)[HEAD] == made


HEADS = {
    "another version": b"# v4 git bundle\n\n",
    "a filter": b"# v3 git bundle\n@filter=blob:none\n\n",
    "a capability of version 2": b"# v2 git bundle\n@object-format=sha1\n\n",
    "an unknown format": b"# v3 git bundle\n@object-format=md5\n\n",
    "a strange line": b"# v2 git bundle\nHEAD\n\n",
    "a short name": b"# v2 git bundle\n0123 refs/heads/x\n\n",
    "a long name": b"# v2 git bundle\n" + b"0" * 64 + b" refs/heads/x\n\n",
    "bytes that are not text": b"# v2 git bundle\n\xff\n\n",
    "too many refs": b"# v2 git bundle\n" + b"".join(b"%040d refs/x/%d\n" % (n, n) for n in range(600)) + b"\n",
    "a ref twice": b"# v2 git bundle\n%040d refs/x\n%040d refs/x\n\n" % (1, 2),
    "a head without an end": b"# v2 git bundle\n" + b"-%040d\n" % 1 * 10_000,
    "no pack": b"# v2 git bundle\n\nPACKAGE------",
    "too many objects": b"# v2 git bundle\n\nPACK\0\0\0\2\xff\xff\xff\xff",
    "an empty file": b"",
}


@pytest.mark.parametrize("what", HEADS)
def test_invalid_bundle_header_is_refused(what: str, place: Place, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(HEADS[what])
    with pytest.raises(BundleRefused):
        place.archive.take_in(tmp_path / "sent", BRANCH)


def test_bundle_of_another_object_format_is_refused(place: Place, sandbox: Path, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"# v3 git bundle\n@object-format=sha256\n\n")
    with pytest.raises(BundleRefused, match="another object format"):
        place.archive.take_in(tmp_path / "sent", BRANCH)


def test_commits_missing_from_the_archive_are_named(place: Place, sandbox: Path) -> None:
    missing = commit(sandbox, "one", "work\n")
    commit(sandbox, "two", "work\n")
    with pytest.raises(BundleRefused) as refused:
        place.archive.take_in(bundle(sandbox, f"HEAD~1..{HEAD}"), BRANCH)
    assert refused.value.details["missing"] == [missing]
    assert refused.value.code == "bundle_refused"


def test_incomplete_pack_is_refused(place: Place, sandbox: Path, tmp_path: Path) -> None:
    made = commit(sandbox, "one", "work\n")
    pack = run_git(sandbox, "pack-objects", "-q", str(tmp_path / "part"), stdin=_names(tmp_path, made))
    data = (tmp_path / f"part-{pack}.pack").read_bytes()
    (tmp_path / "sent").write_bytes(f"# v2 git bundle\n{made} {HEAD}\n\n".encode() + data)
    before = files(place.archive.path)
    with pytest.raises(BundleRefused):
        place.archive.take_in(tmp_path / "sent", BRANCH)
    assert files(place.archive.path) == before


def _names(tmp_path: Path, *names: str) -> Path:
    (tmp_path / "names").write_text("".join(f"{name}\n" for name in names))
    return tmp_path / "names"


def test_pack_with_a_broken_tree_is_refused(place: Place, sandbox: Path, tmp_path: Path) -> None:
    blob = run_git(sandbox, "rev-parse", "HEAD:README")
    (tmp_path / "tree").write_bytes(b"100644 .git\0" + bytes.fromhex(blob))
    tree = run_git(sandbox, "hash-object", "--literally", "-t", "tree", "-w", str(tmp_path / "tree"))
    made = run_git(sandbox, "commit-tree", tree, "-p", "HEAD", "-m", "evil")
    run_git(sandbox, "update-ref", HEAD, made)
    with pytest.raises(BundleRefused, match="hasDotgit"):
        place.archive.take_in(bundle(sandbox, f"{made}~1..{HEAD}"), BRANCH)
    assert made not in place.archive.tips().values()


def test_ref_that_is_no_commit_is_refused(place: Place, sandbox: Path, tmp_path: Path) -> None:
    made = commit(sandbox, "one", "work\n")
    tree = run_git(sandbox, "rev-parse", f"{made}^{{tree}}")
    pack = bundle(sandbox).read_bytes().partition(b"\n\n")[2]
    (tmp_path / "sent").write_bytes(f"# v2 git bundle\n{tree} {RECOVERY}\n\n".encode() + pack)
    with pytest.raises(BundleRefused, match="something other than its own commits"):
        place.archive.take_in(tmp_path / "sent", BRANCH)


@pytest.mark.parametrize("what", ["BUNDLE_LIMIT", "ARCHIVE_LIMIT", "KEPT_LIMIT"])
def test_sizes_are_limited(what: str, place: Place, sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(sandbox, "one", os.urandom(40_000).hex())
    run_git(sandbox, "update-ref", RECOVERY, "HEAD")
    sent, before = bundle(sandbox, HEAD, RECOVERY), files(place.archive.path)
    monkeypatch.setattr(archives, what, 1 if what == "KEPT_LIMIT" else 20_000)
    with pytest.raises(BundleRefused, match=r"longer|larger|more than"):
        place.archive.take_in(sent, BRANCH)
    assert files(place.archive.path) == before


def test_git_starts_with_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits set on a running git would be too late for a pack that expands at once."""
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nulimit -v\nulimit -Hv\nulimit -f\nulimit -t\nulimit -c\n")
    program.chmod(0o755)
    monkeypatch.setattr(git, "git_executable", lambda: str(program))
    bounds = replace(git.LOOKUP, memory=1 << 30, file=1 << 20, cpu=7)
    assert git.Git(tmp_path).run("index-pack", bounds=bounds).split() == [b"1048576", b"1048576", b"2048", b"7", b"0"]
