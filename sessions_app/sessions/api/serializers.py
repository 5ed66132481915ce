"""Serializers of sessions, their status, and the actions on one or many of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from rest_framework import serializers

from executors_app.models import AgentProfile, Executor
from sessions_app.agents.api.serializers import GivenMcpServerSerializer
from sessions_app.agents.services.profiles import profiles_for
from sessions_app.api.serializers import common
from sessions_app.api.serializers.common import (
    POLICIES,
    IdempotencyKeyField,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    choice_field,
)
from sessions_app.background.api.serializers import BackgroundProcessSerializer, BackgroundSerializer
from sessions_app.catalogue.services.offers import default_executor, executor_of_pool
from sessions_app.kernel.rules.states import DerivedStatus
from sessions_app.models import TaskSession
from sessions_app.prompts.api import NewAttachmentSerializer
from sessions_app.prompts.rules.attachments import MAX_FILES
from sessions_app.prompts.services import TEXT_LIMIT
from sessions_app.recovery.api.serializers import ReceiptSerializer
from sessions_app.recovery.rules.recovery_choices import Choice
from sessions_app.recovery.rules.resumability import Mode, PolicySource, Reason, Strategy
from sessions_app.sessions.rules.session_status import SessionStatus
from sessions_app.sessions.rules.situation_facts import IdleReason
from sessions_app.sessions.services.intents import BULK_ACTIONS, BULK_LIMIT, MODES
from sessions_app.starts.rules.restart_rules import WaitReason
from sessions_app.suspensions.api.serializers import CutOffTurnSerializer, OwnWaitSerializer, SuspensionSerializer
from sessions_app.usage.api.serializers import BudgetHoldSerializer
from sessions_app.waits.rules.wait_keys import WaitKind


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
            "executor_pool",
            "placement_reason",
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
        if "task" in self.context:
            return profiles_for(self.context["task"])
        return AgentProfile.objects.none()


class TaskSessionField(serializers.PrimaryKeyRelatedField[TaskSession]):
    """A session of the same task."""

    def get_queryset(self) -> Any:
        """Return the task's sessions."""
        rows = TaskSession.objects.select_related("shares_worktree_of")
        if "task" in self.context:
            return rows.filter(task=self.context["task"])
        return rows.none()


class NewSessionSerializer(serializers.Serializer[Any]):
    """The values of a new session; it starts in the background."""

    agent_profile = TaskProfileField(queryset=AgentProfile.objects.all(), pk_field=serializers.UUIDField())
    executor = serializers.PrimaryKeyRelatedField(
        queryset=Executor.objects.all(),
        pk_field=serializers.UUIDField(),
        required=False,
        help_text="Where it runs, for good. Without it: any executor of `pool`, or else of the pool of the default "
        "executor, or else the default executor.",
    )
    pool = StrictCharField(required=False, max_length=100, help_text="The pool that chooses the executor.")
    prompt = StrictCharField(
        required=False,
        allow_blank=True,
        trim_whitespace=False,
        max_length=TEXT_LIMIT,
        help_text="The first prompt. Without it, the task's first session gets the task's description; an empty text "
        "means no prompt.",
    )
    attachments = SizedListField(
        child=NewAttachmentSerializer(), required=False, max_length=MAX_FILES, help_text="Files of the prompt."
    )
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
        if value.strip():
            return value
        return ""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the values with the executor, and its pool if that chooses another one. Raises ValidationError."""
        pool = attrs.pop("pool", None)
        if "executor" in attrs and pool is not None:
            raise serializers.ValidationError({"pool": "Name an executor or a pool, not both."})
        if "executor" not in attrs:
            executor = self._find_executor(pool)
            attrs |= {"executor": executor, "executor_pool": executor.pool}
        return attrs

    def _find_executor(self, pool: str | None) -> Executor:
        """Return an executor of the pool, or the default one."""
        if pool is None:
            found, problem = default_executor(), {"executor": "There is no executor yet. Ask staff to add one."}
        else:
            found, problem = executor_of_pool(pool), {"pool": "There is no such pool, or its executors are disabled."}
        if found is None:
            raise serializers.ValidationError(problem)
        return found


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
    """How much of the conversation the next prompt will send to a new agent; null if nothing.

    A number is null until the supervisor has searched the conversation for secrets.
    """

    estimated_tokens = serializers.IntegerField(
        allow_null=True, help_text="An estimate, at 4 bytes for a token: models count differently."
    )
    entries_told = serializers.IntegerField(allow_null=True)
    entries_cut = serializers.IntegerField(allow_null=True)
    entries_shortened = serializers.IntegerField(allow_null=True)
    secrets_redacted = serializers.IntegerField(allow_null=True)


class ResumeCostSerializer(serializers.Serializer[Any]):
    """What is known of the cost of the next resume; null is unknown, and nothing is computed from a price list."""

    resume_strategy = choice_field(
        Strategy,
        help_text="`native`: the agent loads its conversation, and the model reads all of it again, from the "
        "provider's cache or not; `history`: the next prompt tells a new conversation the old one; `fresh`: nothing "
        "of the old conversation is read.",
    )
    context_tokens = serializers.IntegerField(
        allow_null=True, help_text="The size of the conversation when the agent last reported it; only for `native`."
    )
    context_size = serializers.IntegerField(allow_null=True, help_text="The size of the model's context window.")
    context_reported_at = serializers.DateTimeField(
        allow_null=True, help_text="The end of the turn in which it was reported."
    )
    history_characters = serializers.IntegerField(allow_null=True, help_text="The length of the history.")
    history_estimated_tokens = serializers.IntegerField(
        allow_null=True, help_text="An estimate, at 4 bytes for a token: models count differently."
    )
    last_turn_ended_at = serializers.DateTimeField(
        allow_null=True, help_text="After a pause, a provider may no longer have the conversation in its cache."
    )
    text = serializers.CharField(help_text="The same in a sentence.")


class StartWaitSerializer(serializers.Serializer[Any]):
    """Why a session that should run has not started yet, and how many sessions are ahead of it."""

    reason = choice_field(WaitReason)
    before = serializers.IntegerField()
    host = serializers.CharField(help_text="The host that takes no new sessions, if `reason` is `host`; else empty.")
    text = serializers.CharField(
        help_text="What a start with the reason `placement` or `launch` waits for; else empty."
    )


class StillnessSerializer(serializers.Serializer[Any]):
    """Why nothing is happening and what to do; ``until`` is when the situation ends on its own (null: unknown)."""

    reason = choice_field(IdleReason)
    text = serializers.CharField()
    next_step = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True)


class RecoveryChoiceSerializer(serializers.Serializer[Any]):
    """A way to continue, in the words of its button."""

    choice = choice_field(Choice)
    text = serializers.CharField()
    mode = choice_field(
        Mode,
        allow_null=True,
        help_text="For `POST .../resume/`; null: a new session, which may name this one as its `worktree_of`.",
    )


class SnapshotTransferSerializer(serializers.Serializer[Any]):
    """A workspace snapshot that has not reached the control plane yet."""

    commit = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    overdue = serializers.BooleanField(help_text="Whether it failed or takes longer than usual.")
    error_code = serializers.CharField(allow_blank=True)
    error_message = serializers.CharField(allow_blank=True, help_text="Why the last attempt failed; empty if none has.")


class LeftOutSerializer(serializers.Serializer[Any]):
    """A file or directory that a snapshot does not contain."""

    path = serializers.CharField()
    reason = serializers.CharField()


class WorkspaceSerializer(serializers.Serializer[Any]):
    """HEAD of the workspace at the newest snapshot, and what that snapshot lacks."""

    branch = serializers.CharField(allow_blank=True, help_text="The checked-out branch; empty for a detached HEAD.")
    head = serializers.CharField(allow_blank=True, help_text="The commit; empty for a branch without commits.")
    left_out = LeftOutSerializer(many=True, help_text="At most 20 of the paths that the snapshot does not contain.")
    left_out_count = serializers.IntegerField()
    ignored_count = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="Files and directories that .gitignore names, which no snapshot contains.",
    )
    at = serializers.DateTimeField()


class WarningSerializer(serializers.Serializer[Any]):
    """A warning about the agent's process or the workspace."""

    text = serializers.CharField()
    level = serializers.CharField(help_text="`warning` or `error`.")
    at = serializers.DateTimeField(help_text="When it was last reported.")
    count = serializers.IntegerField(help_text="How often it was reported.")


class StatusSerializer(serializers.Serializer[Any]):
    """The status of a session, as ``task.session.status`` sends it."""

    # The fields are those of SessionStatus. Here are those that need more than their type and a description.

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
    executor_id = serializers.UUIDField()
    executor_status = choice_field(common.EXECUTOR_STATUSES)
    agent_execution_id = serializers.UUIDField(allow_null=True)
    background_processes = BackgroundProcessSerializer(
        many=True,
        help_text="The processes that turns have left running, the oldest first, at most 20. They keep the session "
        "awake unless its policy is `end`, and end when the agent is stopped.",
    )
    background = BackgroundSerializer()
    resume_reason = choice_field(Reason)
    resume_strategy = choice_field(Strategy, allow_null=True)
    capability_note = serializers.CharField(
        allow_blank=True, help_text="The claims that the agent was observed not to fulfil, as text; empty if none."
    )
    mcp_servers = GivenMcpServerSerializer(
        many=True, help_text="The MCP servers that were chosen for the agent's last start."
    )
    desired_state = choice_field(common.DESIRED_STATES)
    work_state = choice_field(common.WORK_STATES)
    worktree_branch = serializers.CharField(
        allow_blank=True, help_text="The session's own branch; `workspace.branch` is the one that is checked out."
    )
    workspace = WorkspaceSerializer(allow_null=True, help_text="Null before the first snapshot.")
    warnings = WarningSerializer(many=True, help_text="The newest warnings first, at most 20.")
    last_seen_at = serializers.DateTimeField(allow_null=True)
    policy = choice_field(POLICIES, help_text="The effective policy.")
    policy_source = choice_field(PolicySource, help_text="Where the effective policy is set.")
    next_restart_at = serializers.DateTimeField(allow_null=True)
    stalled_since = serializers.DateTimeField(allow_null=True)
    output_limit = serializers.CharField(
        allow_blank=True, help_text="`turn` or `session`: this limit was reached, and more output is left out."
    )
    cancel_ignored_since = serializers.DateTimeField(
        allow_null=True,
        help_text="Since when the agent has ignored a request to cancel its turn; null if it does not.",
    )
    own_wait = OwnWaitSerializer(
        allow_null=True, help_text="The agent says in its open turn that it waits by itself; null if it does not."
    )
    suspension = SuspensionSerializer(
        allow_null=True, help_text="Its usage limit is reached or its provider is down; null if neither."
    )
    cut_off_turn = CutOffTurnSerializer(
        allow_null=True,
        help_text="The newest turn, if a usage limit has ended it that is over, and nothing continues it; else null.",
    )
    budget_hold = BudgetHoldSerializer(
        allow_null=True, help_text="A budget that holds the next prompt back; null if none does."
    )
    retry = RetrySerializer(allow_null=True)
    history = HistorySerializer(allow_null=True)
    resume_cost = ResumeCostSerializer(
        allow_null=True, help_text="What the next resume costs; null if there is none to come."
    )
    latest_receipt = ReceiptSerializer(allow_null=True)
    start_wait = StartWaitSerializer(
        allow_null=True, help_text="Why the session has not started yet; null if it is not waiting."
    )
    snapshot_transfer = SnapshotTransferSerializer(
        allow_null=True, help_text="Work that has not been transferred yet; null if there is none."
    )
    stillness = StillnessSerializer(
        allow_null=True, help_text="Why nothing is happening; null while something is, or once the session has ended."
    )
    choices = RecoveryChoiceSerializer(
        many=True, help_text="The ways to continue that the session's page offers; empty if it needs none."
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return a field for each one of the record: the one above, or one of its type."""
        declared, types = super().get_fields(), get_type_hints(SessionStatus, include_extras=True)
        return {name: declared[name] if name in declared else plain_field(types[name]) for name in types}


_PLAIN_FIELDS: Final[Mapping[Any, type[serializers.Field[Any, Any, Any, Any]]]] = {
    bool: serializers.BooleanField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    str: serializers.CharField,
}


def plain_field(annotation: Any) -> serializers.Field[Any, Any, Any, Any]:
    """Return the field of a type that may be null, such as ``Annotated[int | None, "its description"]``.

    Raises TypeError for a type that needs a field of its own.
    """
    options: dict[str, Any] = {}
    if get_origin(annotation) is Annotated:
        annotation, options["help_text"] = get_args(annotation)
    kinds = set(get_args(annotation)) if isinstance(annotation, UnionType) else {annotation}
    if type(None) in kinds:
        options["allow_null"] = True
    (kind, *others) = kinds - {type(None)}
    if others or kind not in _PLAIN_FIELDS:
        raise TypeError(f"StatusSerializer needs a field for {annotation}.")
    return _PLAIN_FIELDS[kind](**options)


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
    sessions = SizedListField(child=serializers.UUIDField(), min_length=1, max_length=BULK_LIMIT)


class BulkOutcomeSerializer(serializers.Serializer[Any]):
    """The result for one session; ``code`` and ``message`` are empty if the request was accepted."""

    session_id = serializers.UUIDField()
    ok = serializers.BooleanField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)


class BulkAnswerSerializer(serializers.Serializer[Any]):
    """The results, in the order of the request."""

    results = BulkOutcomeSerializer(many=True)
