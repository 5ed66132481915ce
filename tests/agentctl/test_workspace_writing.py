"""A file is written only over the version that its writer has read, and completely or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.file_writing import WRITE_LIMIT
from tests.agentctl.running import Running


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_file_is_read_changed_and_written(running: Running) -> None:
    place = running.workspace / "script"
    place.write_bytes(b"old")
    place.chmod(0o750)
    read = await running.get("/files/content", path="script")

    status, answer = await running.put("script", b"new\0", read["hash"])

    assert (status, answer) == (200, {"path": "script", "size": 4, "hash": hash_of(b"new\0"), "created": False})
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new\0", 0o750)
    assert [path.name for path in running.workspace.iterdir()] == ["script"]


async def test_new_file_is_created(running: Running) -> None:
    (running.workspace / "folder").mkdir()
    status, answer = await running.put("folder/new", b"x")
    assert (status, answer["created"]) == (201, True)
    assert (running.workspace / "folder/new").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("present", "expected"),
    [(b"changed", hash_of(b"old")), (b"old", None), (None, hash_of(b"old")), (None, "*")],
    ids=["changed since", "already exists", "deleted since", "does not exist"],
)
async def test_unseen_changes_are_not_overwritten(
    running: Running, present: bytes | None, expected: str | None
) -> None:
    place = running.workspace / "file"
    if present is not None:
        place.write_bytes(present)

    status, answer = await running.put("file", b"mine", expected)

    assert (status, answer["code"]) == (409, "conflict")
    assert (place.read_bytes() if place.exists() else None) == present


async def test_star_precondition_overwrites_any_content(running: Running) -> None:
    (running.workspace / "file").write_bytes(b"x")
    assert (await running.put("file", b"y", "*"))[0] == 200
    assert (await running.put("file", b"z", f'"{hash_of(b"y")}"'))[0] == 200


@pytest.mark.parametrize("expected", ["", "abc", "W/abc", "a" * 63, '"*"', "* , *"])
async def test_invalid_precondition_is_refused(running: Running, expected: str) -> None:
    assert (await running.put("file", b"y", expected))[1]["code"] == "validation_error"


async def test_link_inside_the_workspace_is_followed_and_kept(running: Running) -> None:
    (running.workspace / "real").write_bytes(b"x")
    (running.workspace / "link").symlink_to("real")
    assert (await running.put("link", b"y", hash_of(b"x")))[0] == 200
    assert (running.workspace / "link").is_symlink()
    assert (running.workspace / "real").read_bytes() == b"y"


async def test_hard_link_outside_the_workspace_keeps_its_content(running: Running) -> None:
    outside = running.workspace.parent / "outside"
    outside.write_bytes(b"x")
    os.link(outside, running.workspace / "file")
    assert (await running.put("file", b"y", "*"))[0] == 200
    assert outside.read_bytes() == b"x"


@pytest.mark.parametrize("size", [WRITE_LIMIT + 1, 17 << 20])
async def test_oversized_content_is_refused(running: Running, size: int) -> None:
    status, answer = await running.put("file", b"x" * size)
    assert (status, answer["code"]) == (413, "too_large")
    assert not list(running.workspace.iterdir())


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "socket"])
async def test_only_regular_files_are_written(running: Running, kind: str) -> None:
    place = running.workspace / "it"
    if kind == "directory":
        place.mkdir()
    elif kind == "device":
        place.symlink_to("/dev/null")
    else:
        os.mkfifo(place)
    assert (await running.put("it", b"x", "*"))[1]["code"] == "validation_error"


async def test_missing_directory_is_not_created(running: Running) -> None:
    status, answer = await running.put("no/such/file", b"x")
    assert (status, answer["code"]) == (404, "not_found")


async def test_read_tells_whether_a_file_is_binary(running: Running) -> None:
    for name, data, binary in (("text", b"hi", False), ("picture", b"\x89PNG\0", True)):
        (running.workspace / name).write_bytes(data)
        answer = await running.get("/files/content", path=name)
        assert (answer["binary"], answer["hash"]) == (binary, hash_of(data))
    (running.workspace / "long").write_bytes(b"x" * ((1 << 20) + 1))
    assert (await running.get("/files/content", path="long"))["hash"] is None


async def test_write_overtaken_by_the_agent_changes_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    place = running.workspace / "file"
    place.write_bytes(b"old")
    fsync = os.fsync

    def overtaken(fd: int) -> None:  # the agent writes at the same time
        place.write_bytes(b"the agent's")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", overtaken)
    status, answer = await running.put("file", b"mine", hash_of(b"old"))
    assert (status, answer["code"]) == (409, "conflict")
    assert [path.name for path in Path(running.workspace).iterdir()] == ["file"]
    assert place.read_bytes() == b"the agent's"
