"""The one place that says what a user may see: the things of the user's teams (promise 7)."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, ClassVar, Self, TypeVar, cast

from django.contrib.auth.models import Group
from django.db import models

M_co = TypeVar("M_co", bound=models.Model, covariant=True)


def teams_of(user: Any) -> models.QuerySet[Group]:
    """The teams whose things ``user`` may see; none for somebody who is not logged in or not active any more."""
    if not user.is_authenticated or not user.is_active:
        return Group.objects.none()
    teams: models.QuerySet[Group] = user.groups.all()
    return teams


class TeamQuerySet(models.QuerySet[M_co]):
    """A queryset that can narrow itself to a user's teams; what is outside it is a 404."""

    def visible_to(self, user: Any) -> Self:
        """Rows of the teams that ``user`` belongs to; none for somebody who is not logged in."""
        path = cast(type[TeamModel], self.model).team_path
        paths, teams = (path,) if isinstance(path, str) else path, teams_of(user)
        return self.filter(reduce(or_, (models.Q(**{f"{one}__in": teams}) for one in paths)))


class TeamModel(models.Model):
    """A row that belongs to a team, directly or through its parents."""

    team_path: ClassVar[str | tuple[str, ...]] = "team"
    """Lookup path from the row to its team; several where a row has one of several parents."""

    objects = TeamQuerySet.as_manager()

    class Meta:
        abstract = True
