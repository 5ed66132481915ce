"""Hostile paths, revisions and messages get a clear error and change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agentctl.running import Running
from tests.executors.repositories import run_git

BAD, MISSING, LARGE, CONFLICT = (400, "validation_error"), (404, "not_found"), (413, "too_large"), (409, "conflict")
REFUSED = (409, "git_failed")
Expected = tuple[int, str]


@dataclass(frozen=True)
class Attack:
    """A request and the only response that it may get."""

    name: str
    method: str
    endpoint: str
    expected: Expected
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


def read(name: str, path: str, expected: Expected = BAD) -> Attack:
    return Attack(f"read {name}", "GET", "/files/content", expected, {"path": path})


def write(name: str, path: str, expected: Expected = BAD) -> Attack:
    return Attack(f"write {name}", "PUT", "/files/content", expected, {"path": path})


def diff(name: str, path: str, expected: Expected = BAD) -> Attack:
    return Attack(f"diff {name}", "GET", "/git/diff", expected, {"path": path})


def hunks(name: str, expected: Expected = BAD, **query: str) -> Attack:
    return Attack(f"hunks of {name}", "GET", "/git/hunks", expected, query)


def log(name: str, expected: Expected = BAD, **query: str) -> Attack:
    return Attack(f"log {name}", "GET", "/git/log", expected, query)


def commit(name: str, expected: Expected = BAD, **body: Any) -> Attack:
    return Attack(f"commit {name}", "POST", "/git/commit", expected, {}, {"message": "m", **body})


def loss(name: str, expected: Expected = BAD, **query: str) -> Attack:
    return Attack(f"loss of {name}", "GET", "/git/loss", expected, query)


def undo(name: str, expected: Expected = BAD, **body: Any) -> Attack:
    return Attack(f"undo {name}", "POST", "/git/undo", expected, {}, {"version": "v", **body})


def select(name: str, path: str, expected: Expected = (409, "file_changed"), **values: Any) -> Attack:
    file = {"path": path, "content": "file", "version": "0" * 40, **values}
    return Attack(
        f"commit selected {name}", "POST", "/git/commit/selected", expected, {}, {"message": "x", "files": [file]}
    )


def part(name: str, expected: Expected = BAD, **query: str) -> Attack:
    return Attack(f"part {name}", "GET", "/git/part", expected, query)


def part_hunks(name: str, expected: Expected = BAD, **query: str) -> Attack:
    return Attack(f"hunks of a part, {name}", "GET", "/git/part/hunks", expected, query)


NO_COMMIT = "0" * 40
LONG = "x" * 256
DEEP = "x/" * 3000
ATTACKS = [
    read("up", "../secret"),
    read("up in the middle", "folder/../../secret"),
    read("an absolute path", "/etc/passwd"),
    read("through a link to a directory", "to-outside/secret"),
    read("through a link to a file", "to-secret"),
    read("through two links", "folder/back/to-secret"),
    read("a loop of links", "loop"),
    read("a device", "device"),
    read("a NUL", "a\0b"),
    read("a long name", LONG),
    read("a deep path", DEEP),
    read("an option", "--output=x", MISSING),
    read("another process", "/proc/self/environ"),
    write("up", "../stolen"),
    write("up in the middle", "folder/../../stolen"),
    write("an absolute path", "/tmp/stolen"),
    write("through a link to a directory", "to-outside/stolen"),
    write("over what a link leads out to", "to-secret"),
    write("through a link to nowhere", "to-nothing", MISSING),
    write("a loop of links", "loop"),
    write("a NUL", "a\0b"),
    write("a long name", LONG),
    write("a deep path", DEEP),
    write("the workspace itself", "."),
    write("nothing", ""),
    write("a directory", "folder"),
    write("a hook", ".git/hooks/pre-commit"),
    write("git's settings", ".git/config"),
    write("git's settings, in capitals", ".GIT/config"),
    write("git's settings, through a link", "to-git/config"),
    write("the pointer to git", ".git"),
    write("the settings of a repository inside", "folder/.git/config"),
    write("git's settings, over a detour", "folder/./../.git/config"),
    write("below a file", "README/x", MISSING),
    diff("an option", "--output=stolen", MISSING),
    diff("a short option", "-O/etc/passwd", MISSING),
    diff("no index", "--no-index", MISSING),
    diff("up", "../secret"),
    diff("an absolute path", "/etc/passwd"),
    diff("through a link", "to-outside/secret"),
    diff("a NUL", "a\0b"),
    diff("a pattern", "*", MISSING),
    diff("magic", ":(top)README", MISSING),
    diff("magic that excludes", ":!README", MISSING),
    diff("a revision", "HEAD:README", MISSING),
    diff("a range", "HEAD~1..HEAD", MISSING),
    diff("a reflog entry", "HEAD@{1}", MISSING),
    diff("git's settings", ".git/config"),
    hunks("nothing"),
    hunks("up", path="../secret"),
    hunks("an absolute path", path="/etc/passwd"),
    hunks("a file through a link", path="to-outside/secret"),
    hunks("git's settings", path=".git/config"),
    hunks("a NUL", path="a\0b"),
    hunks("a line number that is none", path="README", context="--all"),
    hunks("too many lines", path="README", context="1000000"),
    loss("nothing", path="", action="discard"),
    loss("up", path="../secret", action="discard"),
    loss("a file through a link", path="to-outside/secret", action="discard"),
    loss("git's settings", path=".git/config", action="discard"),
    loss("a pattern", CONFLICT, path="*", action="discard"),
    loss("magic", CONFLICT, path=":(top)README", action="unstage"),
    loss("an unknown action", path="README", action="--hard"),
    undo("up", path="../secret", action="discard"),
    undo("an absolute path", path="/etc/passwd", action="discard"),
    undo("git's settings", path=".git/config", action="discard"),
    undo("a pattern", CONFLICT, path="*", action="discard"),
    undo("an unknown action", path="README", action="clean"),
    undo("an unchanged file", CONFLICT, path="README", action="discard"),
    undo("a new file of another version", (409, "file_changed"), path="to-nothing", action="discard", version="é"),
    select("up", "../secret"),
    select("an absolute path", "/etc/passwd"),
    select("a file through a link", "to-outside/secret"),
    select("git's settings", ".git/config"),
    select("a pattern", "*"),
    select("magic", ":(top)README"),
    select("an option", "--all"),
    select("an unknown content", "README", BAD, content="--all"),
    part("named like an option", commit="--output=stolen"),
    part("of all refs", commit="--all"),
    part("that is a range", commit="HEAD..other"),
    part("that is a revision", commit="HEAD"),
    part("with a short id", commit="abc"),
    part("with a line end", commit=f"{NO_COMMIT}\n--all"),
    part("without an end", before=NO_COMMIT),
    part("of two kinds", commit=NO_COMMIT, before=NO_COMMIT, after=NO_COMMIT),
    part_hunks("nothing"),
    part_hunks("up", path="../secret"),
    part_hunks("through a link", path="to-outside/secret"),
    part_hunks("git's settings", path=".git/config"),
    part_hunks("a NUL", path="a\0b"),
    part_hunks("up, of a commit", path="../secret", commit=NO_COMMIT),
    part_hunks("an option as commit", path="README", commit="--output=stolen"),
    log("an option", ref="--output=stolen"),
    log("another option", ref="-p"),
    log("all refs", ref="--all"),
    log("a range", ref="HEAD..other"),
    log("everything but", ref="^HEAD"),
    log("a reflog entry", ref="HEAD@{0}"),
    log("a search", ref=":/Write"),
    log("a file in a commit", ref="HEAD:README"),
    log("a parent", ref="HEAD~1"),
    log("two names", ref="HEAD other"),
    log("a line end", ref="HEAD\n--all"),
    log("a NUL", ref="HEAD\0"),
    log("an outer program", ref="ext::sh -c touch% stolen"),
    log("a ref named like an option", ref="--stolen"),
    log("a long name", ref="x" * 5000),
    log("a tree", MISSING, ref="a-tree"),
    log("what is not there", MISSING, ref="no-such-branch"),
    log("no number", limit="x"),
    log("a negative number", skip="-1"),
    log("an option as number", limit="--all"),
    log("too many", limit="100000"),
    commit("no message", message="  \n"),
    commit("a NUL in the message", message="a\0b"),
    commit("a message without an end", message="x" * (65 << 10)),
    commit("a message that is none", message=["--amend"]),
    commit("an option as path", REFUSED, paths=["--amend"]),
    commit("a path up", paths=["../secret"]),
    commit("an absolute path", paths=["/etc/passwd"]),
    commit("through a link", paths=["to-outside/secret"]),
    commit("git's own", paths=[".git/config"]),
    commit("magic", REFUSED, paths=[":(exclude)README"]),
    commit("a NUL as path", paths=["a\0b"]),
    commit("the workspace as a path", paths=["."]),
    commit("paths that are none", paths="README"),
    commit("an author with a line end", author_name="a\nb <c>"),
    commit("an author with brackets", author_name="a", author_email="x> <y"),
]


@pytest.fixture
def guarded_repository(running: Running, repository: Path) -> Path:
    add_secret_and_links(repository)
    return repository


def add_secret_and_links(repository: Path) -> None:
    """Put a secret beside a workspace, and links to it into the workspace."""
    outside = repository.parent
    (outside / "secret").write_text("classified")
    (repository / "folder").mkdir()
    (repository / "folder" / "back").symlink_to("..")
    (repository / "folder" / ".git").mkdir()
    (repository / "to-outside").symlink_to(outside)
    (repository / "to-secret").symlink_to(outside / "secret")
    (repository / "to-nothing").symlink_to("nothing")
    (repository / "to-git").symlink_to(".git")
    (repository / "loop").symlink_to("loop")
    (repository / "device").symlink_to("/dev/zero")
    head = run_git(repository, "rev-parse", "HEAD")
    run_git(repository, "update-ref", "refs/heads/--stolen", head)
    run_git(repository, "update-ref", "refs/heads/other", head)
    run_git(repository, "update-ref", "refs/tags/a-tree", run_git(repository, "rev-parse", "HEAD^{tree}"))


def everything(root: Path) -> dict[str, bytes]:
    """Return every file in or beside the workspace, git's own included, except those that reads rewrite."""
    files = (path for path in root.parent.rglob("*") if path.is_file() and not path.is_symlink())
    skipped = {"index", "memory.jsonl"}
    return {
        str(path): path.read_bytes()
        for path in files
        if path.name not in skipped and "objects" not in path.parts and "state" not in path.parts
    }


def test_there_are_at_least_forty_attacks() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
async def test_attack_gets_a_clear_error_and_changes_nothing(
    running: Running, guarded_repository: Path, attack: Attack
) -> None:
    before = everything(guarded_repository)
    head = run_git(guarded_repository, "rev-parse", "HEAD")

    options: dict[str, Any] = {"json": attack.body} if attack.method == "POST" else {}
    async with running.http.request(
        attack.method, running.url + attack.endpoint, params=attack.query, headers=running.headers, **options
    ) as response:
        answer = await response.json()

    assert (response.status, answer["code"]) == attack.expected, answer
    assert len(answer["message"]) > 10
    assert "classified" not in str(answer)
    assert everything(guarded_repository) == before
    assert run_git(guarded_repository, "rev-parse", "HEAD") == head


async def test_branch_named_like_an_option_causes_no_errors(running: Running, guarded_repository: Path) -> None:
    run_git(guarded_repository, "symbolic-ref", "HEAD", "refs/heads/--stolen")
    assert (await running.get("/git/status"))["branch"] == "--stolen"
    assert (await running.post("/snapshot"))[0] == 200
    assert (await running.get("/status"))["workspace"]["branch"] == "--stolen"
    assert len((await running.get("/git/log"))["commits"]) == 1


HOSTILE_NAMES = [
    *("--output=stolen", "-p", "HEAD..other", "^HEAD", ":/Write", "HEAD:README", "HEAD other", "HEAD\n--all"),
    *("a\0b", "x" * 5000, "a-tree", "refs/heads/--output=stolen", "ext::sh -c touch% stolen"),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_hostile_base_is_no_base_and_changes_nothing(
    running: Running, guarded_repository: Path, name: str
) -> None:
    before = everything(guarded_repository)
    answer = await running.get("/git/branch", base=name)
    assert answer["base"]["problem"] == "not_found"
    assert everything(guarded_repository) == before


@pytest.mark.parametrize("path", ["--output=stolen", "*", ":(top)README", ":!README", "HEAD:README", "to-secret/x"])
async def test_hostile_path_has_no_hunks(running: Running, guarded_repository: Path, path: str) -> None:
    (guarded_repository / "README").write_text("changed\n")
    before = everything(guarded_repository)
    answer = await running.get("/git/hunks", base="main", path=path)
    assert "classified" not in str(answer)
    assert [file["hunks"] for file in answer.get("files", [])] in ([[]], [])
    assert everything(guarded_repository) == before


async def test_link_that_leads_out_shows_where_it_leads_and_not_what_is_there(
    running: Running, guarded_repository: Path
) -> None:
    answer = await running.get("/git/hunks", base="main", path="to-secret")
    (file,) = answer["files"]
    assert file["hunks"][0]["lines"][0] == f"+{guarded_repository.parent / 'secret'}"
    listed = await running.get("/git/branch", base="main")
    assert {file["path"]: file["content"] for file in listed["files"]}["to-secret"] == "symlink"
