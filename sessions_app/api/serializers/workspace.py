"""The workspace as agentctl shows it; most of these shapes are documentation, for agentctl makes them."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import KeptQuerySerializer, StrictCharField


class KeptSerializer(serializers.Serializer[Any]):
    """What was kept, and when."""

    commit = serializers.CharField()
    at = serializers.DateTimeField()


class ShownSerializer(serializers.Serializer[Any]):
    """What an answer is from; without ``kept`` from the workspace as it is."""

    kept = KeptSerializer(required=False)


class EntrySerializer(serializers.Serializer[Any]):
    """Something in a directory of the workspace."""

    name = serializers.CharField()
    type = serializers.CharField()
    size = serializers.IntegerField(allow_null=True)


class FolderSerializer(ShownSerializer):
    """A directory of the workspace (documentation: agentctl makes it)."""

    path = serializers.CharField()
    entries = EntrySerializer(many=True)
    truncated = serializers.BooleanField()


class FileContentSerializer(ShownSerializer):
    """A file of the workspace (documentation: agentctl makes it)."""

    path = serializers.CharField()
    size = serializers.IntegerField()
    encoding = serializers.CharField()
    binary = serializers.BooleanField()
    content = serializers.CharField()
    truncated = serializers.BooleanField()
    hash = serializers.CharField(allow_null=True)
    html = serializers.CharField(required=False, help_text="With `highlight=true`: a text in colours.")


class WriteRequestSerializer(serializers.Serializer[Any]):
    """What a file is to hold, as it was read: a text, or base64."""

    content = StrictCharField(allow_blank=True, trim_whitespace=False)
    encoding = serializers.ChoiceField(choices=["utf-8", "base64"], default="utf-8")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """With the content as bytes."""
        content: str = attrs["content"]
        if attrs["encoding"] == "utf-8":
            return {"content": content.encode()}
        try:
            return {"content": base64.b64decode(content, validate=True)}
        except (binascii.Error, ValueError):
            raise serializers.ValidationError({"content": ["This is not base64."]}) from None


class WrittenSerializer(serializers.Serializer[Any]):
    """A file that was written."""

    path = serializers.CharField()
    size = serializers.IntegerField()
    hash = serializers.CharField()
    created = serializers.BooleanField()


class ChangeSerializer(serializers.Serializer[Any]):
    """What has become of a file; ``from`` where it was renamed or copied."""

    path = serializers.CharField()
    change = serializers.CharField()


class GitStatusSerializer(ShownSerializer):
    """The working tree: what is staged, what is not, what git does not know, what is in conflict."""

    branch = serializers.CharField(allow_null=True)
    head = serializers.CharField(allow_null=True)
    clean = serializers.BooleanField()
    staged = ChangeSerializer(many=True)
    unstaged = ChangeSerializer(many=True)
    untracked = serializers.ListField(child=serializers.CharField())
    conflicted = serializers.ListField(child=serializers.CharField())
    truncated = serializers.BooleanField()


class GitDiffSerializer(ShownSerializer):
    """Both differences: from the last commit to what is staged, and from there to the files."""

    path = serializers.CharField(allow_blank=True)
    staged = serializers.CharField()
    unstaged = serializers.CharField()
    truncated = serializers.BooleanField()


class GitCommitSerializer(serializers.Serializer[Any]):
    """One commit."""

    id = serializers.CharField()
    parents = serializers.ListField(child=serializers.CharField())
    author = serializers.CharField()
    email = serializers.CharField()
    at = serializers.DateTimeField()
    subject = serializers.CharField()
    body = serializers.CharField()


class GitLogSerializer(ShownSerializer):
    """A piece of the history, newest first; ``more`` lies behind it."""

    commits = GitCommitSerializer(many=True)
    more = serializers.BooleanField()
    truncated = serializers.BooleanField()


class LogQuerySerializer(KeptQuerySerializer):
    """Which piece of the history, and of what; without ``ref`` of what is checked out."""

    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)
    skip = serializers.IntegerField(min_value=0, max_value=1_000_000, default=0)
    ref = StrictCharField(max_length=200, allow_blank=True, default="")


class CommitRequestSerializer(serializers.Serializer[Any]):
    """What to commit, and why; without ``paths`` everything."""

    message = StrictCharField(max_length=64 * 1024, trim_whitespace=False)
    paths = serializers.ListField(
        child=StrictCharField(max_length=4096, trim_whitespace=False), default=list, max_length=1000
    )


class CommittedSerializer(serializers.Serializer[Any]):
    """The commit that was made."""

    commit = serializers.CharField()
    branch = serializers.CharField(allow_null=True)
    subject = serializers.CharField()
