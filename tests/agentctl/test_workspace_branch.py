"""What a branch has changed since it left its base, through agentctl: each change as what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace import branch_review
from executors_app.agentctl.workspace.status_format import parse_conflicts
from executors_app.machine.git import branch_changes
from tests.agentctl.running import Running
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import add_submodule

LINES = "".join(f"line {number}\n" for number in range(40))


@pytest.fixture
def branch(repository: Path) -> Path:
    """Return a workspace on a branch that has left ``main``, on which files of all kinds are."""
    run_git(repository, "branch", "--move", "main")
    for name in ("text", "crlf", "mode", "old name", "gone", "conflict", "to link"):
        (repository / name).write_text(LINES)
    (repository / "large").write_text("x" * (branch_changes.LARGE_FILE + 1))
    (repository / "picture").write_bytes(b"\0before")
    run_git(repository, "add", "--all")
    run_git(repository, "commit", "--quiet", "-m", "Files of all kinds")
    run_git(repository, "switch", "--quiet", "--create", "work")
    return repository


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more\n")


def rename(root: Path) -> None:
    run_git(root, "mv", "old name", "new name")
    append(root / "new name")


def become_link(root: Path) -> None:
    (root / "to link").unlink()
    (root / "to link").symlink_to("text")


CHANGES: list[tuple[str, Callable[[Path], object], dict[str, Any]]] = [
    ("text", lambda root: append(root / "text"), {"change": "modified", "content": "text", "additions": 1}),
    ("text", lambda root: (root / "text").write_text(""), {"change": "modified", "additions": 0, "deletions": 40}),
    (
        "crlf",
        lambda root: (root / "crlf").write_bytes(LINES.replace("\n", "\r\n").encode()),
        {"change": "line_ends_only", "additions": 40, "deletions": 40},
    ),
    (
        "mode",
        lambda root: (root / "mode").chmod(0o755),
        {"change": "mode_only", "old_mode": "100644", "new_mode": "100755", "additions": 0},
    ),
    ("new name", rename, {"change": "renamed", "old_path": "old name", "additions": 1, "deletions": 0}),
    ("gone", lambda root: (root / "gone").unlink(), {"change": "deleted", "deletions": 40, "new_mode": ""}),
    ("new", lambda root: (root / "new").write_text("a\nb"), {"change": "added", "additions": 2, "old_mode": ""}),
    ("empty", lambda root: (root / "empty").touch(), {"change": "added", "content": "text", "additions": 0}),
    ("link", lambda root: (root / "link").symlink_to("text"), {"change": "added", "content": "symlink"}),
    ("to link", become_link, {"change": "type_changed", "content": "symlink"}),
    ("large", lambda root: append(root / "large"), {"content": "large", "additions": None, "size": (1 << 20) + 6}),
    ("picture", lambda root: append(root / "picture"), {"content": "binary", "additions": None, "size": 12}),
    ("new picture", lambda root: (root / "new picture").write_bytes(b"\0"), {"change": "added", "content": "binary"}),
    (
        "new large",
        lambda root: (root / "new large").write_bytes(b"x" * ((1 << 20) + 1)),
        {"change": "added", "content": "large", "additions": None},
    ),
    ("grüße 'x'\n", lambda root: (root / "grüße 'x'\n").write_text("x"), {"change": "added", "additions": 1}),
]


@pytest.mark.parametrize("is_committed", [False, True], ids=["uncommitted", "committed"])
@pytest.mark.parametrize(("path", "make", "expected"), CHANGES, ids=[f"{row[0]} {row[2]}"[:40] for row in CHANGES])
async def test_change_is_listed_as_what_it_is(
    running: Running,
    branch: Path,
    path: str,
    make: Callable[[Path], object],
    expected: dict[str, Any],
    is_committed: bool,
) -> None:
    make(branch)
    before = await running.get("/git/branch", base="main")
    if is_committed:
        run_git(branch, "add", "--all")
        run_git(branch, "commit", "--quiet", "-m", "Work")

    answer = await running.get("/git/branch", base="main")

    (found,) = answer["files"]
    assert found["path"] == path
    assert {name: found[name] for name in expected} == expected
    assert found["uncommitted"] is not is_committed
    assert (answer["count"], answer["ahead"], answer["behind"]) == (1, int(is_committed), 0)
    # A change that was seen before its commit is still the same one after it.
    assert found["version"] == before["files"][0]["version"] != ""


async def test_committed_and_uncommitted_changes_of_one_file_are_one_change(running: Running, branch: Path) -> None:
    commit(branch, "text", LINES + "committed\n")
    append(branch / "text")
    (file,) = (await running.get("/git/branch", base="main"))["files"]
    assert (file["additions"], file["uncommitted"]) == (2, True)
    (shown,) = (await running.get("/git/hunks", base="main", path="text", context="1"))["files"]
    assert shown["hunks"] == [
        {
            "old_start": 40,
            "old_lines": 1,
            "new_start": 40,
            "new_lines": 3,
            "heading": "line 38",
            "lines": [" line 39", "+committed", "+more"],
        }
    ]
    assert shown["version"] == file["version"]


async def test_other_content_is_another_version(running: Running, branch: Path) -> None:
    versions = set()
    for _ in range(3):
        append(branch / "text")
        versions.add((await running.get("/git/branch", base="main"))["files"][0]["version"])
    assert len(versions) == 3


async def test_base_that_went_on_is_counted_and_not_shown_as_a_change(running: Running, branch: Path) -> None:
    start = run_git(branch, "rev-parse", "HEAD")
    commit(branch, "mine", "x\n")
    run_git(branch, "switch", "--quiet", "main")
    tip = commit(branch, "theirs", "x\n")
    commit(branch, "theirs too", "x\n")
    run_git(branch, "switch", "--quiet", "work")
    answer = await running.get("/git/branch", base="main")
    assert [file["path"] for file in answer["files"]] == ["mine"]
    assert (answer["ahead"], answer["behind"], answer["upstream"]) == (1, 2, None)
    assert answer["base"]["name"] == "main"
    assert (answer["base"]["start"], answer["base"]["problem"]) == (start, "")
    assert answer["base"]["commit"] != tip


async def test_upstream_is_named_with_its_distance(running: Running, branch: Path) -> None:
    run_git(branch, "update-ref", "refs/remotes/origin/topic", "main")
    run_git(branch, "config", "remote.origin.url", "/nowhere")
    run_git(branch, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    run_git(branch, "branch", "--quiet", "--set-upstream-to=origin/topic")
    commit(branch, "mine", "x\n")
    answer = await running.get("/git/branch", base="main")
    assert answer["upstream"] == {"name": "origin/topic", "ahead": 1, "behind": 0}


async def test_file_in_conflict_shows_its_markers(running: Running, branch: Path) -> None:
    commit(branch, "conflict", "ours\n")
    run_git(branch, "switch", "--quiet", "--create", "other", "main")
    commit(branch, "conflict", "theirs\n")
    run_git(branch, "switch", "--quiet", "work")
    with pytest.raises(Exception, match="merge"):
        run_git(branch, "merge", "--quiet", "other")
    answer = await running.get("/git/branch", base="main")
    (file,) = answer["files"]
    assert (file["change"], file["version"], answer["operation"]) == ("conflicted", "", "merge")
    (shown,) = (await running.get("/git/hunks", base="main", path="conflict"))["files"]
    lines = shown["hunks"][0]["lines"]
    assert [line[:8] for line in lines] == ["+<<<<<<<", " ours", "+=======", "+theirs", "+>>>>>>>"]


async def test_file_that_one_side_of_a_merge_has_deleted_is_shown_as_the_other_has_it(
    running: Running, branch: Path
) -> None:
    for name in ("ours", "theirs"):
        commit(branch, name, "before\n")
    run_git(branch, "switch", "--quiet", "--create", "other")
    (branch / "theirs").unlink()
    (branch / "ours").write_text("changed there\n")
    run_git(branch, "commit", "--quiet", "--all", "-m", "There")
    run_git(branch, "switch", "--quiet", "work")
    (branch / "ours").unlink()
    (branch / "theirs").write_text("changed here\n")
    run_git(branch, "commit", "--quiet", "--all", "-m", "Here")
    with pytest.raises(Exception, match="merge"):
        run_git(branch, "merge", "--quiet", "other")
    files = (await running.get("/git/branch", base="main"))["files"]
    assert [(file["path"], file["change"], file["conflict"], file["content"]) for file in files] == [
        ("ours", "conflicted", "deleted_by_us", "text"),
        ("theirs", "conflicted", "deleted_by_them", "text"),
    ]
    (shown,) = (await running.get("/git/hunks", base="main", path="ours"))["files"]
    assert (shown["change"], shown["hunks"][0]["lines"]) == ("conflicted", ["+changed there"])
    (shown,) = (await running.get("/git/hunks", base="main", path="theirs"))["files"]
    assert (shown["change"], shown["hunks"]) == ("conflicted", [])


def test_conflicts_are_parsed_whatever_a_renamed_file_was_called() -> None:
    zeros = f"N... 100644 100644 100644 100644 {'1' * 40} {'2' * 40} {'3' * 40}"
    renamed = f"2 R. N... 100644 100644 100644 {'1' * 40} {'2' * 40} R100 new"
    fields = [renamed, f"u DU {zeros} trap", f"u AA {zeros} both"]
    assert parse_conflicts([field.encode() for field in fields]) == {"both": "AA"}


async def test_submodule_is_shown_by_its_commits(running: Running, branch: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    run_git(library, "init", "--quiet")
    first = commit(library, "f", "1\n")
    add_submodule(branch, library)
    listed = await running.get("/git/branch", base="main")
    found = {file["path"]: file for file in listed["files"]}
    assert (found["sub"]["change"], found["sub"]["content"]) == ("added", "submodule")
    assert (found["sub"]["commits"], found[".gitmodules"]["commits"]) == ({"old": None, "new": first}, None)
    (shown,) = (await running.get("/git/hunks", base="main", path="sub"))["files"]
    assert shown["hunks"][0]["lines"] == [f"+Subproject commit {first}"]


async def test_repository_inside_is_named_and_not_looked_into(running: Running, branch: Path) -> None:
    (branch / "inner").mkdir()
    run_git(branch / "inner", "init", "--quiet")
    commit(branch / "inner", "f", "x")
    (file,) = (await running.get("/git/branch", base="main"))["files"]
    assert (file["path"], file["content"], file["version"]) == ("inner/", "repository", "")


async def test_branch_without_a_usable_base_shows_what_is_uncommitted_and_says_so(
    running: Running, branch: Path
) -> None:
    commit(branch, "committed", "x\n")
    append(branch / "text")
    for base, problem in (("no such branch", "not_found"), ("", "no_base")):
        answer = await running.get("/git/branch", base=base)
        assert [file["path"] for file in answer["files"]] == ["text"]
        assert (answer["base"]["problem"], answer["base"]["commit"]) == (problem, None)
        assert (answer["ahead"], answer["behind"]) == (None, None)


async def test_branch_without_a_common_commit_is_new_as_a_whole(running: Running, branch: Path) -> None:
    run_git(branch, "switch", "--quiet", "--orphan", "alone")
    (branch / "first").write_text("x\n")
    before = await running.get("/git/branch", base="main")
    assert (before["head"], before["base"]["problem"]) == (None, "unrelated")
    commit(branch, "first", "x\n")
    answer = await running.get("/git/branch", base="main")
    assert answer["base"]["problem"] == "unrelated"
    for listed in (before, answer):
        assert [(file["path"], file["change"]) for file in listed["files"]] == [("first", "added")]


async def test_base_is_noted_by_the_repository_of_an_isolated_session(running: Running, branch: Path) -> None:
    run_git(branch, "config", "kandev.base", "main")
    commit(branch, "mine", "x\n")
    answer = await running.get("/git/branch")
    assert (answer["base"]["name"], answer["ahead"]) == ("main", 1)


async def test_more_context_shows_the_whole_file(running: Running, branch: Path) -> None:
    (branch / "text").write_text(LINES.replace("line 20\n", "changed\n"))
    (shown,) = (await running.get("/git/hunks", base="main", path="text", context="100000"))["files"]
    (hunk,) = shown["hunks"]
    assert (hunk["old_start"], hunk["old_lines"], len(hunk["lines"])) == (1, 40, 41)


async def test_long_hunks_and_long_lines_are_cut_and_say_so(running: Running, branch: Path) -> None:
    (branch / "many").write_text("x\n" * (branch_changes.MAX_LINES + 1))
    (branch / "wide").write_text("x" * (branch_changes.MAX_LINE + 1))
    commit(branch, "much", ("y" * 100 + "\n") * 4000)
    query = [("base", "main"), *(("path", name) for name in ("many", "wide", "much"))]
    async with running.http.get(running.url + "/git/hunks", params=query, headers=running.headers) as response:
        many, wide, much = (await response.json())["files"]
    assert (many["truncated"], len(many["hunks"][0]["lines"])) == (True, branch_changes.MAX_LINES)
    assert (wide["cut"], len(wide["hunks"][0]["lines"][0])) == (True, branch_changes.MAX_LINE + 1)
    assert much["truncated"]


async def test_answer_without_room_leaves_files_out(
    running: Running, branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors_app.agentctl.workspace.branch_review.ANSWER_LIMIT", 10)
    for name in ("one", "two"):
        (branch / name).write_text("0123456789\n")
    query = [("base", "main"), ("path", "one"), ("path", "two"), ("path", "text")]
    async with running.http.get(running.url + "/git/hunks", params=query, headers=running.headers) as response:
        one, two, same = (await response.json())["files"]
    assert [bool(one["hunks"]), one["left_out"]] == [True, False]
    assert [bool(two["hunks"]), two["left_out"]] == [False, True]
    assert (same["change"], same["left_out"]) == ("", False)


async def test_list_is_cut_and_sums_count_all_files(
    running: Running, branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch_changes, "MAX_FILES", 3)
    for number in range(5):
        commit(branch, f"new {number}", "x\n")
    answer = await running.get("/git/branch", base="main")
    assert (len(answer["files"]), answer["count"], answer["additions"], answer["truncated"]) == (3, 5, 5, True)


async def test_new_files_beyond_the_list_are_counted(
    running: Running, branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch_changes, "MAX_FILES", 3)
    for number in range(5):
        (branch / f"new {number}").write_text("x\n")
    answer = await running.get("/git/branch", base="main")
    assert (len(answer["files"]), answer["count"], answer["truncated"]) == (3, 5, True)


@pytest.mark.parametrize("limit", [1000, 1045, 1300])
async def test_list_that_git_cut_before_its_counts_has_counts(
    running: Running, branch: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    for number in range(20):
        (branch / f"new {number}").write_text("x\n")
    run_git(branch, "add", "--all")
    monkeypatch.setattr("executors_app.agentctl.workspace.branch_review._LIST_LIMIT", limit)
    answer = await running.get("/git/branch", base="main")
    assert answer["truncated"]
    assert {(file["content"], file["additions"]) for file in answer["files"]} == {("text", 1)}
    assert "" not in {file["path"] for file in answer["files"]}


@pytest.mark.parametrize("limit", [1000, 1005, 1010, 1020, 1040, 1060, 1080, 1090, 1100])
def test_file_whose_path_was_cut_off_is_left_out(limit: int) -> None:
    record = b":100644 100644 " + b"1" * 40 + b" " + b"2" * 40 + b" M\0name\0"
    output = record.replace(b"name", b"x%d") * 20 % tuple(range(20))
    files = branch_changes.parse_changes(output[:limit].split(b"\0")[:-1])
    assert {file.path for file in files} == {b"x%d" % number for number in range(len(files))}


async def test_path_that_is_no_utf_8_is_listed_with_its_lines(running: Running, branch: Path) -> None:
    for name in (b"known \xff", b"new \xff"):
        (branch / os.fsdecode(name)).write_text("x\n")
    run_git(branch, "add", "known *")
    files = (await running.get("/git/branch", base="main"))["files"]
    for file, path in zip(files, ("known \ufffd", "new \ufffd"), strict=True):
        assert (file["path"], file["change"], file["content"], file["uncommitted"]) == (path, "added", "text", True)
        (shown,) = (await running.get("/git/hunks", base="main", path=path))["files"]
        assert ([hunk["lines"] for hunk in shown["hunks"]], shown["version"]) == ([["+x"]], file["version"])


async def test_content_that_is_not_recognised_is_not_read(
    running: Running, branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    read = branch_review._read_whole

    def noting(root: Path, path: bytes, limit: int) -> bytes | None:
        data = read(root, path, limit)
        limits.append((limit, data))
        return data

    monkeypatch.setattr(branch_review, "_read_whole", noting)
    monkeypatch.setattr(branch_review, "_HASHED", 10)
    for name in ("a long one", "b", "c"):
        (branch / name).write_text(f"{name} 5\n")
    files = (await running.get("/git/branch", base="main"))["files"]
    assert [bool(file["version"]) for file in files] == [False, True, True]
    assert limits == [(10, None), (10, b"b 5\n"), (6, b"c 5\n")]


async def test_request_may_name_many_files_with_long_paths(running: Running, branch: Path) -> None:
    paths = [f"{number}/{'ü' * 127}/{'ü' * 127}" for number in range(branch_changes.MAX_PATHS)]
    query = [("base", "main"), *(("path", path) for path in paths)]
    async with running.http.get(running.url + "/git/hunks", params=query, headers=running.headers) as response:
        assert response.status == 200
        assert [file["path"] for file in (await response.json())["files"]] == paths


async def test_names_that_are_no_utf_8_are_readable(running: Running, branch: Path) -> None:
    run_git(branch, "config", "kandev.base", os.fsdecode(b"b\xff"))
    run_git(branch, "switch", "--quiet", "--create", os.fsdecode(b"w\xff"))
    run_git(branch, "config", "branch.w\udcff.remote", ".")
    run_git(branch, "config", "branch.w\udcff.merge", "refs/heads/w\udcff")
    answer = await running.get("/git/branch")
    assert (answer["base"]["name"], answer["branch"]) == ("b\ufffd", "w\ufffd")
    assert answer["upstream"] is None or answer["upstream"]["name"] == "w\ufffd"


async def test_file_that_is_renamed_only_against_head_is_uncommitted_under_both_names(
    running: Running, branch: Path
) -> None:
    commit(branch, "text", LINES.replace("line", "other"))
    run_git(branch, "mv", "text", "moved")
    files = (await running.get("/git/branch", base="main"))["files"]
    assert [(file["path"], file["change"], file["uncommitted"]) for file in files] == [
        ("moved", "added", True),
        ("text", "deleted", True),
    ]


async def test_workspace_without_a_repository_is_refused(running: Running) -> None:
    for endpoint in ("/git/branch", "/git/hunks?path=x"):
        assert (await running.get(endpoint))["code"] == "git_failed"
