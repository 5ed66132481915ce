"""Serializers of merges and pushes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import StrictCharField, values_of
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import MESSAGE_LIMIT, FinishKind, FinishState, Strategy
from sessions_app.finish.unfinished import MAX_PATHS

FINISH_KINDS = values_of(FinishKind)
FINISH_STATES = values_of(FinishState)
STRATEGIES = values_of(Strategy)
_COMMIT_LENGTH = 64


class StrategyQuerySerializer(serializers.Serializer[Any]):
    """``?strategy=``: how the branch would be merged."""

    strategy = serializers.ChoiceField(choices=STRATEGIES, default=str(Strategy.MERGE))


class MergeRequestSerializer(serializers.Serializer[Any]):
    """A merge of the commit that was reviewed into the base, while that is where it was."""

    strategy = serializers.ChoiceField(choices=STRATEGIES)
    branch_commit = StrictCharField(max_length=_COMMIT_LENGTH, help_text="The reviewed commit of the branch.")
    target_commit = StrictCharField(max_length=_COMMIT_LENGTH, help_text="The commit of the base.")
    message = StrictCharField(
        max_length=MESSAGE_LIMIT,
        required=False,
        allow_blank=True,
        default="",
        trim_whitespace=False,
        help_text="Of the commit that is made; without one, the suggested message.",
    )


class MergePreviewSerializer(serializers.Serializer[Any]):
    """What merging the branch would do now. ``problem`` is empty if it can be merged."""

    branch = serializers.CharField(allow_blank=True)
    branch_commit = serializers.CharField(allow_blank=True)
    target = serializers.CharField(allow_blank=True)
    target_commit = serializers.CharField(allow_blank=True)
    ahead = serializers.IntegerField(allow_null=True)
    behind = serializers.IntegerField(allow_null=True)
    conflicts = serializers.ListField(child=serializers.CharField())
    uncommitted = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="Files that are not committed; null: not known."
    )
    problem = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    suggested_message = serializers.CharField(allow_blank=True)
    may_merge = serializers.BooleanField()


class UnfinishedSessionSerializer(serializers.Serializer[Any]):
    """What one session has that is not committed or not merged; null: not known."""

    session_id = serializers.UUIDField(source="session.id")
    branch = serializers.CharField()
    target = serializers.CharField(allow_blank=True, help_text="The base; empty: not known.")
    unmerged = serializers.IntegerField(allow_null=True, help_text="Commits that the base does not have.")
    uncommitted = serializers.ListField(
        source="paths", child=serializers.CharField(), allow_null=True, help_text=f"At most {MAX_PATHS} files."
    )
    uncommitted_count = serializers.IntegerField(source="file_count", allow_null=True)
    saved_at = serializers.DateTimeField(
        source="uncommitted.saved_at", allow_null=True, help_text="When that was saved; null: it is as of now."
    )


class UnfinishedTaskSerializer(serializers.Serializer[Any]):
    """What the sessions of a task have that is not committed or not merged, or of which that is not known."""

    version = serializers.CharField(help_text="Identifies what is left, for a request that deletes the task.")
    sessions = UnfinishedSessionSerializer(source="works", many=True)
    unread_sessions = serializers.IntegerField(
        source="unread", help_text="Older sessions that were not looked at; what they have is not known."
    )


class FinishIntentSerializer(serializers.ModelSerializer[FinishIntent]):
    """A merge or push: what it is bound to, and how far it is."""

    session_id = serializers.UUIDField(read_only=True)
    kind = serializers.ChoiceField(choices=FINISH_KINDS, read_only=True)
    state = serializers.ChoiceField(choices=FINISH_STATES, read_only=True)
    by = serializers.CharField(source="by.username", default=None, allow_null=True, read_only=True)
    conflicts = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = FinishIntent
        fields = (
            "id",
            "session_id",
            "kind",
            "state",
            "strategy",
            "remote",
            "branch_ref",
            "branch_commit",
            "target_ref",
            "expected_commit",
            "result_commit",
            "message",
            "by",
            "created_at",
            "ended_at",
            "attempts",
            "error_code",
            "error_message",
            "conflicts",
        )
        read_only_fields = fields
