"""Git as the workspace API runs it, and the changes that it shows: no hooks, fsmonitor or transports, and bounded.

The agent owns the repository's configuration, so every setting that could point git to another directory, or start a
program while git only reads, is overridden here. All calls block.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from executors_app.agentctl.process import spawning
from executors_app.agentctl.protocol import ApiError, Code, validation_error
from executors_app.agentctl.workspace import files as paths
from executors_app.agentctl.workspace.repository_git import (
    CappedOutput,
    end_process,
    memory_file,
    read_outputs,
    send_signal,
    subcommand,
)

OUTPUT_LIMIT: Final = 8 << 20
"""Bytes of output that are read; a git that writes more is ended."""
TIMEOUT: Final = 30.0
_ERROR_BYTES: Final = 1000

SAFE_OPTIONS: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.splitIndex=false"),
    *("-c", "core.untrackedCache=false"),
    *("-c", "core.quotePath=false"),
    *("-c", "core.fsync=objects,reference"),
    *("-c", "core.fsyncMethod=batch"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "commit.gpgSign=false"),
    *("-c", "log.showSignature=false"),
    *("-c", "advice.addEmbeddedRepo=false"),
    "--no-pager",
)


class GitError(ApiError):
    """git failed; ``exit_code`` is None if it was killed."""

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__(Code.GIT_FAILED, message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class GitOutput:
    """What git wrote to its standard output."""

    data: bytes
    truncated: bool
    exit_code: int | None
    """None if git was ended because it wrote too much."""

    @property
    def text(self) -> str:
        """The output as text, without the last line end."""
        return self.data.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def fields(self) -> list[bytes]:
        """The fields of an output in the ``-z`` format, without one that was cut off."""
        return self.data.split(b"\0")[:-1]


class WorkspaceGit:
    """Runs git in one workspace; ``marker`` marks its processes as this execution's."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self.root = root
        self._marker = marker
        self._live: set[subprocess.Popen[bytes]] = set()

    @property
    def has_repository(self) -> bool:
        """Whether the workspace is a git repository; runs no git."""
        return (self.root / ".git").exists()

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limit: int = OUTPUT_LIMIT,
        timeout: float = TIMEOUT,
        good: Sequence[int] = (0,),
    ) -> GitOutput:
        """Run git and return at most ``limit`` bytes of its output; raises GitError with git's own message."""
        if not self.has_repository:  # outside of a repository, git diff would compare any two files
            raise GitError("the workspace is not a git repository")
        until = time.monotonic() + timeout
        with memory_file(stdin) as source:
            process = self._start(arguments, source, environment or {})
        output, errors = CappedOutput(process.stdout, limit), CappedOutput(process.stderr, -_ERROR_BYTES)
        try:
            truncated = not read_outputs([output, errors], until)
            code = None if truncated else process.wait(max(0.1, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise GitError(f"git {subcommand(arguments)} did not finish within {timeout:g} s") from None
        finally:
            end_process(process)
            self._live.discard(process)
        if code is not None and code not in good:
            raise GitError(f"git {subcommand(arguments)} failed: {errors.text or f'exit code {code}'}", code)
        return GitOutput(bytes(output.data[:limit]), truncated, code)

    def text(self, *arguments: str, **options: Any) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments, **options).text

    def close(self) -> None:
        """Kill every git that still runs."""
        for process in list(self._live):
            send_signal(process, signal.SIGKILL)

    def _start(
        self, arguments: Sequence[str], stdin: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        built = spawning.build_environment(
            {
                "LC_ALL": "C",
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_OPTIONAL_LOCKS": "0",
                "GIT_NO_LAZY_FETCH": "1",
                "GIT_CEILING_DIRECTORIES": str(self.root.parent),
                **environment,
            },
            self._marker,
        )
        executable = shutil.which("git", path=built.get("PATH"))
        if executable is None:
            raise GitError("git is not on PATH")
        # The work tree is named explicitly: the repository's own configuration could name another one.
        argv = [executable, "-C", str(self.root), f"--work-tree={self.root}", *SAFE_OPTIONS, *arguments]
        try:
            process = subprocess.Popen(
                argv,
                env=built,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                **spawning.child_user_arguments(),
            )
        except (OSError, ValueError) as error:
            raise GitError(f"git could not be started: {error}") from error
        self._live.add(process)
        return process


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
"""Each commit ends with one empty field."""
_LOG_FORMAT: Final = f"--format=tformat:{'%x00'.join(_COMMIT_FIELDS.values())}%x00"


def git_log_arguments(limit: int, skip: int, start: str) -> tuple[str, ...]:
    """Return git's arguments for ``limit`` commits from ``start`` back, without the ``skip`` newest."""
    return ("log", "-z", "--no-color", f"--max-count={limit}", f"--skip={skip}", _LOG_FORMAT, start, "--")


def parse_git_log(fields: Sequence[bytes]) -> list[dict[str, Any]]:
    """Parse the NUL-separated fields of a log: ``[{id, parents, author, email, at, subject, body}]``."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return [
        _parse_commit(texts[at : at + len(_COMMIT_FIELDS)])
        for at in range(0, len(texts) - _FIELDS_PER_COMMIT + 1, _FIELDS_PER_COMMIT)
    ]


def _parse_commit(texts: Sequence[str]) -> dict[str, Any]:
    fields = dict(zip(_COMMIT_FIELDS, texts, strict=True))
    cleaned = {"id": fields["id"].strip(), "parents": fields["parents"].split(), "body": fields["body"].strip("\n")}
    return {**fields, **cleaned}


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
    """Return ``{branch, head, clean, staged, unstaged: [{path, change, from}], untracked, conflicted: [path]}``.

    ``branch`` is null if none is checked out, ``head`` before the first commit.
    """
    found: dict[str, Any] = {"staged": [], "unstaged": [], "untracked": [], "conflicted": []}
    headers: dict[str, str] = {}
    lines = (field.decode("utf-8", "replace") for field in fields)
    for line in lines:
        _add_entry(line, lines, found, headers)
    branch, head = headers.get("branch.head", _DETACHED), headers.get("branch.oid", _INITIAL)
    return {
        "branch": None if branch == _DETACHED else branch,
        "head": None if head == _INITIAL else head,
        "clean": not any(found.values()),
        **found,
    }


def _add_entry(line: str, rest: Iterator[str], found: dict[str, Any], headers: dict[str, str]) -> None:
    kind, _, body = line.partition(" ")
    match kind:
        case "#":
            name, _, value = body.partition(" ")
            headers[name] = value
        case "1":
            _changed(body.split(" ", 7), "", found)
        case "2":
            _changed(body.split(" ", 8), next(rest, ""), found)
        case "u":
            found["conflicted"].append(body.split(" ", 9)[-1])
        case "?":
            found["untracked"].append(body)


def _changed(fields: list[str], origin: str, found: dict[str, Any]) -> None:
    for side, letter in zip(("staged", "unstaged"), fields[0], strict=True):
        if letter != ".":
            entry: dict[str, Any] = {"path": fields[-1], "change": _CHANGE_NAMES.get(letter, letter)}
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
    """Return ``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated}``; raises ApiError."""
    arguments = ("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all")
    output = git.run(*arguments, limit=STATUS_LIMIT)
    return {**parse_git_status(output.fields), "truncated": output.truncated}


def git_diff(git: WorkspaceGit, path: str = "") -> dict[str, Any]:
    """Return ``{path, staged, unstaged, truncated}``: both diffs as text of at most ``DIFF_LIMIT`` bytes."""
    where = ("--", _checked_path(git.root, path)) if path else ()
    diffs = [
        git.run("--literal-pathspecs", "diff", *side, *_PLAIN_DIFF_OPTIONS, *where, limit=DIFF_LIMIT)
        for side in (("--cached",), ())
    ]
    if path and not any(diff.data for diff in diffs) and not os.path.lexists(git.root / path):
        raise ApiError(Code.NOT_FOUND, "there is no such file", path=path)
    staged, unstaged = (diff.data.decode("utf-8", "replace") for diff in diffs)
    return {"path": path, "staged": staged, "unstaged": unstaged, "truncated": any(diff.truncated for diff in diffs)}


def changes_between(git: WorkspaceGit, since: str, now: str) -> dict[str, Any]:
    """Return ``{since, now, files, truncated}``: the files that differ between two commits, as ``modified a.py``."""
    if since == now:
        return {"since": since, "now": now, "files": [], "truncated": False}
    known = _resolve_commit(git, since)
    if known is None:
        raise ApiError(Code.NOT_FOUND, "the commit no longer exists", ref=since)
    output = git.run(
        "diff", "--name-status", "-z", "--no-renames", *_PLAIN_DIFF_OPTIONS, known, now, "--", limit=STATUS_LIMIT
    )
    fields = [field.decode("utf-8", "replace") for field in output.fields]
    files = [f"{_CHANGES.get(how[:1], 'changed')} {path}" for how, path in zip(fields[::2], fields[1::2], strict=False)]
    return {"since": known, "now": now, "files": files, "truncated": output.truncated}


def git_log(git: WorkspaceGit, limit: int, skip: int, revision: str = "") -> dict[str, Any]:
    """Return ``{commits: [{id, parents, author, email, at, subject, body}], more, truncated}``, newest first."""
    start = _resolve_commit(git, revision or "HEAD")
    if start is None:
        if revision:
            raise ApiError(Code.NOT_FOUND, "there is no such branch, tag or commit", ref=revision)
        return {"commits": [], "more": False, "truncated": False}
    output = git.run(*git_log_arguments(limit + 1, skip, start), limit=LOG_LIMIT)
    commits = parse_git_log(output.fields)
    return {"commits": commits[:limit], "more": len(commits) > limit or output.truncated, "truncated": output.truncated}


def create_commit(git: WorkspaceGit, message: str, author: tuple[str, str] | None, only: list[str]) -> dict[str, Any]:
    """Commit everything, or ``only`` these paths, and return ``{commit, branch, subject}``; raises ApiError.

    Nothing to commit is a *conflict*. ``author`` is a name and an email address; by default git's own settings apply,
    or else Kandev is the author.
    """
    if not message.strip():
        raise validation_error("the commit message is empty", field="message")
    where = [_checked_path(git.root, path) for path in only]
    if git.run("ls-files", "--unmerged", "-z").data:
        raise ApiError(Code.CONFLICT, "a merge is unfinished: resolve its conflicts first")
    identity = _identity(git, author)
    git.run("--literal-pathspecs", "add", "--all", "--", *(where or ["."]))
    changed = git.run(
        "--literal-pathspecs", "diff", "--cached", "--quiet", *_PLAIN_DIFF_OPTIONS, "--", *where, good=(0, 1)
    )
    if changed.exit_code == 0:
        raise ApiError(Code.CONFLICT, "there is nothing to commit")
    arguments = ("--literal-pathspecs", "commit", "--quiet", "--no-verify", "--cleanup=whitespace", "--file=-")
    selected = ("--only", "--", *where) if where else ()
    git.run(*arguments, *selected, stdin=message.encode(), environment=identity, timeout=60.0)
    log = git.text("log", "-1", "--format=%H%n%s")
    made, _, subject = log.partition("\n")
    branch = git.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text
    return {"commit": made, "branch": branch or None, "subject": subject}


def _resolve_commit(git: WorkspaceGit, revision: str) -> str | None:
    """Return the commit that a branch, tag or id names; raises ApiError for other revision syntax."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise validation_error("this is not the name of a branch, tag or commit", ref=revision)
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return git.run(*arguments, good=(0, 1)).text or None


def _checked_path(root: Path, path: str) -> str:
    """Return a path that is safe to pass to git after ``--``; raises ApiError."""
    paths.check_path(path)
    paths.refuse_git_files(path, path)
    if not path.strip("/."):
        raise validation_error("the path does not name a file", path=path)
    real_root = root.resolve()
    try:
        folder = (real_root / path).parent.resolve()
    except RuntimeError as error:
        raise validation_error("this is not a valid path", path=path) from error
    if not folder.is_relative_to(real_root):
        raise validation_error("the path leads out of the workspace", path=path)
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
