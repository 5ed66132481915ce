"""Which repositories a host opens, and where they are on it: allowed folders, and clones of allowed URLs."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from executors_app.agentctl.places.git import GitFailed, git
from executors_app.errors import RepositoryUnusable, WorkspaceGone

_URL: Final = re.compile(r"(https?|ssh|git|file)://[\x21-\x7e]+")
_FETCH_WITHIN: Final = 600.0
_ALONE: Final = ("-c", "protocol.ext.allow=never", "-c", "http.followRedirects=false")
"""A URL may neither name a program to run nor lead to another place than the one that was allowed."""
_UPWARDS: Final = re.compile(r"\.\.|%2[ef]", re.IGNORECASE)
_REMOTE_HEAD: Final = "origin/HEAD"


class Sources:
    """What ``--repositories`` allows: absolute folders, and beginnings of URLs that end at a slash or at the end."""

    def __init__(self, allowed: Sequence[str], root: Path):
        self._urls = [one for one in allowed if _URL.fullmatch(one)]
        self._folders = [Path(one) for one in allowed if one not in self._urls]
        if wrong := [str(folder) for folder in self._folders if not folder.is_absolute()]:
            raise ValueError(f"--repositories: {', '.join(wrong)} is neither an absolute folder nor a URL")
        self._clones = root / "repositories"
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def find(self, repository: str, base: str, *, existed: bool) -> tuple[Path, str]:
        """The repository here and the branch to start from; blocks while a clone is brought up to date.

        ``existed``: there was a worktree of it, so nothing new is needed of the other end, and a lost
        clone is not replaced by a fresh one. Raises RepositoryUnusable, GitFailed, WorkspaceGone.
        """
        if not repository:
            raise RepositoryUnusable("The task names no repository.")
        if _URL.fullmatch(repository):
            return self._cloned(repository, existed=existed), base or _REMOTE_HEAD
        return self._folder(repository), base

    def _folder(self, repository: str) -> Path:
        try:
            if not Path(repository).is_absolute():
                raise RepositoryUnusable("An absolute path or a URL of a repository is wanted.")
            path = Path(repository).resolve()
            allowed = any(path.is_relative_to(folder.resolve()) for folder in self._folders)
        except (OSError, ValueError, RuntimeError) as error:
            raise RepositoryUnusable("This cannot be a path.") from error
        if not allowed:
            raise RepositoryUnusable(f"The host opens no repository at {repository}: start it with --repositories.")
        return path

    def _cloned(self, url: str, *, existed: bool) -> Path:
        if not any(url == one or url.startswith(one.rstrip("/") + "/") for one in self._urls) or _UPWARDS.search(url):
            raise RepositoryUnusable("The host opens no repository at this URL: start it with --repositories.")
        if urlsplit(url).password:
            raise RepositoryUnusable("A URL with a password in it is refused: log git in on the host instead.")
        clone = self._clones / f"{hashlib.sha256(url.encode()).hexdigest()[:24]}.git"
        if existed and not clone.is_dir():
            raise WorkspaceGone("The host has lost its clone of the repository, and the session's branch with it.")
        if not existed:
            with self._locks[clone]:
                _bring_up_to_date(clone, url)
        return clone


def _bring_up_to_date(clone: Path, url: str) -> None:
    """Every step may be the first that an earlier, killed host did not make."""
    clone.mkdir(parents=True, exist_ok=True, mode=0o700)
    git(clone, "init", "--quiet", "--bare")
    git(clone, "config", "remote.origin.url", url)
    git(clone, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    git(clone, *_ALONE, "fetch", "--quiet", "--prune", "origin", timeout=_FETCH_WITHIN)
    try:
        git(clone, *_ALONE, "remote", "set-head", "origin", "--auto")
    except GitFailed as error:
        if "exit_code" not in error.details:
            raise  # no answer in time; a repository without a HEAD is said by whoever needs one
