"""For whom a workflow file is run, where, and with which files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management.base import CommandError

from executors_app.models import AgentProfile, Executor
from sessions_app.management.database_check import COULD_NOT_RUN
from sessions_app.models import Repository
from sessions_app.services.catalogue import add_repository
from sessions_app.services.errors import Invalid
from sessions_app.services.rights import may_write
from sessions_app.workflows import apart
from sessions_app.workflows.graph import Workflow
from sessions_app.workflows.library import Directory, Remembering, root_of
from sessions_app.workflows.loading import Loaded
from sessions_app.workflows.reading import refused


@dataclass(frozen=True, slots=True)
class Read:
    """A file, what came of it, and the files that it names."""

    text: str
    loaded: Loaded
    files: dict[str, str]


def read_file(path: Path) -> Read:
    """A workflow file with all that it names in the project around it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
        return Read("", Loaded(None, refused(str(path), 0, "unreadable", reason, "").problems), {})
    library = Remembering(Directory(root_of(path)))
    try:
        loaded = apart.load(raw, str(path), library)
    except apart.LoadingUnavailable as error:
        raise refuse(f"{path}: {error}; try again") from error
    return Read(raw.decode("utf-8-sig", "replace"), loaded, library.files)


def inputs_of(graph: Workflow, given: Sequence[str]) -> dict[str, str]:
    """The inputs of ``NAME=VALUE`` words, each of which the workflow declares."""
    found = dict[str, str]()
    known = [one.name for one in graph.inputs]
    for word in given:
        name, is_set, value = word.partition("=")
        if not is_set:
            raise refuse(f"--set wants NAME=VALUE, not “{word}”")
        if name not in known:
            has = ", ".join(f"“{one}”" for one in known) or "none"
            raise refuse(f"the workflow declares no input “{name}”; it has {has}")
        found[name] = value
    return found


def refuse(message: str) -> CommandError:
    """The error of a command that has touched nothing."""
    return CommandError(message, returncode=COULD_NOT_RUN)


def named(rows: Any, name: str, what: str) -> Any:
    """The row of this name, where one is named."""
    found = rows.filter(name=name).first() if name else None
    if name and found is None:
        raise refuse(f"there is no {what} “{name}”")
    return found


def team_of(name: str) -> Group:
    """The team that was named, or the only one there is."""
    found = named(Group.objects.all(), name, "team")
    teams = [found] if found else list(Group.objects.order_by("name")[:2])
    if len(teams) != 1:
        raise refuse("there are several teams; say which with --team" if teams else "there is no team yet")
    return teams[0]


def user_of(name: str, team: Group) -> Any:
    """Who was named, or the only one in the team who may write."""
    if name:
        found = get_user_model().objects.filter(username=name, is_active=True).first()
        if found is None:
            raise refuse(f"there is no user “{name}”")
        return found
    members = get_user_model().objects.filter(groups=team, is_active=True)
    writers = [user for user in members.order_by("username") if may_write(user, team)]
    if len(writers) != 1:
        raise refuse(f"{len(writers)} people of the team may write; say in whose name with --user")
    return writers[0]


def repository_at(team: Group, given: Path | None, file: Path) -> Repository | None:
    """The team's repository at ``--cwd``, opened to it if need be.

    Without ``given`` it is that of the file, if the team has it, else the only one that the team has.
    """
    place = given if given is not None else file.resolve().parent
    path = next((one for one in (place, *place.parents) if (one / ".git").exists()), None)
    if path is None:
        if given is not None:
            raise refuse(f"{given} lies in no git repository")
        return _only_one(team)
    found = Repository.objects.filter(team=team, path=str(path)).first()
    if found is not None or given is None:
        return found or _only_one(team)
    try:
        return add_repository({"name": Path(path).name, "team": team, "path": path})
    except Invalid as error:
        raise refuse(f"{given}: {error.message}") from error


def _only_one(team: Group) -> Repository | None:
    rows = Repository.objects.filter(team=team)[:2]
    return rows[0] if len(rows) == 1 else None


def profile_of(name: str, team: Group) -> AgentProfile | None:
    """The agent profile that was named: the team's, or everybody's."""
    rows = AgentProfile.objects.filter(team__in=(team,)) | AgentProfile.objects.filter(team=None)
    found: AgentProfile | None = named(rows, name, "agent profile")
    return found


def executor_of(name: str) -> Executor | None:
    """The executor that was named."""
    found: Executor | None = named(Executor.objects.all(), name, "executor")
    return found
