"""Repositories that Kandev creates for people to try it: with a work tree, one branch and one commit of a README.

They are written below a temporary name and renamed when they are complete. So a repository that is there was made
whole, agents may have written to it since, and nothing runs git on it any more as one would on a repository of ours.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from executors_app.repositories import bare
from executors_app.repositories.git import Git
from executors_app.repositories.team import TeamRepository

BRANCH: Final = "main"
README: Final = "README.md"
_IDENTITY: Final = ("-c", "user.name=Kandev", "-c", "user.email=demo@kandev.invalid")
_PRIVATE: Final = 0o700


def create_scratch_repository(directory: Path, readme: str) -> None:
    """Create a repository in ``directory`` unless it has one with a commit. Raises ExecutorError, OSError.

    One without a commit cannot be used, for an agent may have damaged it; it is renamed.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    place = directory / ".git"
    if os.path.lexists(place):
        if TeamRepository.open(directory).commit_of("HEAD") is not None:
            return
        place.rename(directory / f".git-unfinished-{secrets.token_hex(4)}")
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=directory))
    try:
        _write_repository(draft / ".git", readme)
        text = draft / README
        text.write_text(readme)
        text.replace(directory / README)
        (draft / ".git").rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_repository(path: Path, readme: str) -> None:
    bare.make_bare_repository(path, "sha1", mode=_PRIVATE)
    git = Git(path, account=str(path))
    blob = git.run("hash-object", "-w", "--stdin", stdin=readme.encode()).decode().strip()
    tree = git.run("mktree", stdin=f"100644 blob {blob}\t{README}\n".encode()).decode().strip()
    commit = git.text(*_IDENTITY, "commit-tree", "-m", "First commit", tree)
    bare.update_refs(git, {f"refs/heads/{BRANCH}": ("", commit)})
    git.run("read-tree", commit)
    bare.write_config(path, "sha1", has_work_tree=True)
    # No branch is checked out: Kandev moves none that is, and people try a merge here.
    (path / "HEAD").write_text(f"{commit}\n")
