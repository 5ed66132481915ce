"""What git says of the workspace: status, differences, history; and a commit. All calls block.

A path is taken as it stands, never as a pattern, an option or a revision; a revision is resolved to a
commit before anything else sees it. Each answer is bounded and says where it was cut.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.commit_lines import log_words, parse_log
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace import paths
from executors_app.agentctl.workspace.git import Git
from executors_app.agentctl.workspace.status_lines import parse_status

DIFF_LIMIT: Final = 1 << 20
STATUS_LIMIT: Final = 1 << 20
LOG_LIMIT: Final = 1 << 20
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_PLAIN: Final = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
_CHANGES: Final = {"A": "added", "M": "modified", "D": "deleted"}


def status(git: Git) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated}``; Refused."""
    words = ("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all")
    told = git.run(*words, limit=STATUS_LIMIT)
    return {**parse_status(told.fields), "truncated": told.truncated}


def diff(git: Git, path: str = "") -> dict[str, Any]:
    """``{path, staged, unstaged, truncated}``: both differences as texts, each ``DIFF_LIMIT`` long at most."""
    where = ("--", _path(git.root, path)) if path else ()
    told = [
        git.run("--literal-pathspecs", "diff", *side, *_PLAIN, *where, limit=DIFF_LIMIT) for side in (("--cached",), ())
    ]
    if path and not any(one.data for one in told) and not os.path.lexists(git.root / path):
        raise Refused(Code.NOT_FOUND, "there is no such file", path=path)
    staged, unstaged = (one.data.decode("utf-8", "replace") for one in told)
    return {"path": path, "staged": staged, "unstaged": unstaged, "truncated": any(one.truncated for one in told)}


def between(git: Git, since: str, now: str) -> dict[str, Any]:
    """``{since, now, files, truncated}``: what is another in one commit than in the other, as ``modified a.py``."""
    known = _commit(git, since)
    if known is None:
        raise Refused(Code.NOT_FOUND, "there is no such commit any more", ref=since)
    told = git.run("diff", "--name-status", "-z", "--no-renames", *_PLAIN, known, now, "--", limit=STATUS_LIMIT)
    fields = [field.decode("utf-8", "replace") for field in told.fields]
    files = [f"{_CHANGES.get(how[:1], 'changed')} {path}" for how, path in zip(fields[::2], fields[1::2], strict=False)]
    return {"since": known, "now": now, "files": files, "truncated": told.truncated}


def log(git: Git, limit: int, skip: int, revision: str = "") -> dict[str, Any]:
    """``{commits: [{id, parents, author, email, at, subject, body}], more, truncated}``, newest first."""
    start = _commit(git, revision or "HEAD")
    if start is None:
        if revision:
            raise Refused(Code.NOT_FOUND, "there is no such branch, tag or commit", ref=revision)
        return {"commits": [], "more": False, "truncated": False}
    told = git.run(*log_words(limit + 1, skip, start), limit=LOG_LIMIT)
    commits = parse_log(told.fields)
    return {"commits": commits[:limit], "more": len(commits) > limit or told.truncated, "truncated": told.truncated}


def commit(git: Git, message: str, author: tuple[str, str] | None, only: list[str]) -> dict[str, Any]:
    """Commit everything, or ``only`` these paths: ``{commit, branch, subject}``; Refused.

    *conflict* where nothing has changed. ``author`` is a name and an address; without one git's own
    settings say, or Kandev itself.
    """
    if not message.strip():
        raise invalid("a commit wants a message", field="message")
    where = [_path(git.root, path) for path in only]
    if git.run("ls-files", "--unmerged", "-z").data:
        raise Refused(Code.CONFLICT, "a merge is not finished: its conflicts come first")
    who = _identity(git, author)
    git.run("--literal-pathspecs", "add", "--all", "--", *(where or ["."]))
    changed = git.run("--literal-pathspecs", "diff", "--cached", "--quiet", *_PLAIN, "--", *where, good=(0, 1))
    if changed.exit_code == 0:
        raise Refused(Code.CONFLICT, "there is nothing to commit")
    words = ("--literal-pathspecs", "commit", "--quiet", "--no-verify", "--cleanup=whitespace", "--file=-")
    selected = ("--only", "--", *where) if where else ()
    git.run(*words, *selected, stdin=message.encode(), environment=who, timeout=60.0)
    told = git.text("log", "-1", "--format=%H%n%s")
    made, _, subject = told.partition("\n")
    branch = git.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text
    return {"commit": made, "branch": branch or None, "subject": subject}


def _commit(git: Git, revision: str) -> str | None:
    """The commit that a branch, tag or id names; Refused for what could name anything else."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise invalid("this is no name of a branch, tag or commit", ref=revision)
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return git.run(*words, good=(0, 1)).text or None


def _path(root: Path, path: str) -> str:
    """A path that git may be given behind ``--``; Refused."""
    paths.check(path)
    paths.refuse_gits_own(path, path)
    if not path.strip("/."):
        raise invalid("this names no file", path=path)
    real_root = root.resolve()
    try:
        folder = (real_root / path).parent.resolve()
    except RuntimeError as error:
        raise invalid("this cannot be a path", path=path) from error
    if not folder.is_relative_to(real_root):
        raise invalid("this leads out of the workspace", path=path)
    return path


def _identity(git: Git, author: tuple[str, str] | None) -> dict[str, str]:
    name, email = author or ("", "")
    if not name:
        known = [git.run("config", "--get", key, good=(0, 1)).text for key in ("user.name", "user.email")]
        if all(known):
            return {}
    for value in (name, email):
        if any(mark in value for mark in "<>\n\r\0") or len(value) > 200:
            raise invalid("author must be a plain name and address", field="author")
    name, email = name or "Kandev", email or "kandev@localhost"
    return {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", email))
    }
