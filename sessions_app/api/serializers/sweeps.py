"""Sweeps, in the words of ``recover_sessions --json`` (interfaces 2)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.fields import RowSerializer
from sessions_app.models import RecoverySweep, SweepOutcome, SweepRequest, TaskSession


class OutcomeSerializer(RowSerializer):
    """What a sweep decided for one session."""

    session_id = serializers.UUIDField(read_only=True)
    task_id = serializers.UUIDField(source="session.task_id", read_only=True)

    class Meta:
        model = SweepOutcome
        fields = (
            "session_id",
            "task_id",
            "runtime",
            "observed",
            "rule",
            "executor_status",
            "session_state",
            "agent_action",
            "strategy",
            "receipt_kind",
            "reason",
            "error_message",
            "duration_ms",
        )
        read_only_fields = fields


class SweepSerializer(RowSerializer):
    """A sweep; its numbers are the deployment's. Only sweeps that wrote something are kept, so no dry run is here."""

    sweep_id = serializers.UUIDField(source="id", read_only=True)
    dry_run = serializers.BooleanField(default=False, read_only=True)
    outcomes = serializers.DictField(child=serializers.IntegerField(), read_only=True)

    class Meta:
        model = RecoverySweep
        fields = (
            "id",
            "sweep_id",
            "boot_id",
            "trigger",
            "dry_run",
            "started_at",
            "duration_ms",
            "examined",
            "outcomes",
        )
        read_only_fields = fields


class SweepDetail(SweepSerializer):
    """A sweep with what it decided for the sessions of the user's teams."""

    sessions = serializers.SerializerMethodField()

    class Meta:
        model = RecoverySweep
        fields = (*SweepSerializer.Meta.fields, "sessions")
        read_only_fields = fields

    def get_sessions(self, sweep: RecoverySweep) -> list[dict[str, Any]]:
        """Other teams' sessions are left out."""
        rows = SweepOutcome.objects.visible_to(self.context["request"].user).filter(sweep=sweep)
        shown: list[dict[str, Any]] = OutcomeSerializer(rows.select_related("session"), many=True).data  # type: ignore[assignment]
        return shown


class NewSweep(serializers.Serializer[Any]):
    """What staff says of a sweep that is wanted now."""

    dry_run = serializers.BooleanField(default=False)


class SweepRequestSerializer(RowSerializer):
    """A sweep that somebody asked for; ``report`` is the document of ``recover_sessions --json`` once it is done."""

    sweep_id = serializers.UUIDField(read_only=True, allow_null=True)
    report = serializers.SerializerMethodField()

    class Meta:
        model = SweepRequest
        fields = ("id", "dry_run", "by", "created_at", "done_at", "sweep_id", "report")
        read_only_fields = fields

    def get_report(self, asked: SweepRequest) -> dict[str, Any] | None:
        """Other teams' sessions are left out."""
        if asked.report is None:
            return None
        rows = asked.report["sessions"]
        sessions = TaskSession.objects.visible_to(self.context["request"].user)
        seen = {
            str(one) for one in sessions.filter(id__in=[row["session_id"] for row in rows]).values_list("id", flat=True)
        }
        return {**asked.report, "sessions": [row for row in rows if row["session_id"] in seen]}
