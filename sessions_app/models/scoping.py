"""The one place that says what a user may see: the things of the user's teams (promise 7)."""

from __future__ import annotations

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
        return self.filter(**{f"{path}__in": teams_of(user)})


class TeamModel(models.Model):
    """A row that belongs to a team, directly or through its parents."""

    team_path: ClassVar[str] = "team"
    """Lookup path from the row to its team."""

    objects = TeamQuerySet.as_manager()

    class Meta:
        abstract = True
