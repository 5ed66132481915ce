"""Secrets at rest: AES-256-GCM model fields whose keys are derived from Django's secret keys.

The first of ``SECRET_KEY, *SECRET_KEY_FALLBACKS`` encrypts, all of them decrypt; ``reencrypt`` moves a table to the
first. The empty string stays empty in the database, so that ``filter(field="")`` and ``exclude(field="")`` work; no
other value can be looked up.

A value that no key decrypts does not break a listing: only reading the attribute raises SecretUnreadable, and saving
the row writes it back unchanged.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import FieldError, ValidationError
from django.db import models
from django.db.models.functions import Cast
from django.db.models.lookups import Exact, IsNull
from django.db.models.query_utils import DeferredAttribute

from executors_app.orm import JSONFormField
from executors_app.wire.errors import ExecutorError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

PREFIX: Final = "v1:"
_NONCE_BYTES: Final = 12


class SecretUnreadable(ExecutorError):
    """A stored secret cannot be decrypted with the current keys."""

    code = "secret_unreadable"
    permanent = True


@dataclass(frozen=True, slots=True)
class UndecryptedValue:
    """A stored value that no current key decrypts; never displays it."""

    stored: str

    def __repr__(self) -> str:
        return "<unreadable secret>"

    def __str__(self) -> str:
        return repr(self)


@lru_cache(maxsize=8)
def _ciphers(secrets: tuple[str, ...]) -> tuple[AESGCM, ...]:
    def derive(secret: str) -> bytes:
        return HKDF(SHA256(), 32, salt=b"kandev", info=b"encrypted model fields, v1").derive(secret.encode())

    return tuple(AESGCM(derive(secret)) for secret in secrets)


def _present_ciphers() -> tuple[AESGCM, ...]:
    return _ciphers((str(settings.SECRET_KEY), *map(str, settings.SECRET_KEY_FALLBACKS)))


def encrypt(text: str) -> str:
    """Encrypt with the first key; the empty string stays empty."""
    if not text:
        return ""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = nonce + _present_ciphers()[0].encrypt(nonce, text.encode(), None)
    return PREFIX + base64.urlsafe_b64encode(sealed).decode("ascii")


def decrypt(stored: str) -> str:
    """Decrypt with whichever key fits; raises SecretUnreadable if none does."""
    return _try_decrypt(stored, _present_ciphers())


def _try_decrypt(stored: str, ciphers: tuple[AESGCM, ...]) -> str:
    if not stored:
        return ""
    if not stored.startswith(PREFIX):
        raise SecretUnreadable("The stored value is not encrypted.")
    try:
        sealed = base64.b64decode(stored[len(PREFIX) :].encode(), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise SecretUnreadable("The stored value is damaged.") from error
    for cipher in ciphers:
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None).decode()
        except (InvalidTag, ValueError):
            continue
    raise SecretUnreadable


class _SecretAttribute(DeferredAttribute):
    """An attribute that raises SecretUnreadable, naming field and row, for an undecrypted value."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        value = super().__get__(instance, cls)
        if isinstance(value, UndecryptedValue):
            where = f"{instance._meta.label}.{self.field.attname}"
            raise SecretUnreadable(
                f"{where} of row {instance.pk} cannot be decrypted with SECRET_KEY or any of SECRET_KEY_FALLBACKS.",
                field=where,
                row=str(instance.pk),
            )
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        # without a setter Python would read the instance's dictionary and never call this descriptor
        instance.__dict__[self.field.attname] = value


class _ExactEmpty(Exact):  # type: ignore[type-arg,unused-ignore]
    """The one comparison that encrypted values allow: equality with the empty string."""

    def get_prep_lookup(self) -> Any:
        if self.rhs != "":
            raise FieldError("An encrypted field can only be compared with the empty string.")
        return ""


class EncryptedField(models.TextField):  # type: ignore[type-arg,unused-ignore]
    """Base class of encrypted fields; subclasses convert a value to text and back."""

    descriptor_class = _SecretAttribute

    def to_plain_text(self, value: Any) -> str:
        """Return the text to encrypt."""
        raise NotImplementedError

    def of_plain_text(self, text: str) -> Any:
        """Return the value of a decrypted text."""
        raise NotImplementedError

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Decrypt, or return an UndecryptedValue."""
        if value is None:
            return None
        try:
            return self.of_plain_text(decrypt(value))
        except SecretUnreadable:
            return UndecryptedValue(value)

    def get_prep_value(self, value: Any) -> Any:
        """Encrypt for the database; an UndecryptedValue is written back unchanged."""
        if value is None or hasattr(value, "resolve_expression"):
            return value
        if isinstance(value, UndecryptedValue):
            return value.stored
        return encrypt(self.to_plain_text(value))

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Bypass the attribute that raises: saving other fields must neither fail nor lose the value."""
        held = model_instance.__dict__.get(self.attname)
        if isinstance(held, UndecryptedValue):
            return held
        return super().pre_save(model_instance, add)

    def get_lookup(self, lookup_name: str) -> Any:
        """Allow only the lookups that ciphertexts support."""
        allowed: dict[str, Any] = {"exact": _ExactEmpty, "isnull": IsNull}
        return allowed.get(lookup_name)


class EncryptedTextField(EncryptedField):
    """A text that is encrypted at rest."""

    def to_plain_text(self, value: Any) -> str:
        """Return the text."""
        return str(value)

    def of_plain_text(self, text: str) -> str:
        """Return the text."""
        return text


class EncryptedJSONField(EncryptedField):
    """A JSON value that is encrypted at rest, with its keys."""

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

    def to_plain_text(self, value: Any) -> str:
        """Return compact JSON."""
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def of_plain_text(self, text: str) -> Any:
        """Return the JSON value; the field's default for an empty column."""
        if text:
            return json.loads(text)
        return self.get_default()

    def to_python(self, value: Any) -> Any:
        """Accept JSON text from fixtures and forms."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValidationError("Enter a valid JSON value.") from error

    def value_to_string(self, obj: models.Model) -> str:
        """Return JSON text for Django's serializers."""
        return self.to_plain_text(self.value_from_object(obj))

    def formfield(self, **kwargs: Any) -> Any:
        """Return a JSON form field."""
        return models.Field.formfield(self, **{"form_class": JSONFormField, **kwargs})


def reencrypt(model: type[models.Model]) -> tuple[int, int]:
    """Encrypt every value of a table with the first key; returns (rewritten, unreadable).

    Each value is rewritten only if it is still the one that was read, so other processes may write meanwhile.
    """
    counts = [_reencrypt_field(model, field) for field in model._meta.fields if isinstance(field, EncryptedField)]
    return sum(done for done, _ in counts), sum(closed for _, closed in counts)


def _reencrypt_field(model: type[models.Model], field: EncryptedField) -> tuple[int, int]:
    rows = model._base_manager.annotate(stored_text=Cast(field.attname, models.TextField()))
    rewritten = unreadable = 0
    for pk, stored in list(rows.exclude(stored_text="").values_list("pk", "stored_text")):
        if _opens(stored, _present_ciphers()[:1]):
            continue
        try:
            value = field.of_plain_text(decrypt(stored))
        except SecretUnreadable:
            unreadable += 1
            continue
        rewritten += rows.filter(pk=pk, stored_text=stored).update(**{field.attname: value})
    return rewritten, unreadable


def stored_values(field: EncryptedField) -> models.QuerySet[Any, str]:
    """Return the stored texts of a field that are not empty, as they are in the database."""
    rows = field.model._base_manager.annotate(stored_text=Cast(field.attname, models.TextField()))
    return rows.exclude(stored_text="").order_by("pk").values_list("stored_text", flat=True)


class KeyFit(StrEnum):
    """Which of the present keys decrypts a stored text."""

    FIRST = "first"
    EARLIER = "earlier"
    NONE = "none"


def find_key(stored: str) -> KeyFit:
    """Return which of the present keys decrypts a stored text."""
    ciphers = _present_ciphers()
    if _opens(stored, ciphers[:1]):
        return KeyFit.FIRST
    if _opens(stored, ciphers[1:]):
        return KeyFit.EARLIER
    return KeyFit.NONE


def _opens(stored: str, ciphers: tuple[AESGCM, ...]) -> bool:
    try:
        _try_decrypt(stored, ciphers)
    except SecretUnreadable:
        return False
    return True
