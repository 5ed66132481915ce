"""Add and change executors, make one the default, and disable them. Only staff may.

Runtime, address, image and files of an executor become a program, a mount or a connection of the server, so nobody
else may write them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from executors_app.models import Executor
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.guarded_settings import SettingsRules, add_row, change_row, set_row_disabled
from sessions_app.catalogue.services.offers import default_executor, offered_executors
from sessions_app.kernel.services.errors import Conflict, DefaultExecutor, Invalid, NotFound
from sessions_app.placement.services.executor_hosts import find_host

EDITED: Final = ("name", "config", "max_live", "host_id", "pool", "labels")
"""What can be changed later. Another runtime would be another place: its executions would not be found again."""


def version_of(executor: Executor) -> str:
    """Return what identifies the settings as they are now; an edit names the version that it was made from."""
    values = {name: getattr(executor, name) for name in EDITED}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def require_not_default(executor: Executor) -> None:
    """Raise DefaultExecutor if another one would silently become the default without it."""
    if executor == default_executor() and offered_executors().exclude(pk=executor.pk).exists():
        raise DefaultExecutor


class _ExecutorRules(SettingsRules[Executor]):
    """The rules of executors: only staff change them."""

    model = Executor
    called = "executor"

    def fields_for(self, user: User, row: Executor) -> Collection[str]:
        """Return what a user may change."""
        if user.is_staff:
            return EDITED
        return ()

    def version_of(self, row: Executor) -> str:
        """Return what identifies the settings as they are now."""
        return version_of(row)

    def validate(self, row: Executor) -> None:
        """Raise ValidationError for values that the runtime refuses, and for a name that is taken."""
        try:
            row.full_clean()
        except ValidationError as error:
            is_taken = Executor.objects.filter(name=row.name).exclude(pk=row.pk).exists()
            if "name" in error.message_dict and is_taken:
                raise ValidationError({"name": "There is an executor with this name already."}) from error
            raise

    def require_can_be_disabled(self, row: Executor) -> None:
        """Raise DefaultExecutor if it is the default and there is another."""
        require_not_default(row)


_RULES: Final = _ExecutorRules()


def add_executor(values: Mapping[str, Any], by: User) -> Executor:
    """Add an executor, which is not the default before somebody makes it that. Raises Invalid."""
    return add_row(_RULES, Executor(**values), by)


def change_executor(executor_id: uuid.UUID, values: Mapping[str, Any], version: str | None, by: User) -> Executor:
    """Change ``EDITED`` values of an executor, with ``version`` as it was shown.

    Raises NotFound, ReadOnly, SettingsChanged, Invalid.
    """
    return change_row(_RULES, executor_id, values, by, version)


def find_host_id(executor_id: uuid.UUID, name: str) -> int | None:
    """Return the id of the host with this name that an executor may belong to; None for an empty name.

    Raises NotFound, Invalid.
    """
    runtime = Executor.objects.filter(pk=executor_id).values_list("runtime", flat=True).first()
    if runtime is None:
        raise NotFound
    try:
        host = find_host(name, runtime)
    except ValidationError as error:
        raise Invalid(error.messages[0], field="host") from error
    return None if host is None else host.pk


def set_disabled(executor_id: uuid.UUID, by: User, *, disabled: bool) -> Executor:
    """Let no new session use it, or let them again; its sessions go on. Raises NotFound, ReadOnly, DefaultExecutor."""
    return set_row_disabled(_RULES, executor_id, by, disabled=disabled)


def make_default(executor_id: uuid.UUID, by: User) -> Executor:
    """Make it the executor of sessions that name none. Raises NotFound, Conflict if it is disabled."""
    with transaction.atomic():
        rows = list(Executor.objects.select_for_update().order_by("pk"))  # all: two requests must not mark two
        executor = next((row for row in rows if row.pk == executor_id), None)
        if executor is None:
            raise NotFound
        if executor.disabled_at is not None:
            raise Conflict("This executor is disabled. Enable it first.")
        if not executor.is_default:
            Executor.objects.filter(is_default=True).update(is_default=False)
            Executor.objects.filter(pk=executor_id).update(is_default=True)
            record_change(by, executor, "Made the default.")
    executor.is_default = True
    return executor
