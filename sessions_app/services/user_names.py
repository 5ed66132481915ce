"""New user names do not look like others: who answered, approved or wrote something is told by name alone.

A name consists of ASCII letters, digits and a few signs, for whole alphabets have letters that look like those; and
no other account has a name that differs in case only, or in characters that are hard to tell apart. Accounts that are
there already keep their names.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models.signals import pre_save

_ALIKE: Final = (("I", "l"), ("1", "l"), ("|", "l"), ("0", "o"))
"""One character that is taken for another, before case is folded: a large I is, a small one is not."""
_NAME: Final = re.compile(r"[A-Za-z0-9@.+_-]+")
"""Spaces and control characters are as invisible at the end of a name as letters of other alphabets within it."""
_ALIKE_TOGETHER: Final = (("rn", "m"), ("vv", "w"))


def check_user_name(name: str, user_id: int | None = None) -> None:
    """ValidationError where ``name`` is not one that the account ``user_id`` (None: a new one) may take."""
    if not _NAME.fullmatch(name):
        said = "A user name consists of the letters a to z, digits and @ . + - _: others look like these."
        raise ValidationError({"username": [said]}, code="not_ascii")
    same = skeleton(name)
    users = get_user_model().objects.all()
    others = (users if user_id is None else users.exclude(pk=user_id)).values_list("username", flat=True)
    if any(other != name and skeleton(other) == same for other in others.iterator()):
        said = "This user name looks like that of another account. Choose another one."
        raise ValidationError({"username": [said]}, code="look_alike")


def skeleton(name: str) -> str:
    """What a name looks like: the same for two that are easily taken for one another."""
    seen = unicodedata.normalize("NFKC", name)
    for one, other in _ALIKE:
        seen = seen.replace(one, other)
    seen = seen.casefold()
    for pair, letter in _ALIKE_TOGETHER:
        seen = seen.replace(pair, letter)
    return seen


def _check_before_it_is_written(sender: Any, instance: Any, raw: bool = False, **kwargs: Any) -> None:
    """Whatever makes an account or renames one: a command, the admin, a shell. Not a copy that is loaded (``raw``)."""
    name = instance.get_username()
    if raw or sender.objects.filter(pk=instance.pk, username=name).exists():
        return
    check_user_name(name, instance.pk)


def watch() -> None:
    """From now on no account is written with a name that it may not take."""
    pre_save.connect(_check_before_it_is_written, sender=get_user_model(), dispatch_uid="user_names")
