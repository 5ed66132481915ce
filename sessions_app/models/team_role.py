"""What a member of a team may do there (rule 39)."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class TeamRole(models.Model):
    """The role of one member in one team (a group of users). Without a row a member is a full member.

    It gives nothing to somebody who is not in the team: who is in it says ``User.groups`` alone.
    """

    class Role(models.TextChoices):
        """The roles of rule 39, and who looks after the team."""

        ADMIN = "admin", "Admin: a member who also says who is in the team"
        MEMBER = "member", "Member: reads and writes"
        VIEWER = "viewer", "Viewer: reads"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="team_roles")
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="roles")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        db_table = "team_roles"
        ordering = ("team__name", "user__username")
        constraints = (models.UniqueConstraint(fields=("user", "team"), name="one_role_per_member"),)
        permissions = (("operate_unisolated", "Can use shells and write files where agents are not isolated"),)

    def __str__(self) -> str:
        return f"{self.role} {self.user_id} of team {self.team_id}"
