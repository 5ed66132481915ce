"""``manage.py migrate``: Django's command, without checks of the code.

Checks of the code import every page and the whole API, which takes as long as everything else when there is nothing to
migrate. ``check`` and the tests run them.
"""

from __future__ import annotations

from typing import Any

from django.core.checks import Tags
from django.core.management.commands.migrate import Command as Migrate


class Command(Migrate):
    """Migrate the database."""

    def check(self, *args: Any, **options: Any) -> None:
        """Check the database and the configuration of executors."""
        super().check(*args, **options | {"tags": [Tags.database, "executors"]})
