"""What git says about a workspace: its status, diffs, log and changes between two commits; and new commits.

All calls block.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace import paths
from executors_app.agentctl.workspace.status_format import STATUS, parse_git_status
from executors_app.agentctl.workspace.submodule_changes import list_submodule_changes, repository_of, submodule_around
from executors_app.machine.git import git_directory
from executors_app.machine.git.commit_log import git_log_arguments, parse_git_log
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.wire.protocol import ApiError, Code, validation_error

DIFF_LIMIT: Final = 1 << 20
STATUS_LIMIT: Final = 1 << 20
LOG_LIMIT: Final = 1 << 20
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_PLAIN_DIFF_OPTIONS: Final = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
_WITHOUT_COMMIT: Final = re.compile(r"error: '(?P<path>[^\n]+)/' does not have a commit checked out")
_MAX_REPOSITORIES: Final = 20
"""Repositories without a commit that one commit of everything leaves out."""
_CHANGES: Final = {"A": "added", "M": "modified", "D": "deleted"}


def git_status(git: WorkspaceGit) -> dict[str, Any]:
    """Return ``{branch, head, clean, staged, unstaged, untracked, conflicted, submodules, truncated}``.

    ``submodules`` is what ``list_submodule_changes`` returns. Raises ApiError.
    """
    output = git.compare(*STATUS, limit=STATUS_LIMIT)
    status, submodules = parse_git_status(output.fields), list_submodule_changes(git)
    clean = status["clean"] and not submodules
    return {**status, "clean": clean, "submodules": submodules, "truncated": output.truncated}


def git_diff(git: WorkspaceGit, path: str = "") -> dict[str, Any]:
    """Return ``{path, staged, unstaged, truncated}``: both diffs as text of at most ``DIFF_LIMIT`` bytes."""
    if path:
        path = checked_path(git.root, path)
    with repository_of(git, path) as (inside, rest):
        arguments = list(_PLAIN_DIFF_OPTIONS)
        if rest:
            arguments += ["--", rest]
        staged = inside.compare("--literal-pathspecs", "diff", "--cached", *arguments, limit=DIFF_LIMIT)
        unstaged = inside.compare("--literal-pathspecs", "diff", *arguments, limit=DIFF_LIMIT)
    differs = staged.data or unstaged.data
    if path and not differs and not os.path.lexists(git.root / path):
        raise ApiError(Code.NOT_FOUND, "there is no such file", path=path)
    return {
        "path": path,
        "staged": staged.data.decode("utf-8", "replace"),
        "unstaged": unstaged.data.decode("utf-8", "replace"),
        "truncated": staged.truncated or unstaged.truncated,
    }


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
    where = [checked_path(git.root, path) for path in only]
    _refuse_files_of_submodules(git, where)
    if git.run("ls-files", "--unmerged", "-z").data:
        raise ApiError(Code.CONFLICT, "a merge is unfinished: resolve its conflicts first")
    if where and _has_operation(git):
        raise ApiError(Code.CONFLICT, "git is in the middle of a merge or another operation: commit all files at once")
    identity = author_environment(git, author)
    where = _with_rename_sources(git, where)
    # A path that is neither in the working tree nor in the index would make git refuse all of them: its deletion is
    # staged already.
    addable = [path for path in where if os.path.lexists(git.root / path) or _is_tracked(git, path)]
    for path in where:
        if path not in addable and not _is_committed(git, path):
            raise GitError(f"{path} is neither in the working tree nor in the last commit")
    if addable:
        git.run("--literal-pathspecs", "add", "--all", "--", *addable, all_settings=True)
    elif not where:
        _add_everything(git)
    changed = git.run(
        "--literal-pathspecs", "diff", "--cached", "--quiet", *_PLAIN_DIFF_OPTIONS, "--", *where, good=(0, 1)
    )
    if changed.exit_code == 0:
        if not list_submodule_changes(git):
            inside = ""
        else:
            inside = ": changes inside a submodule are committed there first"
        raise ApiError(Code.CONFLICT, f"there is nothing to commit{inside}")
    _write_commit(git, message, where, identity)
    log = git.text("log", "-1", "--format=%H%n%s")
    made, _, subject = log.partition("\n")
    branch = git.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text
    return {"commit": made, "branch": branch or None, "subject": subject}


def _add_everything(git: WorkspaceGit) -> None:
    """Stage all changes, except repositories inside the workspace that have no commit: git can stage no such one."""
    left_out: list[str] = []
    while True:
        excluded = [f":(exclude,top,literal){path}" for path in left_out]
        try:
            git.run("add", "--all", "--", ".", *excluded, all_settings=True)
        except GitError as error:
            found = _WITHOUT_COMMIT.search(error.message)
            if found is None or found["path"] in left_out or len(left_out) >= _MAX_REPOSITORIES:
                raise
            left_out.append(found["path"])
        else:
            return


def _refuse_files_of_submodules(git: WorkspaceGit, where: list[str]) -> None:
    for path in where:
        if around := submodule_around(git, path):
            raise ApiError(Code.CONFLICT, f"{path} is inside the submodule {around}: commit it there first", path=path)


def _with_rename_sources(git: WorkspaceGit, where: list[str]) -> list[str]:
    """Return the paths, and the old path of each that was renamed: without it, a rename is committed as a copy."""
    if not where:
        return where
    renamed = {entry["path"]: entry["from"] for entry in git_status(git)["staged"] if entry["change"] == "renamed"}
    return list(dict.fromkeys([*where, *(renamed[path] for path in where if path in renamed)]))


def _has_operation(git: WorkspaceGit) -> bool:
    folder = git_directory.git_directory_of(git.root)
    return folder is not None and bool(git_directory.operation_in_progress(folder))


def _is_tracked(git: WorkspaceGit, path: str) -> bool:
    return bool(git.run("--literal-pathspecs", "ls-files", "-z", "--", path, limit=1).data)


def _is_committed(git: WorkspaceGit, path: str) -> bool:
    arguments = ("--literal-pathspecs", "ls-tree", "-z", "--name-only", "HEAD", "--", path.rstrip("/"))
    return bool(git.run(*arguments, limit=1, good=(0, 128)).data)


def _write_commit(git: WorkspaceGit, message: str, where: list[str], identity: Mapping[str, str]) -> None:
    """Commit what is staged, or only what is staged at ``where``; everything else stays staged.

    ``git commit --only`` refuses a path that is gone from working tree and index, so the commit is made from a copy of
    the index: HEAD's tree, with the entries of ``where`` as they are staged.
    """
    arguments = ("commit", "--quiet", "--no-verify", "--cleanup=whitespace", "--file=-")
    if not where:
        git.run(*arguments, stdin=message.encode(), environment=identity, timeout=60.0, all_settings=True)
        return
    staged = git.run("--literal-pathspecs", "ls-files", "--stage", "-z", "--", *where).data
    head = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1)).text
    with tempfile.TemporaryDirectory(prefix="agentctl-commit-") as folder:
        Path(folder).chmod(0o777)  # git may run as another user
        selected = {**identity, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", head or "--empty", environment=selected, all_settings=True)
        removed = ("--literal-pathspecs", "rm", "-r", "--cached", "--quiet", "--ignore-unmatch", "--", *where)
        git.run(*removed, environment=selected, all_settings=True)
        git.run("update-index", "-z", "--index-info", stdin=staged, environment=selected, all_settings=True)
        git.run(*arguments, stdin=message.encode(), environment=selected, timeout=60.0, all_settings=True)


def _resolve_commit(git: WorkspaceGit, revision: str) -> str | None:
    """Return the commit that a branch, tag or id names; raises ApiError for other revision syntax."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise validation_error("this is not the name of a branch, tag or commit", ref=revision)
    for name in git_directory.revisions_for(revision):
        arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if found := git.run(*arguments, good=(0, 1)).text:
            return found
    return None


def checked_path(root: Path, path: str) -> str:
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


def author_environment(git: WorkspaceGit, author: tuple[str, str] | None) -> dict[str, str]:
    """Return the variables that name author and committer of a commit; raises ApiError."""
    name, email = author or ("", "")
    if not name:
        keys = ("user.name", "user.email")
        known = [git.run("config", "--get", key, good=(0, 1), all_settings=True).text for key in keys]
        if all(known):
            return {}
    for value in (name, email):
        if any(mark in value for mark in "<>\n\r\0") or len(value) > 200:
            raise validation_error("author must be a plain name and address", field="author")
    name, email = name or "Kandev", email or "kandev@localhost"
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }
