"""Keys that somebody makes through REST framework's own model become keys of ours: none is kept in clear."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver
from rest_framework.authtoken.models import Token

from sessions_app.models import ApiToken


@receiver(post_save, sender=Token, dispatch_uid="keep hashes alone")
def keep_its_hash_alone(sender: type[Token], instance: Token, raw: bool = False, **more: Any) -> None:
    """Take the key over and forget its text; whoever has just made it still holds it."""
    ApiToken.keep(instance.user, instance.key, "Made by a program", ApiToken.Scope.WRITE, None)
    sender.objects.filter(pk=instance.pk).delete()
