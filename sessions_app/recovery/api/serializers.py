"""Serializers of sweeps, receipts and policies."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from sessions_app.api.serializers.common import (
    POLICIES,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
)
from sessions_app.kernel.rules.states import RunState
from sessions_app.models import (
    ContinuityReceipt,
    RecoverySweep,
    SweepOutcome,
    SweepRequest,
    TaskSession,
)
from sessions_app.recovery.rules.resumability import PolicySource
from sessions_app.recovery.rules.verification import Verified
from sessions_app.recovery.services.resume_costs import first_turn_json, first_turns
from sessions_app.sessions.rules.session_status import FirstTurnStatus


class OutcomeSerializer(StrictModelSerializer):
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


class SweepSerializer(StrictModelSerializer):
    """A sweep; its counts cover the whole deployment. Dry runs are not stored, so ``dry_run`` is always false."""

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


class SweepDetailSerializer(SweepSerializer):
    """A sweep, with its decisions for the sessions of the user's teams."""

    sessions = serializers.SerializerMethodField()

    class Meta:
        model = RecoverySweep
        fields = (*SweepSerializer.Meta.fields, "sessions")
        read_only_fields = fields

    def get_sessions(self, sweep: RecoverySweep) -> list[dict[str, Any]]:
        """Return the rows without the sessions of other teams."""
        rows = SweepOutcome.objects.visible_to(self.context["request"].user).filter(sweep=sweep)
        shown: list[dict[str, Any]] = OutcomeSerializer(rows.select_related("session"), many=True).data  # type: ignore[assignment]
        return shown


class NewSweepSerializer(serializers.Serializer[Any]):
    """Options of a requested sweep."""

    dry_run = serializers.BooleanField(default=False)


class SweepRequestSerializer(StrictModelSerializer):
    """A requested sweep; once it is done, ``report`` is the document that ``recover_sessions --json`` prints."""

    sweep_id = serializers.UUIDField(read_only=True, allow_null=True)
    report = serializers.SerializerMethodField()

    class Meta:
        model = SweepRequest
        fields = ("id", "dry_run", "by", "created_at", "done_at", "sweep_id", "report")
        read_only_fields = fields

    def get_report(self, sweep_request: SweepRequest) -> dict[str, Any] | None:
        """Return the rows without the sessions of other teams."""
        if sweep_request.report is None:
            return None
        rows = sweep_request.report["sessions"]
        sessions = TaskSession.objects.visible_to(self.context["request"].user)
        seen = {
            str(one) for one in sessions.filter(id__in=[row["session_id"] for row in rows]).values_list("id", flat=True)
        }
        return {**sweep_request.report, "sessions": [row for row in rows if row["session_id"] in seen]}


class FirstTurnSerializer(serializers.Serializer[Any]):
    """The first turn after a resume. Its figures are those of the whole turn, as its agent reports them."""

    id = serializers.UUIDField()
    message_id = serializers.CharField()
    state = choice_field(RunState)
    ended_at = serializers.DateTimeField(allow_null=True)
    usage = serializers.DictField(
        allow_null=True,
        help_text="As the `usage` of a turn: `input_tokens`, `cached_tokens` (read from a cache), `cache_write_tokens` "
        "and others. What is missing was not reported; null: nothing was.",
    )


class _ReceiptsWithTurns(serializers.ListSerializer[Any]):
    """Receipts with the first turn after each, which are read together."""

    def to_representation(self, data: Any) -> Any:
        """Return the receipts."""
        receipts = list(data)
        turns = first_turns(receipts)
        for receipt in receipts:
            receipt.__dict__["first_turn"] = turns.get(receipt.id)
        return super().to_representation(receipts)


class ReceiptSerializer(StrictModelSerializer):
    """A continuity receipt: how one resume ended."""

    verified = choice_field(Verified, read_only=True)
    first_turn = serializers.SerializerMethodField(
        help_text="The first turn after a resume, which shows what it cost; null if there was none, or if the agent "
        "read nothing again."
    )

    class Meta:
        model = ContinuityReceipt
        list_serializer_class = _ReceiptsWithTurns
        fields = ("id", "kind", "verified", "strategy", "reason", "evidence", "created_at", "first_turn")
        read_only_fields = fields

    @extend_schema_field(FirstTurnSerializer(allow_null=True))
    def get_first_turn(self, receipt: ContinuityReceipt) -> FirstTurnStatus | None:
        """Return the first turn of the agent that was brought up."""
        return first_turn_json(receipt.__dict__["first_turn"])


class PolicyChangeSerializer(StrictSerializer):
    """The restart settings of a session or a team. An empty policy or null means: inherit."""

    policy = choice_field(POLICIES, required=False, allow_blank=True)
    continue_prompts = serializers.BooleanField(required=False, allow_null=True)


class HeldPolicySerializer(serializers.Serializer[Any]):
    """The restart settings that apply to a session of the team without settings of its own."""

    policy = choice_field(POLICIES)
    policy_source = choice_field(PolicySource)
    continues = serializers.BooleanField()


class TeamPolicyAnswerSerializer(serializers.Serializer[Any]):
    """A team's restart settings."""

    team = serializers.IntegerField()
    policy = choice_field(POLICIES, allow_blank=True)
    continue_prompts = serializers.BooleanField(allow_null=True)
    effective = HeldPolicySerializer()
