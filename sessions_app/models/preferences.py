"""How somebody likes to see the pages, on whatever machine they log in."""

from __future__ import annotations

from functools import cache
from typing import Final
from zoneinfo import available_timezones

from django.conf import settings
from django.db import models

AUTOMATIC: Final = ""
"""The zone of whoever looks is their browser's own."""


@cache
def time_zones() -> tuple[str, ...]:
    """The names of places that have a time: ``Europe/Berlin``, and ``UTC``."""
    places = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/")))
    return ("UTC", *places)


class Preferences(models.Model):
    """One user's choices. Without a row everything follows the browser."""

    class Theme(models.TextChoices):
        """Light or dark."""

        SYSTEM = "system", "Like the system"
        LIGHT = "light", "Light"
        DARK = "dark", "Dark"

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="preferences")
    theme = models.CharField(max_length=6, choices=Theme.choices, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, blank=True, default=AUTOMATIC)

    class Meta:
        db_table = "preferences"
        verbose_name_plural = "preferences"

    def __str__(self) -> str:
        return f"preferences of {self.user_id}"
