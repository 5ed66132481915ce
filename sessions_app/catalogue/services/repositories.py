"""The repositories of teams: open one to a team, and the scratch repositories in which agents are tested."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from executors_app.repositories.scratch import BRANCH, create_scratch_repository
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.accounts.audit import record_change
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import Repository
from sessions_app.placement.sightings import record_own_sighting

SCRATCH_DIRECTORY: Final = "agent-tests"
"""Directory of the data directory with the scratch repositories, one for each team that tests agents now."""
_ALREADY_OPEN: Final = "This repository is already open to the team."
_README: Final = """# Scratch repository

Kandev tests agents in branches of this repository. It contains nothing of value.
"""


def add_repository(values: Mapping[str, Any], by: User | None = None) -> Repository:
    """Open a git repository to a team. The caller has checked that the user is staff, who alone may do this.

    ``values``: name, team, path, and optionally default_branch (default: the branch that is checked out). Raises
    Invalid if it is no repository, is outside the allowed folders, or is already open to the team. One that was
    removed from the team returns, with the tasks that it had. ``by`` is the person who does it; None for a command.
    """
    found = inspect_repository(values["path"])
    known = {"name": values["name"], "default_branch": values.get("default_branch") or found.branch}
    try:
        with transaction.atomic():
            row = _open_to_team(values["team"], found.path, known)
            if by is not None:
                record_change(by, row, f"Opened to the team {values['team'].name}")
    except IntegrityError as error:  # another request was faster
        raise Invalid(_ALREADY_OPEN, field="path") from error
    record_own_sighting(row.pk)
    return row


def _open_to_team(team: Group, path: str, known: Mapping[str, Any]) -> Repository:
    same = Repository.objects.filter(team=team, path=path)
    if same.exclude(removed_at=None).update(removed_at=None, **known):
        return same.get()
    if same.exists():
        raise Invalid(_ALREADY_OPEN, field="path")
    return Repository.objects.create(team=team, path=path, **known)


@dataclass(frozen=True, slots=True)
class InspectedRepository:
    """A git repository that may be opened to a team."""

    path: str
    """Its resolved path."""
    branch: str
    """The branch that is checked out; empty if none is."""


def inspect_repository(given: str) -> InspectedRepository:
    """Look at the repository with this path, before any transaction; raises Invalid if it cannot be used."""
    path = usable_repository(given)
    try:
        return InspectedRepository(str(path), current_branch(path))
    except (RepositoryUnusable, OSError) as error:
        raise Invalid("The repository cannot be read.", field="path") from error


def usable_repository(given: str) -> Path:
    """Return the resolved path of a git repository below the allowed folders; raises Invalid for anything else."""
    if not Path(given).is_absolute():
        raise Invalid("Enter an absolute path.", field="path")
    try:
        path = Path(given).resolve()
        roots = [Path(root).resolve() for root in settings.KANDEV_REPOSITORY_ROOTS]
        if roots and not any(path.is_relative_to(root) for root in roots):
            raise Invalid("The path is not in any of the folders that KANDEV_REPOSITORY_ROOTS allows.", field="path")
        TeamRepository.open(path)
    except RepositoryUnusable as error:
        raise Invalid(error.message, field="path") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise Invalid("This is not a valid path.", field="path") from error
    return path


def current_branch(path: Path) -> str:
    """Return the branch that is checked out in a repository; empty if none is."""
    head = TeamRepository.open(path).head()
    if head.startswith("refs/heads/"):
        return head.removeprefix("refs/heads/")
    return ""


def make_repository(directory: Path, readme: str) -> str:
    """Create a git repository whose first commit is a README, unless it is there; return its branch."""
    create_scratch_repository(directory, readme)
    return current_branch(directory) or BRANCH


def scratch_root() -> Path:
    """Return the directory of all scratch repositories."""
    return Path(settings.KANDEV_DATA_DIR) / SCRATCH_DIRECTORY


def without_scratch(repositories: QuerySet[Repository], *, keep: uuid.UUID | None = None) -> QuerySet[Repository]:
    """Return the repositories offered for work: without those in which agents are tested, but with ``keep``.

    Those that were removed from their team are not offered either.
    """
    offered = ~Q(path__startswith=f"{scratch_root()}/") & Q(removed_at=None)
    return repositories.filter(offered | Q(pk=keep))


def preselected_repository(user: User, last: uuid.UUID | None) -> uuid.UUID | None:
    """Return the repository that a form for new tasks begins with; ``last`` is the one that the user has used last.

    It is the default of that one's team if the team has chosen one, else ``last``. A user who has used none gets the
    default of the first of their teams that has one.
    """
    defaults = without_scratch(Repository.objects.visible_to(user)).filter(is_default=True)
    by_team = dict(defaults.order_by("team__name").values_list("team_id", "id"))
    if not by_team:
        return last
    if last is None:
        return next(iter(by_team.values()))
    team = Repository.objects.visible_to(user).filter(id=last).values_list("team_id", flat=True).first()
    return by_team.get(team, last)  # type: ignore[arg-type]


def only_or_default(repositories: QuerySet[Repository]) -> Repository | None:
    """Return the default repository of a team, or else its only one; None if it has several or none."""
    first_two = list(without_scratch(repositories).order_by("-is_default", "name", "id")[:2])
    if first_two and (len(first_two) == 1 or first_two[0].is_default):
        return first_two[0]
    return None


def scratch_repository(team: Group) -> Repository:
    """Return the team's scratch repository, created on its first use. Raises ExecutorError, OSError."""
    row = _scratch_row(team)
    make_repository(Path(row.path), _README)
    return row


def _scratch_row(team: Group) -> Repository:
    """Return the row of the team's scratch repository, whose directory may not exist yet."""
    with transaction.atomic():
        Group.objects.select_for_update().get(pk=team.pk)  # two first uses make one row
        row = Repository.objects.filter(team=team, path__startswith=f"{scratch_root()}/").first()
        if row is None:
            # Not the team's number, which another team can get after a restored backup.
            path = scratch_root() / str(uuid.uuid4())
            row = Repository.objects.create(name="Agent tests", team=team, path=str(path), default_branch=BRANCH)
    return row
