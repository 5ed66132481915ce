"""Serializers of remotes. None of them exposes a secret."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from executors_app.repositories.remote_address import MAX_ADDRESS
from executors_app.repositories.remote_keys import MAX_HOST_KEYS, MAX_KEY
from sessions_app.api.serializers.common import SizedListField, StrictCharField, StrictModelSerializer
from sessions_app.models import RepositoryRemote
from sessions_app.remotes.services import MAX_TOKEN


class HostKeySerializer(serializers.Serializer[Any]):
    """A key by which a server proves who it is."""

    type = serializers.CharField()
    fingerprint = serializers.CharField()


class RemoteSerializer(StrictModelSerializer):
    """Where a repository's branches are pushed to."""

    has_token = serializers.BooleanField(read_only=True)
    ready = serializers.BooleanField(source="is_ready", read_only=True)
    host_keys = HostKeySerializer(source="confirmed_keys", many=True, read_only=True)
    shown_host_keys = HostKeySerializer(source="scanned_keys", many=True, read_only=True)
    changed_by = serializers.CharField(source="changed_by.username", read_only=True, default=None, allow_null=True)

    class Meta:
        model = RepositoryRemote
        fields = (
            "address",
            "public_key",
            "username",
            "has_token",
            "ready",
            "host_keys",
            "shown_host_keys",
            "tested_at",
            "test_code",
            "changed_by",
            "updated_at",
        )
        read_only_fields = fields


class RemoteAddressSerializer(serializers.Serializer[Any]):
    """Where branches are to be pushed to."""

    address = StrictCharField(max_length=MAX_ADDRESS)


class RemoteKeySerializer(serializers.Serializer[Any]):
    """A deploy key; without one, Kandev generates it."""

    private_key = StrictCharField(max_length=MAX_KEY, required=False, write_only=True, trim_whitespace=False)


class RemoteTokenSerializer(serializers.Serializer[Any]):
    """A token, and the user name that is sent with it."""

    username = StrictCharField(max_length=200, required=False, allow_blank=True)
    token = StrictCharField(max_length=MAX_TOKEN, write_only=True)


class RemoteFingerprintsSerializer(serializers.Serializer[Any]):
    """The fingerprints that a person has compared."""

    fingerprints = SizedListField(child=StrictCharField(max_length=100), max_length=MAX_HOST_KEYS)
