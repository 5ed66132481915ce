"""Teams, their members and accounts: invitations, roles, login links, and which user names are allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Count, QuerySet
from django.db.models.signals import pre_save

from executors_app.wire.normalization import normalize_compatible
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.models import INVITATION_LIFETIME, LOGIN_LINK_LIFETIME, LoginLink, TeamRole
from sessions_app.accounts.team_scope import teams_of
from sessions_app.kernel.services.errors import Conflict, Invalid, LastAdmin, MemberChanged, NotFound

_LOOKALIKES: Final = (("I", "l"), ("1", "l"), ("|", "l"), ("0", "o"))
"""Characters and what they look like. Replaced before case folding: a capital I looks like l, a small i does not."""
_NAME: Final = re.compile(r"[A-Za-z0-9@.+_-]+")
"""ASCII only: readers could not tell spaces, control characters and letters of other alphabets apart."""
_LOOKALIKE_SEQUENCES: Final = (("rn", "m"), ("vv", "w"))


def check_user_name(name: str, user_id: int | None = None) -> None:
    """Raise ValidationError unless the account ``user_id`` (None: a new one) may use ``name``.

    A name must be ASCII and must not look like the name of another account.
    """
    if not _NAME.fullmatch(name):
        text = "A user name can contain only the letters a to z, digits and @ . + - _. Other characters can look alike."
        raise ValidationError({"username": [text]}, code="not_ascii")
    same = name_skeleton(name)
    others = get_user_model().objects.values_list("username", flat=True)
    if user_id is not None:
        others = others.exclude(pk=user_id)
    if any(other != name and name_skeleton(other) == same for other in others.iterator()):
        text = "This user name looks like that of another account. Choose another one."
        raise ValidationError({"username": [text]}, code="look_alike")


def name_skeleton(name: str) -> str:
    """Return what a name looks like: equal for two names that are easily confused."""
    seen = normalize_compatible(name)
    for one, other in _LOOKALIKES:
        seen = seen.replace(one, other)
    seen = seen.casefold()
    for pair, letter in _LOOKALIKE_SEQUENCES:
        seen = seen.replace(pair, letter)
    return seen


def _check_before_save(sender: Any, instance: Any, raw: bool = False, **kwargs: Any) -> None:
    """Check the name of an account that is created or renamed, by whatever code.

    A ``pre_save`` handler, because commands, the admin and a shell pass no form of ours. Fixtures (``raw``) are not
    checked, nor are existing names that stay as they are.
    """
    name = instance.get_username()
    if raw or sender.objects.filter(pk=instance.pk, username=name).exists():
        return
    check_user_name(name, instance.pk)


def connect_user_name_check() -> None:
    """Connect the check of user names to every save of a user; called once at startup."""
    pre_save.connect(_check_before_save, sender=get_user_model(), dispatch_uid="user_names")


NAME_LIMIT: Final = 150
"""Maximum length of the name of a team or user, from Django's models."""


@dataclass(frozen=True, slots=True)
class TeamMember:
    """A member of a team, with the role."""

    user: User
    role: TeamRole.Role

    @property
    def name(self) -> str:
        """The full name, or else the user name."""
        return str(self.user.get_full_name() or self.user.get_username())


def visible_teams(user: User) -> QuerySet[Group]:
    """Return the teams whose members ``user`` may see (for staff: all), with the number of members as ``members``."""
    rows = teams_of(user)
    if user.is_staff and user.is_active:
        rows = Group.objects.all()
    own = rows.values("id")  # a subquery: a join to the user's own membership would count only that user
    return Group.objects.filter(id__in=own).annotate(members=Count("user", distinct=True)).order_by("name")


def list_members(team: Group) -> list[TeamMember]:
    """Return the active members of ``team`` by user name, with two queries."""
    return members_by_team([team])[team.pk]


def members_by_team(teams: Sequence[Group]) -> dict[int, list[TeamMember]]:
    """Return the active members of each of ``teams``, by user name, with two queries."""
    ids = [team.pk for team in teams]
    roles = {(team, user): role for team, user, role in _roles(ids)}
    found: dict[int, list[TeamMember]] = {team: [] for team in ids}
    members = User.groups.through.objects.filter(group_id__in=ids, user__is_active=True).select_related("user")
    for row in members.order_by("user__username"):
        role = roles.get((row.group_id, row.user_id), TeamRole.Role.MEMBER)
        found[row.group_id].append(TeamMember(row.user, TeamRole.Role(role)))
    return found


def _roles(team_ids: Sequence[int]) -> QuerySet[TeamRole, tuple[int, int, str]]:
    return TeamRole.objects.filter(team__in=team_ids).values_list("team_id", "user_id", "role")


def roles_by_team(user: User) -> dict[int, TeamRole.Role]:
    """Return the role of ``user`` in each team by the team's id."""
    stored = dict(TeamRole.objects.filter(user=user).values_list("team_id", "role"))
    team_ids = teams_of(user).values_list("id", flat=True)
    return {team_id: TeamRole.Role(stored.get(team_id, TeamRole.Role.MEMBER)) for team_id in team_ids}


def create_team(name: str) -> Group:
    """Create a team without members. Raises Conflict if the name is taken."""
    try:
        with transaction.atomic():
            return Group.objects.create(name=name)
    except IntegrityError:
        raise Conflict(f"A team named {name!r} already exists. Choose another name.") from None


@transaction.atomic
def add_member(team: Group, username: str, role: str, by: User) -> Any:
    """Add an existing account to ``team``, and return it.

    Raises Invalid if no active account has this name, or if it is in the team already.
    """
    _lock(team)
    user = get_user_model().objects.filter(username=username, is_active=True).first()
    if user is None:
        raise Invalid(f"There is no account {username!r}. Invite them as a new person.", field="username")
    if user.groups.filter(pk=team.pk).exists():
        raise Invalid(f"{username} is in this team already. Change the role in the list.", field="username")
    user.groups.add(team)
    _write_role(team, user, role)
    record_change(by, team, f"Member added: {user.get_username()}, {role}")
    return user


@transaction.atomic
def invite_member(team: Group | None, username: str, email: str, role: str, by: User) -> tuple[Any, str]:
    """Create an account, in ``team`` unless that is None; return it with the secret of its first login link.

    Raises Invalid for a user name that is taken or not allowed. Only staff can create links for existing accounts
    (``create_login_link``): a team admin who could would get into other people's accounts.
    """
    users = get_user_model()
    user = users(username=users.normalize_username(username), email=email)
    user.set_unusable_password()
    try:
        user.full_clean(exclude=("password",))
        check_user_name(user.username)
    except ValidationError as error:
        raise Invalid("; ".join(error.messages), field=next(iter(error.message_dict))) from None
    user.save()
    if team is not None:
        user.groups.add(team)
        _write_role(team, user, role)
        record_change(by, team, f"Member invited: {user.get_username()}, {role}")
    return user, LoginLink.mint(user, INVITATION_LIFETIME, LoginLink.Purpose.PASSWORD, made_by=by)


def may_manage_account(by: User, user: User) -> bool:
    """Return whether ``by`` may create login links for the account of ``user``, or deactivate it.

    Superusers may for all accounts, staff for accounts that are neither staff nor superuser.
    """
    return bool(by.is_active and (by.is_superuser or (by.is_staff and not (user.is_staff or user.is_superuser))))


def set_account_active(user: User, by: User, *, active: bool) -> None:
    """Activate or deactivate an account. Deactivating ends its logins and sockets, and its links and tokens fail.

    Accounts are never deleted, because the log refers to who requested what. Raises Conflict for one's own account.
    """
    if user == by:
        raise Conflict("You cannot deactivate your own account. Ask another member of staff.")
    user.is_active = active
    user.save(update_fields=["is_active"])
    if not active:
        LoginLink.forget(user)


def create_login_link(user: User, purpose: str, by: User) -> str:
    """Return the secret of a new link for ``user`` to log in (10 minutes) or to set a new password (24 hours).

    Earlier links of the user expire.
    """
    LoginLink.forget(user)
    if purpose == LoginLink.Purpose.PASSWORD:
        lifetime = INVITATION_LIFETIME
    else:
        lifetime = LOGIN_LINK_LIFETIME
    return LoginLink.mint(user, lifetime, purpose, made_by=by)


@transaction.atomic
def change_role(team: Group, user_id: int, role: str, by: User, seen: str = "") -> Any:
    """Change the role of a member of ``team``, and return the user.

    ``seen`` is the role that the page showed; empty: whatever it is now. Raises NotFound for anyone else, MemberChanged
    if it is another role, and LastAdmin.
    """
    user = _lock_member(team, user_id, seen)
    if role == _role_of(team, user):
        return user
    _require_other_admin(team, user)
    _write_role(team, user, role)
    record_change(by, team, f"Role changed: {user.get_username()}, {role}")
    return user


@transaction.atomic
def remove_member(team: Group, user_id: int, by: User, seen: str = "") -> Any:
    """Remove a member from ``team``, and return the user. Their sockets close within seconds.

    What then becomes of what is theirs: ``belongings.find_belongings``. Raises what ``change_role`` raises.
    """
    user = _lock_member(team, user_id, seen)
    _require_other_admin(team, user)
    user.groups.remove(team)
    TeamRole.objects.filter(team=team, user=user).delete()
    record_change(by, team, f"Member removed: {user.get_username()}")
    return user


def find_member(team: Group, user_id: int) -> TeamMember | None:
    """Return an active member of ``team``; None if there is no such member."""
    user = get_user_model().objects.filter(pk=user_id, groups=team, is_active=True).first()
    if user is None:
        return None
    return TeamMember(user, _role_of(team, user))


def is_last_admin(team: Group, user: User) -> bool:
    """Return whether ``user`` is the only active admin of ``team``."""
    role = TeamRole.Role.ADMIN
    admins = TeamRole.objects.filter(team=team, role=role, user__is_active=True, user__groups=team)
    return list(admins.values_list("user_id", flat=True)) == [user.pk]


def _lock(team: Group) -> None:
    """Let one change of the members of ``team`` follow the other: two could remove the last two admins."""
    Group.objects.select_for_update().get(pk=team.pk)


def _lock_member(team: Group, user_id: int, seen: str) -> Any:
    _lock(team)
    user = _get_member(team, user_id)
    if seen and seen != _role_of(team, user):
        raise MemberChanged
    return user


def _role_of(team: Group, user: User) -> TeamRole.Role:
    stored = TeamRole.objects.filter(team=team, user=user).values_list("role", flat=True).first()
    return TeamRole.Role(stored or TeamRole.Role.MEMBER)


def _require_other_admin(team: Group, user: User) -> None:
    if is_last_admin(team, user):
        raise LastAdmin


def _get_member(team: Group, user_id: int) -> Any:
    user = get_user_model().objects.filter(pk=user_id, groups=team).first()
    if user is None:
        raise NotFound("This person is no longer in the team.")
    return user


def _write_role(team: Group, user: User, role: str) -> None:
    if role == TeamRole.Role.MEMBER:
        TeamRole.objects.filter(team=team, user=user).delete()
    else:
        TeamRole.objects.update_or_create(team=team, user=user, defaults={"role": role})
