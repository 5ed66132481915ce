"""A team's repository, of which git sees the objects and refs and nothing else.

git runs on a *facade*: a git directory of ours whose ``refs`` and ``packed-refs`` lead to the team's, with the
team's objects named by ``GIT_OBJECT_DIRECTORY``. Configuration, hooks, attributes, grafts, replace refs and the
records of worktrees are therefore none that anybody else wrote. What has to be known of the team's configuration
is read from its text.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from executors_app import untrusted_files
from executors_app.errors import RepositoryUnusable
from executors_app.repositories import bare, layout
from executors_app.repositories.git import Git, GitFailed
from executors_app.repositories.layout import CarriedSettings

_CONFIG_LIMIT: Final = 1 << 20
_SHARED: Final = re.compile(r"(?:group|all|world|everybody|true|umask|false|0[0-7]{3}|[012])")
PUBLISHED_PREFIXES: Final = ("refs/heads/", "refs/tags/", "refs/remotes/")
WORKSPACE_BRANCH_PREFIX: Final = "refs/heads/kandev/"


class TeamRepository:
    """One repository of a team; see ``open``."""

    def __init__(self, path: Path, common: Path, config: Mapping[str, str]):
        self.path = path
        self.common = common
        """The git directory that its worktrees share."""
        self._config = config
        self.object_format = config.get("extensions.objectformat", "sha1").lower()

    @classmethod
    def open(cls, path: Path) -> TeamRepository:
        """Find the repository at ``path`` (or the one whose worktree that is) and see whether it can be used.

        Raises RepositoryUnusable with what to do about it, GitFailed.
        """
        common = layout.common_directory(path)
        layout.check_repository(common)
        opened = cls(path, common, _read_config(common))
        if opened.object_format not in bare.OBJECT_FORMATS:
            raise RepositoryUnusable(f"{path} has objects of an unknown format.")
        if opened._config.get("extensions.refstorage", "files") != "files":
            raise RepositoryUnusable(f"{path} does not keep its refs as files, which is not supported.")
        return opened

    @cached_property
    def git(self) -> Git:
        """Git on the facade, which is removed with this object."""
        facade = Path(tempfile.mkdtemp(prefix="kandev-git-"))
        weakref.finalize(self, shutil.rmtree, facade, ignore_errors=True)
        shared = self._config.get("core.sharedrepository", "")
        bare.write_config(facade, self.object_format, shared if _SHARED.fullmatch(shared) else "")
        head = self.head()
        (facade / "HEAD").write_bytes(
            (f"ref: {head}" if head.startswith("refs/") else head).encode() or b"ref: refs/none"
        )
        for name in ("refs", "packed-refs"):
            (facade / name).symlink_to(self.common / name)
        return Git(facade, self.common / "objects")

    def head(self) -> str:
        """The ref or commit that is checked out at ``path``; empty for none."""
        return layout.read_head(layout.worktree_directory(self.path, self.common))

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or id names; None if it names none. Raises GitFailed."""
        return bare.resolve_commit(self.git, revision)

    def start_of(self, base: str) -> str:
        """The commit that a new branch starts from: ``base``, else the remote's; empty is HEAD. RepositoryUnusable."""
        for revision in (base, f"origin/{base}") if base else (self.head(),):
            if commit := self.commit_of(revision):
                return commit
        raise RepositoryUnusable(f"The repository {self.path} has no commit at {base or 'HEAD'!r} to start from.")

    def refs(self, *patterns: str) -> dict[str, str]:
        """Refs that match, and what they name; symbolic ones are left out. Raises GitFailed."""
        return bare.list_refs(self.git, *patterns)

    def published_refs(self) -> dict[str, str]:
        """What any workspace may read: branches but those of workspaces, tags, and what remotes had. GitFailed."""
        return {
            name: at
            for name, at in self.refs(*PUBLISHED_PREFIXES).items()
            if not name.startswith(WORKSPACE_BRANCH_PREFIX) and _is_text(name)
        }

    def carried(self) -> CarriedSettings:
        """What a workspace is given beside commits."""
        return layout.read_carried_settings(self.common, self._config)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _read_config(common: Path) -> dict[str, str]:
    """The repository's own configuration, the last value of each key; nothing that it includes. RepositoryUnusable."""
    text = untrusted_files.read_regular_file(common / "config", _CONFIG_LIMIT)
    if text is None:
        return {}
    if len(text) == _CONFIG_LIMIT:
        raise RepositoryUnusable(f"{common / 'config'} is too long.")
    try:
        # ``/proc`` is no repository and never will be, so git has nothing but the text.
        said = Git(Path("/proc")).run("config", "--file", "-", "--no-includes", "--null", "--list", stdin=text)
    except GitFailed as error:
        raise RepositoryUnusable(f"{common / 'config'} cannot be read: {error.message}") from error
    pairs = (entry.partition("\n") for entry in said.decode("utf-8", "replace").split("\0"))
    return {key: value for key, _, value in pairs if key}
