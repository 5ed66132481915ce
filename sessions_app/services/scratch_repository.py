"""Repositories that Kandev makes itself: the demo's, and the one of each team in which agents are tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from django.conf import settings

from executors_app.agentctl.workspace.repository_git import run_git
from executors_app.repositories.team import TeamRepository
from sessions_app.models import Repository
from sessions_app.services.catalogue import current_branch

SCRATCH_DIRECTORY: Final = "agent-tests"
"""Directory of the data directory with one scratch repository for each team."""
_PRIVATE_UMASK: Final = 0o077
_README: Final = """# Scratch repository

Kandev tests agents in branches of this repository. Nothing here is of value.
"""


def make_repository(directory: Path, readme: str) -> str:
    """Create a git repository whose first commit is a README, unless it is there; return its branch."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ".git").exists():
        run_git(directory, "init", "--quiet", "--initial-branch=main", umask=_PRIVATE_UMASK)
    if TeamRepository.open(directory).commit_of("HEAD") is None:
        # No agent has worked here yet, so the repository's configuration cannot make git run anything.
        (directory / "README.md").write_text(readme)
        author = ("-c", "user.name=Kandev", "-c", "user.email=demo@kandev.invalid")
        run_git(directory, "add", "README.md", umask=_PRIVATE_UMASK)
        run_git(
            directory, *author, "commit", "--quiet", "--no-gpg-sign", "--message=First commit", umask=_PRIVATE_UMASK
        )
    return current_branch(directory) or "main"


def scratch_root() -> Path:
    """Return the directory of all scratch repositories."""
    return Path(settings.KANDEV_DATA_DIR) / SCRATCH_DIRECTORY


def scratch_repository(team: Any) -> Repository:
    """Return the team's scratch repository, made on its first use. Raises ExecutorError, OSError."""
    path = scratch_root() / str(team.pk)
    branch = make_repository(path, _README)
    row, _ = Repository.objects.get_or_create(
        team=team, path=str(path), defaults={"name": "Agent tests", "default_branch": branch}
    )
    return row
