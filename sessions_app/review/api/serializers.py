"""Serializers of the review. Most only document the shape of agentctl's answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from executors_app.machine.git.branch_changes import MAX_CONTEXT, MAX_PATHS, Change, Content, Problem
from sessions_app.api.serializers.common import KeptQuerySerializer, SizedListField, StrictCharField, values_of
from sessions_app.workspace.api.serializers import ShownSerializer

CHANGES = values_of(Change)
CONTENTS = values_of(Content)
PROBLEMS = values_of(Problem)


class HunksQuerySerializer(KeptQuerySerializer):
    """``?path=`` relative to the workspace, once for each file."""

    path = SizedListField(
        child=StrictCharField(max_length=4096, trim_whitespace=False), min_length=1, max_length=MAX_PATHS
    )
    lines_around = serializers.IntegerField(
        min_value=0, max_value=MAX_CONTEXT, default=3, help_text="Lines around each change."
    )


class BaseSerializer(serializers.Serializer[Any]):
    """The base of a branch. ``start`` is the newest commit that both have, with which files are compared."""

    name = serializers.CharField(allow_blank=True)
    commit = serializers.CharField(allow_null=True)
    start = serializers.CharField(allow_null=True)
    problem = serializers.ChoiceField(choices=PROBLEMS, allow_blank=True)


class UpstreamSerializer(serializers.Serializer[Any]):
    """The branch's counterpart at a remote, as the workspace last fetched or pushed it."""

    name = serializers.CharField()
    ahead = serializers.IntegerField(allow_null=True)
    behind = serializers.IntegerField(allow_null=True)


class ChangedFileSerializer(serializers.Serializer[Any]):
    """A file that differs from the base. Lines are counted for text only; ``size`` is set where they are not."""

    path = serializers.CharField()
    old_path = serializers.CharField(allow_blank=True)
    change = serializers.ChoiceField(choices=CHANGES)
    content = serializers.ChoiceField(choices=CONTENTS)
    old_mode = serializers.CharField(allow_blank=True)
    new_mode = serializers.CharField(allow_blank=True)
    additions = serializers.IntegerField(allow_null=True)
    deletions = serializers.IntegerField(allow_null=True)
    size = serializers.IntegerField(allow_null=True)
    uncommitted = serializers.BooleanField()
    version = serializers.CharField(allow_blank=True)


class BranchChangesSerializer(ShownSerializer):
    """What a branch has changed. If ``files`` is truncated, ``count`` and the sums may lack files."""

    base = BaseSerializer()
    branch = serializers.CharField(allow_null=True)
    head = serializers.CharField(allow_null=True)
    ahead = serializers.IntegerField(allow_null=True)
    behind = serializers.IntegerField(allow_null=True)
    upstream = UpstreamSerializer(allow_null=True)
    operation = serializers.CharField(allow_null=True)
    files = ChangedFileSerializer(many=True)
    count = serializers.IntegerField()
    additions = serializers.IntegerField()
    deletions = serializers.IntegerField()
    truncated = serializers.BooleanField()


class HunkSerializer(serializers.Serializer[Any]):
    """A hunk. The first character of a line is ``+``, ``-``, a space, or a backslash for a note of git."""

    old_start = serializers.IntegerField()
    old_lines = serializers.IntegerField()
    new_start = serializers.IntegerField()
    new_lines = serializers.IntegerField()
    heading = serializers.CharField(allow_blank=True)
    lines = serializers.ListField(child=serializers.CharField())


class FileHunksSerializer(serializers.Serializer[Any]):
    """The hunks of one file; ``change`` is empty if it does not differ, ``cut`` is set if a line was shortened.

    A file is ``left_out`` if the answer had no more room: request it again.
    """

    path = serializers.CharField()
    old_path = serializers.CharField(allow_blank=True)
    change = serializers.ChoiceField(choices=CHANGES, allow_blank=True)
    version = serializers.CharField(allow_blank=True)
    left_out = serializers.BooleanField()
    hunks = HunkSerializer(many=True)
    truncated = serializers.BooleanField()
    cut = serializers.BooleanField()


class BranchHunksSerializer(ShownSerializer):
    """The hunks of changed files, in the order of the request."""

    base = BaseSerializer()
    files = FileHunksSerializer(many=True)
