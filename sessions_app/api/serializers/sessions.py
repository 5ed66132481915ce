"""Serializers of sessions, their status, and the actions on one or many of them."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from executors_app.models import AgentProfile, Executor
from sessions_app.api.serializers import common
from sessions_app.api.serializers.agents import GivenMcpServerSerializer
from sessions_app.api.serializers.common import (
    POLICIES,
    IdempotencyKeyField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
)
from sessions_app.api.serializers.conversation import NewAttachmentSerializer, ReceiptSerializer
from sessions_app.domain.recovery_facts import PolicySource
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.resumability import Reason, Strategy
from sessions_app.domain.situation_facts import IdleReason
from sessions_app.domain.states import DerivedStatus
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import TaskSession
from sessions_app.services.catalogue import profiles_for
from sessions_app.services.intents import BULK_ACTIONS, BULK_LIMIT, MODES, TEXT_LIMIT


class SessionSerializer(StrictModelSerializer):
    """A session; ``status/`` has more detail."""

    agent_type = serializers.CharField(source="agent_profile.agent_type", read_only=True)
    runtime = serializers.CharField(source="executor.runtime", read_only=True)
    executor_status = choice_field(common.EXECUTOR_STATUSES, read_only=True)
    restart_attempts = serializers.IntegerField(source="start_attempts", read_only=True)
    policy = choice_field(POLICIES, source="held_policy", read_only=True, help_text="The effective policy.")
    own_policy = choice_field(
        POLICIES,
        source="policy",
        read_only=True,
        allow_blank=True,
        help_text="The session's own policy; empty to inherit.",
    )

    class Meta:
        model = TaskSession
        fields = (
            "id",
            "task",
            "state",
            "agent_profile",
            "agent_type",
            "executor",
            "runtime",
            "agent_execution_id",
            "executor_status",
            "desired_state",
            "work_state",
            "policy",
            "own_policy",
            "continue_prompts",
            "worktree_id",
            "worktree_path",
            "worktree_branch",
            "error_code",
            "error_message",
            "last_seq",
            "epoch",
            "restart_attempts",
            "next_restart_at",
            "owner",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields


class TaskProfileField(serializers.PrimaryKeyRelatedField[AgentProfile]):
    """An agent profile that the task's sessions can use."""

    def get_queryset(self) -> Any:
        """Return the shared profiles and those of the task's team."""
        return profiles_for(self.context["task"]) if "task" in self.context else AgentProfile.objects.none()


class TaskSessionField(serializers.PrimaryKeyRelatedField[TaskSession]):
    """A session of the same task."""

    def get_queryset(self) -> Any:
        """Return the task's sessions."""
        rows = TaskSession.objects.select_related("shares_worktree_of")
        return rows.filter(task=self.context["task"]) if "task" in self.context else rows.none()


class NewSessionSerializer(serializers.Serializer[Any]):
    """The values of a new session; it starts in the background."""

    agent_profile = TaskProfileField(queryset=AgentProfile.objects.all(), pk_field=serializers.UUIDField())
    executor = serializers.PrimaryKeyRelatedField(queryset=Executor.objects.all(), pk_field=serializers.UUIDField())
    prompt = StrictCharField(required=False, allow_blank=True, trim_whitespace=False, max_length=TEXT_LIMIT)
    attachments = NewAttachmentSerializer(many=True, required=False, help_text="Files of the prompt.")
    policy = choice_field(POLICIES, required=False)
    desired_state = choice_field(common.DESIRED_STATES, required=False)
    worktree_of = TaskSessionField(
        queryset=TaskSession.objects.all(),
        pk_field=serializers.UUIDField(),
        required=False,
        help_text="A session of the same task whose worktree the new session takes over, including uncommitted work. "
        "Sessions that use the worktree are stopped.",
    )
    idempotency_key = IdempotencyKeyField()

    def validate_prompt(self, value: str) -> str:
        """Return the prompt; an empty one if it has only whitespace."""
        return value if value.strip() else ""


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


class ResumeRequestSerializer(serializers.Serializer[Any]):
    """How to resume a session."""

    mode = choice_field(MODES, default="auto")


class CloseRequestSerializer(serializers.Serializer[Any]):
    """How a session ends for good."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """``as`` is a keyword of Python, so it cannot be an attribute."""
        return {
            "as": choice_field(("completed", "cancelled")),
            "delete_transcript": serializers.BooleanField(
                default=False, help_text="Also have the running agent delete its own transcript, if it can."
            ),
        }


class WaitSerializer(serializers.Serializer[Any]):
    """What the newest run waits for; ``since_seq`` is the line of the log that recorded it."""

    id = serializers.CharField()
    kind = choice_field(WaitKind)
    reason = serializers.CharField(allow_blank=True)
    since_seq = serializers.IntegerField()
    deadline = serializers.DateTimeField(allow_null=True)


class InterruptedWaitSerializer(serializers.Serializer[Any]):
    """A wait that ended at ``at`` without an answer."""

    id = serializers.CharField()
    kind = choice_field(WaitKind)
    reason = serializers.CharField(allow_blank=True)
    deadline = serializers.DateTimeField(allow_null=True)
    at = serializers.DateTimeField()


class RetrySerializer(serializers.Serializer[Any]):
    """A turn that will be retried: the error, the number of the attempt, and its time (null: as soon as possible)."""

    message_id = serializers.CharField()
    attempt = serializers.IntegerField()
    of = serializers.IntegerField()
    at = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField()
    error_message = serializers.CharField(allow_blank=True)
    text = serializers.CharField(allow_blank=True)


class HistorySerializer(serializers.Serializer[Any]):
    """How much of the conversation the next prompt will send to a new agent; null if nothing."""

    estimated_tokens = serializers.IntegerField()
    entries_told = serializers.IntegerField()
    entries_cut = serializers.IntegerField()
    entries_shortened = serializers.IntegerField()
    secrets_redacted = serializers.IntegerField()


class StartWaitSerializer(serializers.Serializer[Any]):
    """Why a session that should run has not started yet, and how many sessions are ahead of it."""

    reason = choice_field(WaitReason)
    before = serializers.IntegerField()


class StillnessSerializer(serializers.Serializer[Any]):
    """Why nothing is happening and what to do; ``until`` is when the situation ends on its own (null: unknown)."""

    reason = choice_field(IdleReason)
    text = serializers.CharField()
    next_step = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True)


class SnapshotTransferSerializer(serializers.Serializer[Any]):
    """A workspace snapshot that has not reached the control plane yet."""

    commit = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    overdue = serializers.BooleanField(help_text="Whether it failed or takes longer than usual.")
    error_code = serializers.CharField(allow_blank=True)
    error_message = serializers.CharField(allow_blank=True, help_text="Why the last attempt failed; empty if none has.")


class StatusSerializer(serializers.Serializer[Any]):
    """The status of a session, as ``task.session.status`` sends it."""

    session_id = serializers.UUIDField()
    task_id = serializers.UUIDField()
    state = choice_field(common.SESSION_STATES)
    derived_status = choice_field(DerivedStatus)
    wait = WaitSerializer(allow_null=True)
    interrupted_wait = InterruptedWaitSerializer(
        allow_null=True,
        help_text="The wait that ended without an answer; null if there is none, or the session has continued since.",
    )
    agent_profile_id = serializers.UUIDField()
    agent_type = serializers.CharField()
    executor_id = serializers.UUIDField()
    runtime = serializers.CharField()
    executor_status = choice_field(common.EXECUTOR_STATUSES)
    agent_execution_id = serializers.UUIDField(allow_null=True)
    is_agent_running = serializers.BooleanField()
    is_resumable = serializers.BooleanField()
    needs_resume = serializers.BooleanField()
    resume_reason = choice_field(Reason)
    resume_strategy = choice_field(Strategy, allow_null=True)
    supports_session_resume = serializers.BooleanField()
    supports_workspace_only = serializers.BooleanField()
    requires_new_session = serializers.BooleanField(
        help_text="The opposite of `is_resumable`: continuing needs a new session or a decision by a user."
    )
    capability_note = serializers.CharField(
        allow_blank=True, help_text="The claims that the agent was observed not to fulfil, as text; empty if none."
    )
    mcp_servers = GivenMcpServerSerializer(
        many=True, help_text="The MCP servers that were chosen for the agent's last start."
    )
    desired_state = choice_field(common.DESIRED_STATES)
    work_state = choice_field(common.WORK_STATES)
    needs_attention = serializers.BooleanField()
    worktree_id = serializers.CharField(allow_blank=True)
    worktree_path = serializers.CharField(allow_blank=True)
    worktree_branch = serializers.CharField(allow_blank=True)
    last_seen_at = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField(allow_blank=True)
    error_message = serializers.CharField(allow_blank=True)
    last_seq = serializers.IntegerField()
    epoch = serializers.CharField()
    policy = choice_field(POLICIES, help_text="The effective policy.")
    policy_source = choice_field(PolicySource, help_text="Where the effective policy is set.")
    continues = serializers.BooleanField(help_text="Whether interrupted work is continued automatically.")
    recovering = serializers.BooleanField()
    continuing = serializers.BooleanField()
    restart_attempts = serializers.IntegerField()
    next_restart_at = serializers.DateTimeField(allow_null=True)
    stalled_since = serializers.DateTimeField(allow_null=True)
    cancel_ignored_since = serializers.DateTimeField(
        allow_null=True,
        help_text="Since when the agent has ignored a request to cancel its turn; null if it does not.",
    )
    retry = RetrySerializer(allow_null=True)
    history = HistorySerializer(allow_null=True)
    latest_receipt = ReceiptSerializer(allow_null=True)
    pending_permissions = serializers.IntegerField()
    pending_questions = serializers.IntegerField()
    held_prompts = serializers.IntegerField()
    queued_prompts = serializers.IntegerField()
    overdue_prompts = serializers.IntegerField()
    queued_for_capacity = serializers.BooleanField()
    starting = serializers.BooleanField()
    start_wait = StartWaitSerializer(
        allow_null=True, help_text="Why the session has not started yet; null if it is not waiting."
    )
    asleep = serializers.BooleanField(help_text="Stopped because it was idle; a prompt wakes it.")
    snapshot_transfer = SnapshotTransferSerializer(
        allow_null=True, help_text="Work that has not been transferred yet; null if there is none."
    )
    stillness = StillnessSerializer(
        allow_null=True, help_text="Why nothing is happening; null while something is, or once the session has ended."
    )


STATUS_FIELDS: Final = frozenset(StatusSerializer().fields)


class StatusAnswerSerializer(serializers.Serializer[Any]):
    """The session's status after a request was accepted."""

    status = StatusSerializer()


class CancelAnswerSerializer(StatusAnswerSerializer):
    """The session's status after a cancel request; ``cancelling`` is false if there was no turn to cancel."""

    cancelling = serializers.BooleanField()


class BulkRequestSerializer(serializers.Serializer[Any]):
    """An action, and the sessions to apply it to."""

    action = serializers.ChoiceField(choices=tuple(BULK_ACTIONS))
    sessions = serializers.ListField(child=serializers.UUIDField(), min_length=1, max_length=BULK_LIMIT)


class BulkOutcomeSerializer(serializers.Serializer[Any]):
    """The result for one session; ``code`` and ``message`` are empty if the request was accepted."""

    session_id = serializers.UUIDField()
    ok = serializers.BooleanField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)


class BulkAnswerSerializer(serializers.Serializer[Any]):
    """The results, in the order of the request."""

    results = BulkOutcomeSerializer(many=True)
