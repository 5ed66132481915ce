"""The repositories that the operator of a host allows, and the host's clones of them."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from executors_app.machine.git.repository_git import RepositoryGitFailed, run_git
from executors_app.wire.errors import RepositoryUnusable, WorkspaceGone

_URL: Final = re.compile(r"(https?|ssh|git|file)://[\x21-\x7e]+")
_FETCH_TIMEOUT: Final = 600.0
_CLONE_OPTIONS: Final = ("-c", "protocol.ext.allow=never", "-c", "http.followRedirects=false")
"""A URL may neither name a program to run nor redirect to a place that was not allowed."""
_PARENT_REFERENCE: Final = re.compile(r"\.\.|%2[ef]", re.IGNORECASE)
_REMOTE_HEAD: Final = "origin/HEAD"


class AllowedRepositories:
    """What ``--repositories`` allows: absolute folders, and URL prefixes that end at a path segment."""

    def __init__(self, allowed: Sequence[str], root: Path):
        self._urls = [entry for entry in allowed if _URL.fullmatch(entry)]
        self._folders = [Path(entry) for entry in allowed if entry not in self._urls]
        if wrong := [str(folder) for folder in self._folders if not folder.is_absolute()]:
            raise ValueError(f"--repositories: {', '.join(wrong)} is neither an absolute folder nor a URL")
        self._clones = root / "repositories"
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def find(self, repository: str, base: str, *, existed: bool) -> tuple[Path, str]:
        """Return the local repository and the branch to start from; blocks while a clone is updated.

        ``existed``: a worktree of it was created before, so nothing is fetched, and a lost clone is not silently
        replaced by a new one. Raises RepositoryUnusable, RepositoryGitFailed, WorkspaceGone.
        """
        if not repository:
            raise RepositoryUnusable("The task has no repository.")
        if _URL.fullmatch(repository):
            return self._cloned(repository, existed=existed), base or _REMOTE_HEAD
        return self._folder(repository), base

    def _folder(self, repository: str) -> Path:
        try:
            if not Path(repository).is_absolute():
                raise RepositoryUnusable("The repository must be an absolute path or a URL.")
            path = Path(repository).resolve()
            allowed = any(path.is_relative_to(folder.resolve()) for folder in self._folders)
        except (OSError, ValueError, RuntimeError) as error:
            raise RepositoryUnusable("The repository is not a valid path.") from error
        if not allowed:
            raise RepositoryUnusable(
                f"The host does not allow the repository {repository}. Add it with --repositories and restart the host."
            )
        return path

    def _allows(self, url: str) -> bool:
        return any(url == prefix or url.startswith(prefix.rstrip("/") + "/") for prefix in self._urls)

    def _cloned(self, url: str, *, existed: bool) -> Path:
        if not self._allows(url) or _PARENT_REFERENCE.search(url):
            raise RepositoryUnusable(
                "The host does not allow this repository URL. Add it with --repositories and restart the host."
            )
        if urlsplit(url).password:
            raise RepositoryUnusable("The URL contains a password. Configure git credentials on the host instead.")
        clone = self._clones / f"{hashlib.sha256(url.encode()).hexdigest()[:24]}.git"
        if existed and not clone.is_dir():
            raise WorkspaceGone("The host's clone of the repository was deleted, and the session's branch with it.")
        if not existed:
            with self._locks[clone]:
                _update_clone(clone, url)
        return clone


def _update_clone(clone: Path, url: str) -> None:
    """Create or update a clone. Every step is idempotent, because a host may be killed between any two."""
    clone.mkdir(parents=True, exist_ok=True, mode=0o700)
    run_git(clone, "init", "--quiet", "--bare")
    run_git(clone, "config", "remote.origin.url", url)
    run_git(clone, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    run_git(clone, *_CLONE_OPTIONS, "fetch", "--quiet", "--prune", "origin", timeout=_FETCH_TIMEOUT)
    try:
        run_git(clone, *_CLONE_OPTIONS, "remote", "set-head", "origin", "--auto")
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise  # a timeout; a repository without HEAD is reported when a branch is started from it
