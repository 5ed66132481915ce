"""Whatever a workspace sends, its unpacked size is known and limited before git unpacks any of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executors_app.machine.untrusted_files import Directory
from executors_app.repositories import archive, pack_check, published_packs, ref_files, transfer
from executors_app.repositories.workspace_store import publish
from executors_app.wire.errors import BundleRefused, PublicationRefused
from tests.executors.repositories import commit, run_git
from tests.growth import FLOOR_OF_CALLS, measure_growth
from tests.repositories import hostile_packs
from tests.repositories.hostile_packs import BLOB, DELTA
from tests.repositories.usage import GitUsage, bytes_below
from tests.repositories.workspaces import BRANCH, HEAD, Place, files, make_turn

MIB = 1 << 20


def _big_blob() -> list[bytes]:
    return [hostile_packs.entry(BLOB, 2 << 30, hostile_packs.zeros(MIB))]  # the whole would be 2 MB long


def _false_size() -> list[bytes]:
    return [hostile_packs.entry(BLOB, 1000, hostile_packs.zeros(64 * MIB))]


def _short_blob() -> list[bytes]:
    return [hostile_packs.entry(BLOB, 1000, hostile_packs.zeros(999))]


def _big_delta() -> list[bytes]:
    return list(hostile_packs.delta_objects(1, 1 << 14))


def _many_deltas() -> list[bytes]:
    return list(hostile_packs.delta_objects(80, 1 << 10))


def _delta_without_sizes() -> list[bytes]:
    return [hostile_packs.entry(DELTA, 1, hostile_packs.zeros(1), bytes(20))]


def _endless_size() -> list[bytes]:
    return [bytes([0xB0]) + b"\xff" * 40]


def _big_tree() -> list[bytes]:
    size = 64 * MIB
    return [hostile_packs.entry(2, size, hostile_packs.zeros(size))]


def _unknown_kind() -> list[bytes]:
    return [hostile_packs.entry(5, 1, hostile_packs.zeros(1))]


BOMBS = {
    "a blob of 2 GiB": (_big_blob, "object is too large"),
    "a blob with a false size": (_false_size, "damaged"),
    "a blob that is too short": (_short_blob, "damaged"),
    "a delta of 1 GiB": (_big_delta, "object is too large"),
    "deltas of 5 GiB": (_many_deltas, "too large in total"),
    "a delta without sizes": (_delta_without_sizes, "damaged"),
    "a size without an end": (_endless_size, "damaged"),
    "a tree of 64 MiB": (_big_tree, "commit, tree or tag is too large"),
    "an object of no kind": (_unknown_kind, "damaged"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_pack_that_expands_is_refused_before_git_sees_it(
    what: str, place: Place, sandbox: Path, tmp_path: Path, usage: GitUsage
) -> None:
    make, words = BOMBS[what]
    sent = hostile_packs.bundle_of(tmp_path, place.archive.tips()[HEAD], make())
    assert sent.stat().st_size < 3 * MIB
    before = files(place.archive.path)
    usage.reset()
    with pytest.raises(BundleRefused, match=words):
        place.archive.take_in(sent, BRANCH)
    assert files(place.archive.path) == before
    assert usage.peak_memory < 128 * MIB
    assert usage.cpu_seconds < 30


def test_stream_is_inflated_no_further_than_its_declared_size(tmp_path: Path) -> None:
    (tmp_path / "stream").write_bytes(hostile_packs.zeros(64 * MIB))
    inflated = 0
    with (tmp_path / "stream").open("rb", buffering=0) as file, pytest.raises(pack_check.Refused):
        for piece in pack_check.PackReader(file.fileno(), 0).inflate(1000):
            inflated += len(piece)
    assert inflated < 2 * MIB


def test_measured_size_is_what_git_unpacks(repository: Path, tmp_path: Path) -> None:
    for turn in range(5):
        commit(repository, "file", "".join(f"{line * turn}\n" for line in range(2000)))
        commit(repository, f"random-{turn}", os.urandom(5000).hex())
    run_git(repository, "repack", "-a", "-d", "-f", "--depth=50")
    (path,) = (repository / ".git/objects/pack").glob("*.pack")
    with path.open("rb", buffering=0) as file:
        measured = transfer.measure_pack(file, 0, "sha1")
    lines = run_git(repository, "verify-pack", "-v", str(path)).splitlines()
    objects = [
        line.split() for line in lines if line[:4].isalnum() and len(line.split()) >= 5 and len(line.split()[0]) == 40
    ]
    about = run_git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectsize)").splitlines()
    deltas = [int(words[2]) for words in objects if len(words) > 5]
    assert deltas
    assert measured.objects == len(objects)
    # A delta counts with its own size, too.
    assert measured.inflated == sum(map(int, about)) + sum(deltas)


def _work_of(place: Place, tmp_path: Path, *, results: int, times: int) -> Path:
    """Return the bundle of a commit whose blobs are deltas that expand."""
    names = hostile_packs.delta_results(results, times)
    tree, stored = hostile_packs.tree_entry([("100644", f"{index:04}", name) for index, name in enumerate(names)])
    made, text = hostile_packs.commit_entry(tree, place.archive.tips()[HEAD])
    objects = [*hostile_packs.delta_objects(results, times), stored, text]
    return hostile_packs.bundle_of(tmp_path, made, objects)


def test_published_pack_grows_the_repository_by_its_own_size(
    place: Place, repository: Path, sandbox: Path, tmp_path: Path, usage: GitUsage
) -> None:
    sent = _work_of(place, tmp_path, results=64, times=80)  # 320 MiB unpacked
    assert sent.stat().st_size < 100_000
    place.archive.take_in(sent, BRANCH)
    before = bytes_below(repository)
    assert publish(place.team, place.archive, BRANCH).moved
    assert bytes_below(repository) - before < MIB
    assert usage.peak_memory < 512 * MIB
    assert place.archive.published().inflated > 320 * MIB
    run_git(repository, "fsck", "--full", "--strict")


BOMB_SHAPES = {"wide": (6, 40), "deep": (20_000, 1), "of directories": (40, 2)}


@pytest.mark.parametrize("shape", BOMB_SHAPES)
def test_tree_with_too_many_paths_is_refused(
    shape: str, place: Place, sandbox: Path, tmp_path: Path, usage: GitUsage, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, width = BOMB_SHAPES[shape]
    monkeypatch.setattr(archive, "MAX_PATHS", 10_000)
    made, objects = hostile_packs.tree_bomb(place.archive.tips()[HEAD], depth=depth, width=width)
    before = files(place.archive.path)
    with pytest.raises(BundleRefused, match="more than 10000 paths"):
        place.archive.take_in(hostile_packs.bundle_of(tmp_path, made, objects), BRANCH)
    assert files(place.archive.path) == before
    assert usage.peak_memory < 512 * MIB


QUOTAS = {"PUBLISHED_BYTES": "stored", "PUBLISHED_INFLATED": "inflated", "PUBLISHED_OBJECTS": "objects"}


@pytest.mark.parametrize("limit", QUOTAS)
def test_workspace_publishes_no_more_than_its_quota(
    limit: str, place: Place, repository: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_turn(place, sandbox, "one")
    publish(place.team, place.archive, BRANCH)
    used = getattr(place.archive.published(), QUOTAS[limit])
    monkeypatch.setattr(published_packs, limit, used + 1)
    second = make_turn(place, sandbox, "two", os.urandom(5000).hex())
    before = bytes_below(repository)
    with pytest.raises(PublicationRefused, match="kept in its archive"):
        publish(place.team, place.archive, BRANCH)
    assert run_git(repository, "rev-parse", HEAD) == first
    assert place.archive.tips()[HEAD] == second
    assert bytes_below(repository) == before


def test_published_work_is_charged_once(place: Place, sandbox: Path) -> None:
    for turn in range(3):
        make_turn(place, sandbox, f"turn-{turn}", f"{turn}\n")
        publish(place.team, place.archive, BRANCH)
    published = place.archive.published()
    assert published.objects == 9
    publish(place.team, place.archive, BRANCH)
    assert place.archive.published() == published


def test_cost_of_a_bundle_grows_linearly(place: Place, sandbox: Path, tmp_path: Path) -> None:
    """Unpacked bytes of 40 to 640 MiB cost CPU in proportion; the smallest is well above the start of a process."""
    growth = measure_growth(
        lambda bundle: place.archive.take_in(bundle, BRANCH),
        lambda size: _work_of(place, tmp_path, results=size // 4, times=64),
        sizes=(40, 80, 160, 320, 640),
        pools=(),
    )
    growth.assert_bounded()


def test_cost_of_many_objects_grows_linearly(place: Place, sandbox: Path, tmp_path: Path) -> None:
    """From 4,000 to 64,000 files in one directory, each another blob."""

    def directory_of(size: int) -> Path:
        blobs = [hostile_packs.stored_object(BLOB, b"%d of %d" % (number, size)) for number in range(size)]
        children = [("100644", f"{number:06}", name) for number, (name, _) in enumerate(blobs)]
        tree, stored = hostile_packs.tree_entry(children)
        made, text = hostile_packs.commit_entry(tree, place.archive.tips()[HEAD])
        return hostile_packs.bundle_of(tmp_path, made, [*(entry for _, entry in blobs), stored, text])

    sizes = (4_000, 8_000, 16_000, 32_000, 64_000)
    measure_growth(
        lambda bundle: place.archive.take_in(bundle, BRANCH), directory_of, sizes=sizes, pools=()
    ).assert_bounded()


def test_cost_of_reading_refs_grows_linearly(repository: Path, tmp_path: Path) -> None:
    """From 1,000 to 16,000 loose refs of a team's repository."""
    head = run_git(repository, "rev-parse", "HEAD")

    def repository_with(size: int) -> tuple[Directory, int]:
        heads = tmp_path / f"{size}/refs/heads"
        heads.mkdir(parents=True)
        for number in range(size):
            (heads / f"{number}").write_text(head)
        return Directory(tmp_path / f"{size}"), size

    def read(given: tuple[Directory, int]) -> None:
        directory, size = given
        assert len(ref_files.read_refs(directory)) == size

    sizes = (1_000, 2_000, 4_000, 8_000, 16_000)
    measure_growth(read, repository_with, sizes=sizes, pools=(), floor=FLOOR_OF_CALLS).assert_bounded()
