"""Decide what a user may see: only what belongs to the user's teams. No other module decides this."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import ClassVar, Self, TypeVar, cast

from django.contrib.auth.models import Group, User
from django.db import models

M_co = TypeVar("M_co", bound=models.Model, covariant=True)


def teams_of(user: User) -> models.QuerySet[Group]:
    """Return the teams of ``user``; none for an anonymous or inactive user."""
    if not user.is_authenticated or not user.is_active:
        return Group.objects.none()
    teams: models.QuerySet[Group] = user.groups.all()
    return teams


class TeamQuerySet(models.QuerySet[M_co]):
    """A queryset that can be limited to a user's teams. Views respond with 404 to everything outside it."""

    def visible_to(self, user: User) -> Self:
        """Return the rows of the user's teams; none for an anonymous user."""
        paths = cast(type[TeamModel], self.model).team_path
        if isinstance(paths, str):
            paths = (paths,)
        teams = teams_of(user)
        return self.filter(reduce(or_, (models.Q(**{f"{path}__in": teams}) for path in paths)))


class TeamModel(models.Model):
    """A row that belongs to a team, directly or through its parents."""

    team_path: ClassVar[str | tuple[str, ...]] = "team"
    """Lookup path from the row to its team; several paths if the row has one of several parents."""

    objects = TeamQuerySet.as_manager()

    class Meta:
        abstract = True
