"""Change rows of settings that several people edit: agent profiles and executors, from their pages and by the API.

A change is made over the version that its editor has seen, in one transaction with the lock on the row and the record
of who changed what. Who may change which values, what a valid row is, and what identifies a version is different for
each kind: its ``SettingsRules`` say so.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from executors_app.encryption import SecretUnreadable
from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.audit import record_change
from sessions_app.kernel.services.errors import DisabledByStaff, Invalid, NotFound, ReadOnly, SettingsChanged

Row = TypeVar("Row", AgentProfile, Executor)


class SettingsRules(ABC, Generic[Row]):
    """What is different for each kind of row."""

    model: type[Row]
    called: str
    """What people call such a row, in the middle of a sentence."""

    @abstractmethod
    def fields_for(self, user: User, row: Row) -> Collection[str]:
        """Return the values that a user may change; empty: nothing."""

    @abstractmethod
    def version_of(self, row: Row) -> str:
        """Return what identifies the settings as they are now, and tells nothing about secrets."""

    @abstractmethod
    def validate(self, row: Row) -> None:
        """Raise ValidationError for values that no row may have."""

    def require_can_be_disabled(self, row: Row) -> None:
        """Raise a SessionsError if the row cannot be disabled now."""


def add_row(rules: SettingsRules[Row], row: Row, by: User) -> Row:
    """Add a row, and record who added it. The caller has checked that the user may. Raises Invalid."""
    _check(rules, row)
    with transaction.atomic():
        row.save(force_insert=True)
        record_change(by, row, "Added.")
    return row


def change_row(
    rules: SettingsRules[Row], row_id: uuid.UUID, values: Mapping[str, Any], by: User, version: str | None = None
) -> Row:
    """Change values of a row, and with ``version`` only if it is still as it was shown.

    Raises NotFound, ReadOnly, SettingsChanged, Invalid.
    """
    with transaction.atomic():
        row = lock_row(rules, row_id)
        allowed = _allowed_fields(rules, by, row)
        if not allowed or not set(values) <= set(allowed):
            raise ReadOnly(f"You may not change this of this {rules.called}.")
        if version is not None and rules.version_of(row) != version:
            raise SettingsChanged
        changed = [name for name, value in values.items() if _differs(row, name, value)]
        for name in changed:
            setattr(row, name, values[name])
        _check(rules, row)
        if changed:
            row.save(update_fields=changed)
            record_change(by, row, f"Changed {', '.join(changed)}.")
    return row


def set_row_disabled(rules: SettingsRules[Row], row_id: uuid.UUID, by: User, *, disabled: bool) -> Row:
    """Let no new session use a row, or let them again; its sessions go on.

    Raises NotFound, ReadOnly, DisabledByStaff, and what ``require_can_be_disabled`` raises.
    """
    with transaction.atomic():
        row = lock_row(rules, row_id)
        if not _allowed_fields(rules, by, row):
            raise ReadOnly(f"You may not change this {rules.called}.")
        if disabled:
            rules.require_can_be_disabled(row)
        elif not may_enable(by, row):
            raise DisabledByStaff(f"{row.name} was disabled by an administrator. Ask one to enable it.")
        if (row.disabled_at is not None) == disabled:
            return row
        row.disabled_at = timezone.now() if disabled else None
        row.disabled_by = by.get_username() if disabled else ""
        row.disabled_by_staff = disabled and by.is_staff
        row.save(update_fields=["disabled_at", "disabled_by", "disabled_by_staff"])
        record_change(by, row, "Disabled." if disabled else "Enabled.")
    return row


def may_enable(user: User, row: AgentProfile | Executor) -> bool:
    """Return whether a user who may change a row may also enable it: only staff undo what staff have disabled."""
    return user.is_staff or not row.disabled_by_staff


def lock_row(rules: SettingsRules[Row], row_id: uuid.UUID) -> Row:
    """Lock a row until the transaction ends. Raises NotFound."""
    row = rules.model._default_manager.select_for_update().filter(pk=row_id).first()
    if row is None:
        raise NotFound
    return row


def _allowed_fields(rules: SettingsRules[Row], user: User, row: Row) -> Collection[str]:
    if getattr(user, "only_reads", False):  # a token that only reads
        return ()
    return rules.fields_for(user, row)


def _differs(row: AgentProfile | Executor, name: str, value: Any) -> bool:
    try:
        return bool(getattr(row, name) != value)
    except SecretUnreadable:
        return True


def _check(rules: SettingsRules[Row], row: Row) -> None:
    """Raise Invalid, with the field, for values that no row may have."""
    try:
        rules.validate(row)
    except ValidationError as error:
        if not hasattr(error, "error_dict"):
            raise Invalid(error.messages[0]) from error
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(messages[0], field=field) from error
