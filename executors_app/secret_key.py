"""Whether the secret key of this process is the one that the database's secrets are encrypted with.

Another key is noticed by a known text that is stored encrypted (`SecretKeyCheck`). Without it, a process with another
key would look ready, fail at each secret that it needs, and encrypt new ones so that nobody else can read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.db import models

from executors_app.encryption import EncryptedField, KeyFit, find_key, reencrypt, stored_values
from executors_app.models import SecretKeyCheck

_CHECK: Final[Any] = SecretKeyCheck._meta.get_field("text")


class WrongSecretKey(Exception):
    """The secret key is not the one that the database's secrets are encrypted with."""


@dataclass(frozen=True, slots=True)
class SecretColumn:
    """How many secrets of one column can be read, and with which key."""

    field: EncryptedField
    current: int
    """Encrypted with the first key."""
    earlier: int
    """Encrypted with one of the fallbacks."""
    unreadable: int

    @property
    def label(self) -> str:
        """Table and column in words."""
        return f"{self.field.model._meta.verbose_name_plural}: {self.field.verbose_name}"


def check_secret_key() -> None:
    """Raise WrongSecretKey if none of the present keys decrypts the check value. All migrations must be applied.

    A database of an earlier release gets its check value now, unless it has secrets and none of them can be read.
    """
    refuse_other_key()
    if not SecretKeyCheck.objects.exists():
        if not _has_readable_secrets():
            raise WrongSecretKey
        SecretKeyCheck.objects.get_or_create(id=1)
        # A process with another key may have been first.
        refuse_other_key()


def refuse_other_key() -> None:
    """Raise WrongSecretKey if there is a check value that none of the present keys decrypts. Changes nothing.

    A value of an earlier key stays as it is until all secrets are encrypted again: only then is a start without that
    key safe.
    """
    if is_secret_key_wrong():
        raise WrongSecretKey


def is_secret_key_wrong() -> bool:
    """Return whether there is a check value that none of the present keys decrypts. Changes nothing."""
    return any(opens_nothing(stored) for stored in _check_values())


def opens_nothing(stored: str) -> bool:
    """Return whether none of the present keys decrypts a check value, as it is stored."""
    return find_key(stored) is KeyFit.NONE


def accept_present_key() -> None:
    """From now on, take the present first key for the right one. Secrets that it cannot read stay as they are."""
    SecretKeyCheck.objects.update_or_create(id=1, defaults={"text": _CHECK.get_default()})


def secret_columns() -> list[SecretColumn]:
    """Return the columns that have secrets, with how many of them can be read."""
    columns = [_examine(field) for field in _encrypted_fields()]
    return [column for column in columns if column.current or column.earlier or column.unreadable]


def reencrypt_all() -> int:
    """Encrypt every readable secret with the first key; return how many were encrypted with an earlier one.

    The check value comes last: until then a start without the earlier key is refused.
    """
    tables: set[type[models.Model]] = {field.model for field in _encrypted_fields()}
    count = 0
    for table in tables:
        rewritten, _ = reencrypt(table)
        count += rewritten
    reencrypt(SecretKeyCheck)
    return count


def _check_values() -> list[str]:
    return list(stored_values(_CHECK))


def _has_readable_secrets() -> bool:
    """Return whether a present key reads one of the secrets, or there are none. The first one is proof enough."""
    found_any = False
    for field in _encrypted_fields():
        for stored in stored_values(field).iterator():
            if find_key(stored) is not KeyFit.NONE:
                return True
            found_any = True
    return not found_any


def _encrypted_fields() -> Iterator[EncryptedField]:
    for table in apps.get_models():
        if table is not SecretKeyCheck:
            yield from (field for field in table._meta.local_fields if isinstance(field, EncryptedField))


def _examine(field: EncryptedField) -> SecretColumn:
    counts = dict.fromkeys(KeyFit, 0)
    for stored in stored_values(field).iterator():
        counts[find_key(stored)] += 1
    return SecretColumn(field, counts[KeyFit.FIRST], counts[KeyFit.EARLIER], counts[KeyFit.NONE])
