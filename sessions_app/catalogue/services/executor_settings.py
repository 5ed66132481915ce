"""Add and change executors, make one the default, and disable them. Callers have checked that the user is staff.

Runtime, address, image and files of an executor become a program, a mount or a connection of the server, so nobody
else may write them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from executors_app.models import Executor
from sessions_app.accounts.audit import record_change
from sessions_app.catalogue.services.offers import default_executor, offered_executors
from sessions_app.kernel.services.errors import Conflict, DefaultExecutor, Invalid, NotFound, SettingsChanged

EDITED: Final = ("name", "config", "max_live", "host_id")
"""What can be changed later. Another runtime would be another place: its executions would not be found again."""


def version_of(executor: Executor) -> str:
    """Return what identifies the settings as they are now; an edit names the version that it was made from."""
    values = {name: getattr(executor, name) for name in EDITED}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def add_executor(values: Mapping[str, Any], by: User) -> Executor:
    """Add an executor, which is not the default before somebody makes it that. Raises Invalid."""
    executor = Executor(**values)
    _check(executor)
    with transaction.atomic():
        executor.save(force_insert=True)
        record_change(by, executor, "Added.")
    return executor


def change_executor(executor_id: uuid.UUID, values: Mapping[str, Any], version: str, by: User) -> Executor:
    """Change ``EDITED`` values of an executor as it was shown. Raises NotFound, SettingsChanged, Invalid."""
    with transaction.atomic():
        executor = _lock(executor_id)
        if version_of(executor) != version:
            raise SettingsChanged
        changed = [name for name in EDITED if name in values and getattr(executor, name) != values[name]]
        for name in changed:
            setattr(executor, name, values[name])
        _check(executor)
        if changed:
            executor.save(update_fields=changed)
            record_change(by, executor, f"Changed {', '.join(changed)}.")
    return executor


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


def disable_executor(executor_id: uuid.UUID, by: User) -> Executor:
    """Let no new session use it; its sessions go on. Raises NotFound, DefaultExecutor."""
    with transaction.atomic():
        executor = _lock(executor_id)
        require_not_default(executor)
        if executor.disabled_at is None:
            executor.disabled_at = timezone.now()
            executor.save(update_fields=["disabled_at"])
            record_change(by, executor, "Disabled.")
    return executor


def enable_executor(executor_id: uuid.UUID, by: User) -> Executor:
    """Let new sessions use it again. Raises NotFound."""
    with transaction.atomic():
        executor = _lock(executor_id)
        if executor.disabled_at is not None:
            executor.disabled_at = None
            executor.save(update_fields=["disabled_at"])
            record_change(by, executor, "Enabled.")
    return executor


def require_not_default(executor: Executor) -> None:
    """Raise DefaultExecutor if another one would silently become the default without it."""
    if executor == default_executor() and offered_executors().exclude(pk=executor.pk).exists():
        raise DefaultExecutor


def _lock(executor_id: uuid.UUID) -> Executor:
    executor = Executor.objects.select_for_update().filter(pk=executor_id).first()
    if executor is None:
        raise NotFound
    return executor


def _check(executor: Executor) -> None:
    """Raise Invalid, with the field, for values that the runtime refuses, and for a name that is taken."""
    try:
        executor.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        if field == "name" and Executor.objects.filter(name=executor.name).exclude(pk=executor.pk).exists():
            messages = ["There is an executor with this name already."]
        raise Invalid(messages[0], field=field) from error
