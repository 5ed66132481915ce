"""Teams, their members and accounts: invitations, roles, login links, and which user names are allowed."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Count, QuerySet
from django.db.models.signals import pre_save

from sessions_app.accounts.models import INVITATION_LIFETIME, LOGIN_LINK_LIFETIME, LoginLink, TeamRole
from sessions_app.accounts.team_scope import teams_of
from sessions_app.services.errors import Conflict, Invalid, NotFound

_LOOKALIKES: Final = (("I", "l"), ("1", "l"), ("|", "l"), ("0", "o"))
"""One character that is taken for another, before case is folded: a large I is, a small one is not."""
_NAME: Final = re.compile(r"[A-Za-z0-9@.+_-]+")
"""Spaces and control characters are as invisible at the end of a name as letters of other alphabets within it."""
_LOOKALIKE_SEQUENCES: Final = (("rn", "m"), ("vv", "w"))


def check_user_name(name: str, user_id: int | None = None) -> None:
    """ValidationError where ``name`` is not one that the account ``user_id`` (None: a new one) may take."""
    if not _NAME.fullmatch(name):
        said = "A user name can contain only the letters a to z, digits and @ . + - _. Others can look the same."
        raise ValidationError({"username": [said]}, code="not_ascii")
    same = name_skeleton(name)
    users = get_user_model().objects.all()
    others = (users if user_id is None else users.exclude(pk=user_id)).values_list("username", flat=True)
    if any(other != name and name_skeleton(other) == same for other in others.iterator()):
        said = "This user name looks like that of another account. Choose another one."
        raise ValidationError({"username": [said]}, code="look_alike")


def name_skeleton(name: str) -> str:
    """What a name looks like: the same for two that are easily taken for one another."""
    seen = unicodedata.normalize("NFKC", name)
    for one, other in _LOOKALIKES:
        seen = seen.replace(one, other)
    seen = seen.casefold()
    for pair, letter in _LOOKALIKE_SEQUENCES:
        seen = seen.replace(pair, letter)
    return seen


def _check_before_save(sender: Any, instance: Any, raw: bool = False, **kwargs: Any) -> None:
    """Whatever makes an account or renames one: a command, the admin, a shell. Not a copy that is loaded (``raw``)."""
    name = instance.get_username()
    if raw or sender.objects.filter(pk=instance.pk, username=name).exists():
        return
    check_user_name(name, instance.pk)


def connect_user_name_check() -> None:
    """From now on no account is written with a name that it may not take."""
    pre_save.connect(_check_before_save, sender=get_user_model(), dispatch_uid="user_names")


NAME_LIMIT: Final = 150
"""Characters of the name of a team or of a user, as Django keeps them."""


@dataclass(frozen=True, slots=True)
class TeamMember:
    """Somebody in a team, and as what."""

    user: Any
    role: TeamRole.Role

    @property
    def name(self) -> str:
        """As people call them."""
        return str(self.user.get_full_name() or self.user.get_username())


def visible_teams(user: Any) -> QuerySet[Group]:
    """The teams whose members ``user`` may see: the own ones; staff sees all. With ``members``, their number."""
    rows = Group.objects.all() if user.is_staff and user.is_active else teams_of(user)
    own = rows.values("id")  # counted apart, for a join that narrows would count nobody else
    return Group.objects.filter(id__in=own).annotate(members=Count("user", distinct=True)).order_by("name")


def list_members(team: Group) -> list[TeamMember]:
    """Everybody in ``team`` who is active, by name; two statements."""
    roles = dict(TeamRole.objects.filter(team=team).values_list("user_id", "role"))
    people = get_user_model().objects.filter(groups=team, is_active=True).order_by("username")
    return [TeamMember(user, TeamRole.Role(roles.get(user.pk, TeamRole.Role.MEMBER))) for user in people]


def roles_by_team(user: Any) -> dict[int, TeamRole.Role]:
    """As what ``user`` is in which team, by its id."""
    told = dict(TeamRole.objects.filter(user=user).values_list("team_id", "role"))
    return {
        key: TeamRole.Role(told.get(key, TeamRole.Role.MEMBER)) for key in teams_of(user).values_list("id", flat=True)
    }


def create_team(name: str) -> Group:
    """A new team with nobody in it; Conflict where there is one of this name."""
    try:
        with transaction.atomic():
            return Group.objects.create(name=name)
    except IntegrityError:
        raise Conflict(f"A team named {name!r} already exists. Choose another name.") from None


@transaction.atomic
def add_member(team: Group, username: str, role: str) -> Any:
    """Put somebody who has an account into ``team``; Invalid where nobody active has this name."""
    user = get_user_model().objects.filter(username=username, is_active=True).first()
    if user is None:
        raise Invalid(f"There is no account {username!r}. Invite them as a new person.", field="username")
    user.groups.add(team)
    _write_role(team, user, role)
    return user


@transaction.atomic
def invite_member(team: Group | None, username: str, email: str, role: str, by: Any) -> tuple[Any, str]:
    """A new account, in ``team`` if there is one, and the secret of a link with which its owner comes in.

    For a new account alone: a link into somebody's account is given by staff (``link_for``).
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
    return user, LoginLink.mint(user, INVITATION_LIFETIME, LoginLink.Purpose.PASSWORD, made_by=by)


def may_manage_account(by: Any, user: Any) -> bool:
    """Whether ``by`` may make a way into the account of ``user``, or close it: staff for others, superusers for all."""
    return bool(by.is_active and (by.is_superuser or (by.is_staff and not (user.is_staff or user.is_superuser))))


def set_account_active(user: Any, by: Any, *, active: bool) -> None:
    """Let somebody in again, or no longer: their logins and sockets end, their links and tokens open nothing.

    An account is never deleted: the log names who asked for what. Raises Conflict for the own account.
    """
    if user == by:
        raise Conflict("You cannot deactivate your own account. Ask another member of staff.")
    user.is_active = active
    user.save(update_fields=["is_active"])
    if not active:
        LoginLink.forget(user)


def create_login_link(user: Any, purpose: str, by: Any) -> str:
    """The secret of a link with which ``user`` logs in (ten minutes), or sets a new password (a day).

    Earlier links of theirs lead nowhere any more.
    """
    LoginLink.forget(user)
    lifetime = INVITATION_LIFETIME if purpose == LoginLink.Purpose.PASSWORD else LOGIN_LINK_LIFETIME
    return LoginLink.mint(user, lifetime, purpose, made_by=by)


@transaction.atomic
def change_role(team: Group, user_id: int, role: str) -> Any:
    """Somebody in ``team`` is something else there from now on; NotFound for somebody who is not in it."""
    user = _get_member(team, user_id)
    _write_role(team, user, role)
    return user


@transaction.atomic
def remove_member(team: Group, user_id: int) -> Any:
    """Take somebody out of ``team``: they find nothing of it any more, and their sockets close within seconds."""
    user = _get_member(team, user_id)
    user.groups.remove(team)
    TeamRole.objects.filter(team=team, user=user).delete()
    return user


def _get_member(team: Group, user_id: int) -> Any:
    user = get_user_model().objects.filter(pk=user_id, groups=team).first()
    if user is None:
        raise NotFound("This person is no longer in the team.")
    return user


def _write_role(team: Group, user: Any, role: str) -> None:
    if role == TeamRole.Role.MEMBER:
        TeamRole.objects.filter(team=team, user=user).delete()
    else:
        TeamRole.objects.update_or_create(team=team, user=user, defaults={"role": role})
