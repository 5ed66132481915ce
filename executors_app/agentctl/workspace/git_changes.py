"""What git says of the workspace: status, differences and history, parsed from git's output; and commits.

All calls block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.protocol import ApiError, Code, validation_error
from executors_app.agentctl.workspace import files as paths
from executors_app.agentctl.workspace.git import WorkspaceGit

_COMMIT_FIELDS: Final = {
    "id": "%H",
    "parents": "%P",
    "author": "%an",
    "email": "%ae",
    "at": "%aI",
    "subject": "%s",
    "body": "%b",
}
_FIELDS_PER_COMMIT: Final = len(_COMMIT_FIELDS) + 1
"""Fields of a commit: its own end is one without anything in it."""
_LOG_FORMAT: Final = f"--format=tformat:{'%x00'.join(_COMMIT_FIELDS.values())}%x00"


def git_log_arguments(limit: int, skip: int, start: str) -> tuple[str, ...]:
    """The words of the command for so many commits from the commit ``start`` back, behind the ``skip`` newest."""
    return ("log", "-z", "--no-color", f"--max-count={limit}", f"--skip={skip}", _LOG_FORMAT, start, "--")


def parse_git_log(fields: Sequence[bytes]) -> list[dict[str, Any]]:
    """``[{id, parents, author, email, at, subject, body}]`` of what the command has said, between its NULs."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return [
        _parse_commit(texts[at : at + len(_COMMIT_FIELDS)])
        for at in range(0, len(texts) - _FIELDS_PER_COMMIT + 1, _FIELDS_PER_COMMIT)
    ]


def _parse_commit(texts: Sequence[str]) -> dict[str, Any]:
    told = dict(zip(_COMMIT_FIELDS, texts, strict=True))
    cleaned = {"id": told["id"].strip(), "parents": told["parents"].split(), "body": told["body"].strip("\n")}
    return {**told, **cleaned}


_CHANGE_NAMES: Final = {
    "M": "modified",
    "T": "type_changed",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
}
_INITIAL: Final = "(initial)"
_DETACHED: Final = "(detached)"


def parse_git_status(fields: list[bytes]) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged: [{path, change, from}], untracked, conflicted: [path]}``.

    ``branch`` is null where none is checked out, ``head`` before the first commit.
    """
    found: dict[str, Any] = {"staged": [], "unstaged": [], "untracked": [], "conflicted": []}
    told: dict[str, str] = {}
    lines = (field.decode("utf-8", "replace") for field in fields)
    for line in lines:
        _add_entry(line, lines, found, told)
    branch, head = told.get("branch.head", _DETACHED), told.get("branch.oid", _INITIAL)
    return {
        "branch": None if branch == _DETACHED else branch,
        "head": None if head == _INITIAL else head,
        "clean": not any(found.values()),
        **found,
    }


def _add_entry(line: str, rest: Iterator[str], found: dict[str, Any], told: dict[str, str]) -> None:
    kind, _, body = line.partition(" ")
    match kind:
        case "#":
            name, _, value = body.partition(" ")
            told[name] = value
        case "1":
            _changed(body.split(" ", 7), "", found)
        case "2":
            _changed(body.split(" ", 8), next(rest, ""), found)
        case "u":
            found["conflicted"].append(body.split(" ", 9)[-1])
        case "?":
            found["untracked"].append(body)


def _changed(words: list[str], origin: str, found: dict[str, Any]) -> None:
    for side, letter in zip(("staged", "unstaged"), words[0], strict=True):
        if letter != ".":
            entry: dict[str, Any] = {"path": words[-1], "change": _CHANGE_NAMES.get(letter, letter)}
            if origin and letter in "RC":
                entry["from"] = origin
            found[side].append(entry)


DIFF_LIMIT: Final = 1 << 20
STATUS_LIMIT: Final = 1 << 20
LOG_LIMIT: Final = 1 << 20
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_PLAIN_DIFF_OPTIONS: Final = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
_CHANGES: Final = {"A": "added", "M": "modified", "D": "deleted"}


def git_status(git: WorkspaceGit) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated}``; Refused."""
    words = ("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all")
    told = git.run(*words, limit=STATUS_LIMIT)
    return {**parse_git_status(told.fields), "truncated": told.truncated}


def git_diff(git: WorkspaceGit, path: str = "") -> dict[str, Any]:
    """``{path, staged, unstaged, truncated}``: both differences as texts, each ``DIFF_LIMIT`` long at most."""
    where = ("--", _checked_path(git.root, path)) if path else ()
    told = [
        git.run("--literal-pathspecs", "diff", *side, *_PLAIN_DIFF_OPTIONS, *where, limit=DIFF_LIMIT)
        for side in (("--cached",), ())
    ]
    if path and not any(one.data for one in told) and not os.path.lexists(git.root / path):
        raise ApiError(Code.NOT_FOUND, "there is no such file", path=path)
    staged, unstaged = (one.data.decode("utf-8", "replace") for one in told)
    return {"path": path, "staged": staged, "unstaged": unstaged, "truncated": any(one.truncated for one in told)}


def changes_between(git: WorkspaceGit, since: str, now: str) -> dict[str, Any]:
    """``{since, now, files, truncated}``: what is another in one commit than in the other, as ``modified a.py``."""
    known = _resolve_commit(git, since)
    if known is None:
        raise ApiError(Code.NOT_FOUND, "there is no such commit any more", ref=since)
    told = git.run(
        "diff", "--name-status", "-z", "--no-renames", *_PLAIN_DIFF_OPTIONS, known, now, "--", limit=STATUS_LIMIT
    )
    fields = [field.decode("utf-8", "replace") for field in told.fields]
    files = [f"{_CHANGES.get(how[:1], 'changed')} {path}" for how, path in zip(fields[::2], fields[1::2], strict=False)]
    return {"since": known, "now": now, "files": files, "truncated": told.truncated}


def git_log(git: WorkspaceGit, limit: int, skip: int, revision: str = "") -> dict[str, Any]:
    """``{commits: [{id, parents, author, email, at, subject, body}], more, truncated}``, newest first."""
    start = _resolve_commit(git, revision or "HEAD")
    if start is None:
        if revision:
            raise ApiError(Code.NOT_FOUND, "there is no such branch, tag or commit", ref=revision)
        return {"commits": [], "more": False, "truncated": False}
    told = git.run(*git_log_arguments(limit + 1, skip, start), limit=LOG_LIMIT)
    commits = parse_git_log(told.fields)
    return {"commits": commits[:limit], "more": len(commits) > limit or told.truncated, "truncated": told.truncated}


def create_commit(git: WorkspaceGit, message: str, author: tuple[str, str] | None, only: list[str]) -> dict[str, Any]:
    """Commit everything, or ``only`` these paths: ``{commit, branch, subject}``; Refused.

    *conflict* where nothing has changed. ``author`` is a name and an address; without one git's own
    settings say, or Kandev itself.
    """
    if not message.strip():
        raise validation_error("a commit wants a message", field="message")
    where = [_checked_path(git.root, path) for path in only]
    if git.run("ls-files", "--unmerged", "-z").data:
        raise ApiError(Code.CONFLICT, "a merge is not finished: its conflicts come first")
    who = _identity(git, author)
    git.run("--literal-pathspecs", "add", "--all", "--", *(where or ["."]))
    changed = git.run(
        "--literal-pathspecs", "diff", "--cached", "--quiet", *_PLAIN_DIFF_OPTIONS, "--", *where, good=(0, 1)
    )
    if changed.exit_code == 0:
        raise ApiError(Code.CONFLICT, "there is nothing to commit")
    words = ("--literal-pathspecs", "commit", "--quiet", "--no-verify", "--cleanup=whitespace", "--file=-")
    selected = ("--only", "--", *where) if where else ()
    git.run(*words, *selected, stdin=message.encode(), environment=who, timeout=60.0)
    told = git.text("log", "-1", "--format=%H%n%s")
    made, _, subject = told.partition("\n")
    branch = git.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text
    return {"commit": made, "branch": branch or None, "subject": subject}


def _resolve_commit(git: WorkspaceGit, revision: str) -> str | None:
    """The commit that a branch, tag or id names; Refused for what could name anything else."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise validation_error("this is no name of a branch, tag or commit", ref=revision)
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return git.run(*words, good=(0, 1)).text or None


def _checked_path(root: Path, path: str) -> str:
    """A path that git may be given behind ``--``; Refused."""
    paths.check_path(path)
    paths.refuse_git_files(path, path)
    if not path.strip("/."):
        raise validation_error("this names no file", path=path)
    real_root = root.resolve()
    try:
        folder = (real_root / path).parent.resolve()
    except RuntimeError as error:
        raise validation_error("this cannot be a path", path=path) from error
    if not folder.is_relative_to(real_root):
        raise validation_error("this leads out of the workspace", path=path)
    return path


def _identity(git: WorkspaceGit, author: tuple[str, str] | None) -> dict[str, str]:
    name, email = author or ("", "")
    if not name:
        known = [git.run("config", "--get", key, good=(0, 1)).text for key in ("user.name", "user.email")]
        if all(known):
            return {}
    for value in (name, email):
        if any(mark in value for mark in "<>\n\r\0") or len(value) > 200:
            raise validation_error("author must be a plain name and address", field="author")
    name, email = name or "Kandev", email or "kandev@localhost"
    return {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", email))
    }
