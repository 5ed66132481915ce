"""Serializers of a workspace's files and git. Most only document the shape of agentctl's responses."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from rest_framework import serializers

from executors_app.wire.path_search import FILE, FOLDER, MAX_QUERY
from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.serializers.common import KeptQuerySerializer, SizedListField, StrictCharField


class KeptSerializer(serializers.Serializer[Any]):
    """The stored copy that a response comes from: its commit and time."""

    commit = serializers.CharField()
    at = serializers.DateTimeField()


class ShownSerializer(serializers.Serializer[Any]):
    """Where a response comes from: ``kept`` is set for the stored copy, and absent for the live workspace."""

    kept = KeptSerializer(required=False)


class EntrySerializer(serializers.Serializer[Any]):
    """An entry of a directory."""

    name = serializers.CharField()
    type = serializers.CharField()
    size = serializers.IntegerField(allow_null=True)


class FolderSerializer(ShownSerializer):
    """A directory of the workspace."""

    path = serializers.CharField()
    entries = EntrySerializer(many=True)
    truncated = serializers.BooleanField()


class SearchQuerySerializer(KeptQuerySerializer):
    """Letters of a path, in their order."""

    query = StrictCharField(max_length=MAX_QUERY, allow_blank=True, trim_whitespace=False)


class FoundFileSerializer(serializers.Serializer[Any]):
    """A file, or a directory, whose path ends with a slash."""

    path = serializers.CharField()
    type = serializers.ChoiceField(choices=[FILE, FOLDER])


class FileSearchSerializer(ShownSerializer):
    """What a search has found; ``truncated``: not all files of the workspace were searched."""

    query = serializers.CharField()
    entries = FoundFileSerializer(many=True)
    truncated = serializers.BooleanField()


class FileContentSerializer(ShownSerializer):
    """A file of the workspace."""

    path = serializers.CharField()
    size = serializers.IntegerField()
    encoding = serializers.CharField()
    binary = serializers.BooleanField()
    content = serializers.CharField()
    truncated = serializers.BooleanField()
    hash = serializers.CharField(allow_null=True)
    html = serializers.CharField(required=False, help_text="With `highlight=true`: the text as highlighted HTML.")


class WriteRequestSerializer(serializers.Serializer[Any]):
    """The new content of a file: text, or base64."""

    content = StrictCharField(allow_blank=True, trim_whitespace=False, max_length=MAX_BODY)
    encoding = serializers.ChoiceField(choices=["utf-8", "base64"], default="utf-8")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the content as bytes."""
        content: str = attrs["content"]
        if attrs["encoding"] == "utf-8":
            return {"content": content.encode()}
        try:
            return {"content": base64.b64decode(content, validate=True)}
        except (binascii.Error, ValueError):
            raise serializers.ValidationError({"content": ["This is not valid base64."]}) from None


class WrittenSerializer(serializers.Serializer[Any]):
    """The file that was written."""

    path = serializers.CharField()
    size = serializers.IntegerField()
    hash = serializers.CharField()
    created = serializers.BooleanField()


class ChangeSerializer(serializers.Serializer[Any]):
    """A changed file; ``from`` names its old path if it was renamed or copied."""

    path = serializers.CharField()
    change = serializers.CharField()


class SubmoduleFileSerializer(ChangeSerializer):
    """A changed file inside a submodule; its path begins at the root of the workspace."""

    side = serializers.ChoiceField(choices=["staged", "unstaged", "untracked", "conflicted"])


class SubmoduleChangesSerializer(serializers.Serializer[Any]):
    """A submodule with changes; they are committed inside it first."""

    path = serializers.CharField()
    files = SubmoduleFileSerializer(many=True)
    count = serializers.IntegerField()
    problem = serializers.CharField(allow_blank=True)


class GitStatusSerializer(ShownSerializer):
    """The state of the working tree: staged, unstaged, untracked and conflicted files."""

    branch = serializers.CharField(allow_null=True)
    head = serializers.CharField(allow_null=True)
    clean = serializers.BooleanField()
    staged = ChangeSerializer(many=True)
    unstaged = ChangeSerializer(many=True)
    untracked = serializers.ListField(child=serializers.CharField())
    conflicted = serializers.ListField(child=serializers.CharField())
    submodules = SubmoduleChangesSerializer(many=True, required=False)
    truncated = serializers.BooleanField()


class GitDiffSerializer(ShownSerializer):
    """Two diffs: from the last commit to the index, and from the index to the files."""

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
    """Commits, newest first; ``more``: whether older ones follow."""

    commits = GitCommitSerializer(many=True)
    more = serializers.BooleanField()
    truncated = serializers.BooleanField()


class LogQuerySerializer(KeptQuerySerializer):
    """Which commits to list; without ``ref``, those of the current branch."""

    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)
    skip = serializers.IntegerField(min_value=0, max_value=1_000_000, default=0)
    ref = StrictCharField(max_length=200, allow_blank=True, default="")


class CommitRequestSerializer(serializers.Serializer[Any]):
    """A commit to create: its message, and the paths it includes (all changes if empty)."""

    message = StrictCharField(max_length=64 * 1024, trim_whitespace=False)
    paths = SizedListField(child=StrictCharField(max_length=4096, trim_whitespace=False), default=list, max_length=1000)


class CommittedSerializer(serializers.Serializer[Any]):
    """The commit that was created."""

    commit = serializers.CharField()
    branch = serializers.CharField(allow_null=True)
    subject = serializers.CharField()
