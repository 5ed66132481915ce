"""Serializers of the review. Most only document the shape of agentctl's answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from executors_app.machine.git.branch_changes import (
    MAX_CONTEXT,
    MAX_PATHS,
    Change,
    Conflict,
    Content,
    PartProblem,
    Problem,
)
from sessions_app.api.serializers.common import KeptQuerySerializer, SizedListField, StrictCharField, values_of
from sessions_app.review.rules.parts import WHOLE_BRANCH, Part, PartKind
from sessions_app.workspace.api.serializers import ShownSerializer

CHANGES = values_of(Change)
CONFLICTS = values_of(Conflict)
CONTENTS = values_of(Content)
PROBLEMS = values_of(Problem)
PARTS = values_of(PartKind)
PART_PROBLEMS = values_of(PartProblem)


class ChangesQuerySerializer(KeptQuerySerializer):
    """``?of=`` the whole branch, or a part of it."""

    of = StrictCharField(
        max_length=100,
        default=str(WHOLE_BRANCH),
        help_text="`branch`, `uncommitted`, `commit:` with the full id of a commit, or `turn:` with the id of a turn.",
    )

    def validate_of(self, value: str) -> Part:
        """Return the part; raises ValidationError."""
        try:
            return Part.parse(value)
        except ValueError:
            raise serializers.ValidationError("There is no such part of a branch.") from None


class HunksQuerySerializer(ChangesQuerySerializer):
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


class SubmoduleCommitsSerializer(serializers.Serializer[Any]):
    """To which commits a submodule pointed and points: null for none, empty if that is not known."""

    old = serializers.CharField(allow_null=True, allow_blank=True)
    new = serializers.CharField(allow_null=True, allow_blank=True)


class ChangedFileSerializer(serializers.Serializer[Any]):
    """A file that differs. Lines are counted for text only; ``size`` is set where they are not.

    ``conflict`` says what the sides of a merge have done to a file in conflict; ``commits`` is set for a submodule.
    """

    path = serializers.CharField()
    old_path = serializers.CharField(allow_blank=True)
    change = serializers.ChoiceField(choices=CHANGES)
    conflict = serializers.ChoiceField(choices=CONFLICTS, allow_null=True)
    content = serializers.ChoiceField(choices=CONTENTS)
    old_mode = serializers.CharField(allow_blank=True)
    new_mode = serializers.CharField(allow_blank=True)
    additions = serializers.IntegerField(allow_null=True)
    deletions = serializers.IntegerField(allow_null=True)
    size = serializers.IntegerField(allow_null=True)
    commits = SubmoduleCommitsSerializer(allow_null=True)
    uncommitted = serializers.BooleanField()
    version = serializers.CharField(allow_blank=True)


class PartSerializer(serializers.Serializer[Any]):
    """What is shown. ``problem`` says why it is not known what a part has changed."""

    kind = serializers.ChoiceField(choices=PARTS)
    id = serializers.CharField(allow_blank=True)
    problem = serializers.ChoiceField(choices=PART_PROBLEMS, allow_blank=True)


class BranchCommitSerializer(serializers.Serializer[Any]):
    """A commit of the branch."""

    id = serializers.CharField()
    subject = serializers.CharField(allow_blank=True)
    author = serializers.CharField(allow_blank=True)
    at = serializers.CharField()


class BranchTurnSerializer(serializers.Serializer[Any]):
    """A turn of the agent. ``prompt`` is how it begins; ``problem`` says why its changes cannot be shown."""

    id = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    state = serializers.CharField()
    origin = serializers.CharField(allow_null=True)
    prompt = serializers.CharField(allow_blank=True)
    problem = serializers.ChoiceField(choices=PART_PROBLEMS, allow_blank=True)


class BranchChangesSerializer(ShownSerializer):
    """What a branch or a part of it has changed. If ``files`` is truncated, ``count`` and the sums may lack files.

    ``base`` is null for a part: its files are compared with where it began. ``commits`` and ``turns`` are the newest
    parts that can be requested; ``commits`` is null if it is not known which commits the branch has.
    """

    part = PartSerializer()
    commits = BranchCommitSerializer(many=True, allow_null=True)
    more_commits = serializers.BooleanField()
    turns = BranchTurnSerializer(many=True)
    more_turns = serializers.BooleanField()
    base = BaseSerializer(allow_null=True)
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

    base = BaseSerializer(allow_null=True)
    files = FileHunksSerializer(many=True)
