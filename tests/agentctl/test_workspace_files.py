"""Files of the workspace are served, and no other files of the machine."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

import pytest

from tests.agentctl.running import Running


async def test_directory_is_listed_by_name_and_type(running: Running) -> None:
    root = running.workspace
    (root / "b.txt").write_text("hello")
    (root / "a").mkdir()
    (root / "out").symlink_to("/etc")
    os.mkfifo(root / "pipe")

    listing = await running.get("/files")

    assert listing["path"] == ""
    assert [(entry["name"], entry["type"]) for entry in listing["entries"]] == [
        ("a", "directory"),
        ("b.txt", "file"),
        ("out", "symlink"),
        ("pipe", "other"),
    ]
    assert listing["entries"][1]["size"] == 5
    assert (await running.get("/files", path="a")) == {"path": "a", "entries": [], "truncated": False}


@pytest.mark.parametrize(
    ("data", "encoding"),
    [(b"", "utf-8"), ("grüße\n".encode(), "utf-8"), (b"\xff\xfe", "base64"), (b"a\0b", "base64")],
)
async def test_content_is_text_where_possible_and_base64_otherwise(
    running: Running, data: bytes, encoding: str
) -> None:
    (running.workspace / "file").write_bytes(data)

    answer = await running.get("/files/content", path="file")

    content = answer["content"].encode() if encoding == "utf-8" else base64.b64decode(answer["content"])
    assert (answer["encoding"], content, answer["size"], answer["truncated"]) == (encoding, data, len(data), False)


async def test_large_file_is_truncated_between_characters_and_marked(running: Running) -> None:
    (running.workspace / "file").write_text("x" + "ü" * (1 << 20))

    answer = await running.get("/files/content", path="file")

    assert answer["truncated"]
    assert answer["size"] == 1 + 2 * (1 << 20)
    assert answer["content"] == "x" + "ü" * ((1 << 19) - 1)


async def test_link_inside_the_workspace_is_followed(running: Running) -> None:
    (running.workspace / "real").write_text("hello")
    (running.workspace / "link").symlink_to("real")

    assert (await running.get("/files/content", path="link"))["content"] == "hello"


async def test_names_that_are_not_utf8_do_not_break_the_listing(running: Running) -> None:
    (running.workspace / os.fsdecode(b"bad\xffname")).write_text("x")

    assert [entry["name"] for entry in (await running.get("/files"))["entries"]] == ["bad\ufffdname"]


ESCAPES = {
    "up": "../secret",
    "up, hidden": "a/../../secret",
    "absolute": "/etc/passwd",
    "a link to a file": "to-file",
    "a link to a directory": "to-directory/secret",
    "a link in a directory": "a/up/../../secret",
    "a link to itself": "loop",
    "a device": "device",
}


@pytest.mark.parametrize("path", ESCAPES.values(), ids=ESCAPES)
async def test_nothing_outside_the_workspace_is_read(running: Running, path: str) -> None:
    root, outside = running.workspace, running.workspace.parent
    (outside / "secret").write_text("secret")
    (root / "a").mkdir()
    (root / "to-file").symlink_to(outside / "secret")
    (root / "to-directory").symlink_to(outside)
    (root / "a" / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "device").symlink_to("/dev/zero")

    for endpoint in ("/files", "/files/content"):
        assert (await running.get(endpoint, path=path))["code"] == "validation_error"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("path=none-such", 404),
        ("path=file/below", 404),
        ("path=" + "x" * 256, 400),
        ("path=" + "%C3%BC" * 128, 400),
        ("path=" + "x/" * 3000, 400),
        ("path=a%00b", 400),
        ("path=%FF", 404),
        ("path=%ED%A0%80", 404),
        ("path=directory", 400),
        ("path=", 400),
        ("path=pipe", 400),
        ("path=socket", 400),
    ],
)
async def test_unreadable_path_is_refused(running: Running, query: str, status: int) -> None:
    (running.workspace / "file").write_text("x")
    (running.workspace / "directory").mkdir()
    os.mkfifo(running.workspace / "pipe")
    listener = _bind(running.workspace / "socket")

    async with running.http.get(f"{running.url}/files/content?{query}", headers=running.headers) as response:
        body = await response.json()

    listener.close()
    assert response.status == status
    assert body.keys() == {"code", "message", "details"}


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
    return listener


async def test_missing_workspace_is_reported(running: Running) -> None:
    running.workspace.rmdir()

    assert (await running.get("/files"))["code"] == "worktree_missing"
    assert (await running.get("/status"))["workspace"]["exists"] is False


@pytest.mark.parametrize("is_worktree", [False, True])
async def test_status_names_the_branch(running: Running, is_worktree: bool) -> None:
    git_directory = running.workspace / ".git"
    if is_worktree:
        git_directory = running.workspace.parent / "worktrees" / "one"
        (running.workspace / ".git").write_text(f"gitdir: {git_directory}\n")
    git_directory.mkdir(parents=True)
    (git_directory / "HEAD").write_text("ref: refs/heads/feature/one\n")

    assert (await running.get("/status"))["workspace"]["branch"] == "feature/one"
