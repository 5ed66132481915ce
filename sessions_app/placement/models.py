"""Where repositories were seen."""

from __future__ import annotations

from django.db import models

from sessions_app.catalogue.models import Repository
from sessions_app.hosts.models import Host


class RepositorySighting(models.Model):
    """Whether a host had a repository on its disk when one of its processes last looked."""

    repository = models.ForeignKey(Repository, models.CASCADE, related_name="sightings", db_constraint=False)
    host = models.ForeignKey(Host, models.CASCADE, related_name="sightings")
    is_present = models.BooleanField()
    changed_at = models.DateTimeField()
    """Since when it is known to be there, or not to be."""

    class Meta:
        db_table = "repository_sightings"
        ordering = ("repository", "host")
        constraints = (models.UniqueConstraint(fields=("repository", "host"), name="one_sighting_per_host"),)

    def __str__(self) -> str:
        return f"{self.repository} on {self.host}"
