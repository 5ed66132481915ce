"""Decide who may change what: members of a team write, viewers read, everyone else gets *not found*.

``accounts.team_scope`` decides who may *see* something; these functions are called with objects the user can see.
"""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Exists, OuterRef, QuerySet

from executors_app.models import Executor
from executors_app.plugins import UnknownPlugin
from sessions_app.accounts.models import TeamRole
from sessions_app.accounts.team_scope import teams_of
from sessions_app.kernel.services.errors import ReadOnly
from sessions_app.models import TaskSession


def writable_teams(user: User) -> QuerySet[Group]:
    """Return the teams in which ``user`` can write; none with a read-only token."""
    if getattr(user, "only_reads", False):
        return Group.objects.none()
    only_reads = TeamRole.objects.filter(user_id=user.pk, role=TeamRole.Role.VIEWER)
    return teams_of(user).exclude(id__in=only_reads.values("team_id"))


def may_write(user: User, team: Group | int) -> bool:
    """Return whether ``user`` may change what belongs to ``team`` (a row or its id)."""
    if isinstance(team, Group):
        team = team.pk
    return writable_teams(user).filter(id=team).exists()


def writers_among(users: Collection[int]) -> set[tuple[int, int]]:
    """Return (user, team) for each team in which one of these users is active and more than a viewer; one query."""
    if not users:
        return set()
    members = User.groups.through.objects.filter(user_id__in=users, user__is_active=True)
    viewers = TeamRole.objects.filter(user=OuterRef("user_id"), team=OuterRef("group_id"), role=TeamRole.Role.VIEWER)
    return set(members.exclude(Exists(viewers)).values_list("user_id", "group_id"))


def may_write_session(user: User, session: TaskSession) -> bool:
    """Return whether ``user`` may prompt, resume, answer, cancel, stop or close ``session``."""
    return may_write(user, session.task.team_id)


def may_write_somewhere(user: User) -> bool:
    """Return whether ``user`` can write in any team."""
    return writable_teams(user).exists()


def require_write(user: User, team: Group | int) -> None:
    """Raise ReadOnly unless ``user`` can write in ``team``."""
    if not may_write(user, team):
        raise ReadOnly


def may_manage(user: User, team: Group) -> bool:
    """Return whether ``user`` may manage the members of ``team``: staff and the team's admins."""
    return bool(user.is_staff and user.is_active) or managed_teams(user).filter(id=team.pk).exists()


def managed_teams(user: User) -> QuerySet[Group]:
    """Return the teams in which ``user`` is an admin."""
    admin = TeamRole.objects.filter(user_id=user.pk, role=TeamRole.Role.ADMIN)
    return teams_of(user).filter(id__in=admin.values("team_id"))


def may_operate(user: User, session: TaskSession) -> bool:
    """Return whether ``user`` may use the shell of ``session`` and write its files.

    If agents share the machine with the control plane, that requires staff, or a team with the permission
    ``operate_unisolated``.
    """
    return may_operate_in(user, session.task.team_id, session.executor)


def may_operate_in(user: User, team: Group | int, executor: Executor) -> bool:
    """Return whether ``user`` may do so in every session of ``team`` (a row or its id) on ``executor``."""
    if not may_write(user, team):
        return False
    return user.is_staff or is_isolated(executor) or is_trusted(team)


def is_isolated(executor: Executor) -> bool:
    """Return whether agents of ``executor`` cannot affect this machine; False for an unknown runtime, to be safe."""
    try:
        return not executor.trusted_agents_only
    except UnknownPlugin:
        return False


def may_name_programs(user: User, team: Group) -> bool:
    """Return whether ``user`` may configure programs that run with every agent of ``team``, wherever that is.

    That requires staff, or an admin of a team with the permission ``operate_unisolated``.
    """
    return may_manage(user, team) and (user.is_staff or is_trusted(team))


def is_trusted(team: Group | int) -> bool:
    """Return whether a team has the permission ``operate_unisolated``."""
    return _has_permission(team, "operate_unisolated")


def may_merge(user: User, team: Group) -> bool:
    """Return whether ``user`` may merge branches of sessions: staff and the team's admins.

    In a team with the permission ``merge_branches``, all members may.
    """
    return _may_finish(user, team, "merge_branches")


def may_push(user: User, team: Group) -> bool:
    """Return whether ``user`` may push branches of sessions: as ``may_merge``, with ``push_branches``."""
    return _may_finish(user, team, "push_branches")


def _may_finish(user: User, team: Group, permission: str) -> bool:
    if not may_write(user, team):
        return False
    return may_manage(user, team) or _has_permission(team, permission)


def team_permissions(team: Group) -> set[str]:
    """Return the permissions of ``TeamRole`` that all members of a team have."""
    given = Permission.objects.filter(group=team, content_type__app_label=TeamRole._meta.app_label)
    return set(given.values_list("codename", flat=True))


def _has_permission(team: Group | int, codename: str) -> bool:
    given = Permission.objects.filter(group=team, codename=codename)
    return given.filter(content_type__app_label=TeamRole._meta.app_label).exists()
