"""The Django application of the places where agents run, with its system checks.

``check --deploy`` names executors without isolation.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.db import DatabaseError

from executors_app import plugins


@checks.register("executors")
def check_data_directory(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Require an absolute data directory, because detached processes have other working directories."""
    if Path(settings.KANDEV_DATA_DIR).is_absolute():
        return []
    return [checks.Error("The data directory must be an absolute path.", id="executors.E001")]


@checks.register("executors")
def check_plugins(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Require that every runtime and agent type loads and that git, which worktrees need, is installed."""
    found: list[checks.CheckMessage] = []
    for what, load in (("runtimes", plugins.runtimes), ("agent types", plugins.agent_types)):
        try:
            load()
        except Exception as error:  # noqa: BLE001  (whatever a broken plugin raises is the finding)
            found.append(checks.Error(f"The {what} cannot be loaded: {error}", id="executors.E002"))
    if shutil.which("git") is None:
        found.append(checks.Error("git is not on PATH.", id="executors.E003"))
    return found


@checks.register("executors", deploy=True)
def check_isolation(
    app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Name the executors whose agents share the machine with the control plane: only trusted agents belong there."""
    from executors_app.models import Executor  # noqa: PLC0415  (checks are imported before the models)

    try:
        open_ones = [executor.name for executor in Executor.objects.all() if executor.trusted_agents_only]
    except (DatabaseError, plugins.UnknownPlugin):
        return []
    if not open_ones:
        return []
    names = ", ".join(open_ones)
    hint = "Use a runtime with isolation, or let only trusted agents run there."
    return [checks.Warning(f"Trusted agents only: {names} run without isolation.", hint=hint, id="executors.W001")]


class ExecutorsConfig(AppConfig):
    """Agent profiles, executors and the executions that they carry."""

    name = "executors_app"
    verbose_name = "Executors"
    default_auto_field = "django.db.models.BigAutoField"
