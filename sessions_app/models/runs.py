"""Requests to a session and their results.

Intents, prompts, permission requests and continuity receipts.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.encryption import EncryptedJSONField
from executors_app.orm import ListField, ObjectField
from executors_app.wire import questions
from executors_app.wire.protocol import WITHDRAWN
from sessions_app.accounts.team_scope import TeamModel, TeamQuerySet
from sessions_app.domain.states import PermissionState, PromptKind, PromptState, QuestionStatus, RequestKind
from sessions_app.domain.tool_calls import is_unknown_action, offered_options
from sessions_app.domain.verification import ReceiptKind, Verified
from sessions_app.models.session import TaskSession, choices
from sessions_app.models.turns import Turn


class IntentKind(models.TextChoices):
    """Kinds of intent. A prompt needs none: its row is the request."""

    START = "start"
    ANSWER = "answer"
    CANCEL = "cancel"
    STOP = "stop"
    CLOSE = "close"
    SETTING = "setting"


OVERTAKING_KINDS = (IntentKind.CLOSE, IntentKind.STOP, IntentKind.CANCEL, IntentKind.ANSWER, IntentKind.SETTING)
"""Kinds that overtake starts and prompts, in this order."""

IDLE_REASON = "idle"
"""Reason in a stop intent's payload and ``status_reason`` of the execution: stopped because it was idle."""

QUEUED_FOR_CAPACITY = "queued_for_capacity"
"""Key in a start intent's payload: the executor already runs as many agents as it may."""

AGENT_AWAITED_SINCE = "agent_awaited_since"
"""Key in a start intent's payload: when the agent was asked to start; ISO 8601."""


class Intent(TeamModel):
    """A stored request. A web request commits it; the lease holder carries it out once."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="intents")
    kind = models.CharField(max_length=10, choices=IntentKind.choices)
    payload = ObjectField(default=dict, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    claimed_generation = models.BigIntegerField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=64, blank=True, default="")
    seconds = models.FloatField(null=True, blank=True, editable=False)
    """Of a successful start: from the request until the agent ran; None until maintenance has stored it."""
    bucket = models.FloatField(null=True, blank=True, editable=False)
    """The bound in seconds of its bucket in ``kandev_resume_duration_seconds``; above the last one, ``seconds``."""

    class Meta(TeamModel.Meta):
        db_table = "session_intents"
        ordering = ("created_at", "id")
        indexes = (
            models.Index(fields=("session",), name="intent_open", condition=models.Q(done_at__isnull=True)),
            models.Index(
                fields=("bucket", "seconds", "by"), name="intent_bucket", condition=models.Q(bucket__isnull=False)
            ),
            models.Index(
                fields=("outcome",),
                name="intent_without_bucket",
                condition=models.Q(kind="start", done_at__isnull=False, bucket__isnull=True),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(kind="start", done_at__isnull=True),
                name="one_open_start_per_session",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {str(self.session_id)[:8]}"


class Prompt(TeamModel):
    """A prompt, delivered at most once. If delivery is in doubt it is held for a person, never sent again."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="prompts")
    message_id = models.CharField(max_length=128)
    text = models.TextField()
    attachments = ListField(default=list, blank=True)
    """Its files, each ``{name, media_type, size, sha256}``; their contents are rows of ``Attachment``."""
    kind = models.CharField(max_length=10, choices=choices(PromptKind), default=PromptKind.USER)
    state = models.CharField(max_length=12, choices=choices(PromptState), default=PromptState.QUEUED)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    execution_id = models.CharField(max_length=64, blank=True, default="")
    journal_epoch = models.CharField(max_length=64, blank=True, default="")
    resent_as = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="resend_of")
    continued_by = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="continuation_of")
    attempt = models.PositiveSmallIntegerField(default=0)
    """Number of this retry after a transient error of the provider; 0: not a retry."""
    not_before = models.DateTimeField(null=True, blank=True)
    """The earliest time to send it; None: as soon as the queue reaches it."""
    trouble = models.CharField(max_length=64, blank=True, default="")
    """For a retry: the code of the error that caused it."""
    trouble_message = models.TextField(blank=True, default="")
    """For a retry: the provider's own message."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "session_prompts"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("session", "message_id"), name="one_prompt_per_message_id"),)
        indexes = (
            models.Index(fields=("session", "state"), name="prompt_by_state"),
            models.Index(fields=("state", "session"), name="prompt_of_state"),
            models.Index(fields=("session",), name="prompt_continue", condition=models.Q(kind="continue")),
        )

    def __str__(self) -> str:
        return f"prompt {self.message_id} ({self.state})"


class PermissionRequest(TeamModel):
    """An agent's request for an answer: a permission or a question; open in agentctl until answered or cancelled."""

    team_path = "session__task__team"

    id = models.CharField(primary_key=True, max_length=64)
    """Created by agentctl and never reused, so that a repeated answer changes nothing."""
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="permissions")
    run = models.ForeignKey(Turn, models.CASCADE, null=True, blank=True, related_name="permissions")
    tool_call = ObjectField(default=dict)
    options = ListField(default=list)
    state = models.CharField(max_length=10, choices=choices(PermissionState), default=PermissionState.PENDING)
    option_id = models.CharField(max_length=128, blank=True, default="")
    """The chosen option; for a question, the action of ACP."""
    kind = models.CharField(max_length=10, choices=choices(RequestKind), default=RequestKind.PERMISSION)
    question = ObjectField(default=dict, blank=True)
    """The form or link of a question (``executors_app.wire.questions.schema``)."""
    sealed_answer = EncryptedJSONField(default=dict, blank=True)
    """The content of an answer on its way to the agent; emptied when the request is settled."""
    answer = ObjectField(default=dict, blank=True)
    """Choices and switches of the answer that the agent got. Nothing that was typed is kept."""
    reason = models.CharField(max_length=64, blank=True, default="")
    """Why it was settled without an answer."""
    requested_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)
    tool_key = models.CharField(max_length=200, blank=True, default="", editable=False)
    """`key_of_tool` of the tool call, by which its open requests are found without reading them."""
    size = models.PositiveBigIntegerField(default=0, editable=False)
    """``json_size`` of tool call, options and question."""

    class Meta(TeamModel.Meta):
        db_table = "session_permissions"
        ordering = ("requested_at", "id")
        indexes = (models.Index(fields=("session", "state"), name="permission_open"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.id[:8]} ({self.state})"

    @property
    def is_unknown_action(self) -> bool:
        """Whether it is a permission for an action that the agent does not describe in any way."""
        return self.kind == RequestKind.PERMISSION and is_unknown_action(self.tool_call)

    @property
    def offered_options(self) -> list[Mapping[str, Any]]:
        """The options that people may choose: nothing unknown is allowed from now on."""
        if self.kind == RequestKind.QUESTION:
            return list(self.options)
        return offered_options(self.tool_call, self.options)

    @property
    def question_status(self) -> QuestionStatus:
        """The state of a question."""
        if self.state == PermissionState.PENDING:
            return QuestionStatus.PENDING
        if self.state == PermissionState.RESOLVED:
            ends = {questions.ACCEPT: QuestionStatus.ANSWERED, questions.DECLINE: QuestionStatus.DECLINED}
            return ends.get(self.option_id, QuestionStatus.CANCELLED)
        return QuestionStatus.WITHDRAWN if self.reason == WITHDRAWN else QuestionStatus.CANCELLED


class ReceiptQuerySet(TeamQuerySet["ContinuityReceipt"]):
    """Queries for receipts."""

    def with_history(self) -> ReceiptQuerySet:
        """Add ``is_first``, whether the session had no receipt before, and ``said_before``, whether it had a turn."""
        same_session = models.Q(session=models.OuterRef("session"))
        receipts = ContinuityReceipt.objects.filter(same_session, created_at__lt=models.OuterRef("created_at"))
        turns = Turn.objects.filter(same_session, started_at__lt=models.OuterRef("created_at"))
        return self.annotate(is_first=~models.Exists(receipts), said_before=models.Exists(turns))


class ContinuityReceipt(TeamModel):
    """How one resume or take-over ended: the kind of continuity, and how it is proven."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="receipts")
    kind = models.CharField(max_length=16, choices=choices(ReceiptKind))
    verified = models.CharField(max_length=16, choices=choices(Verified), default=Verified.NONE)
    strategy = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=64, blank=True, default="")
    evidence = ObjectField(default=dict)
    launch_id = models.CharField(max_length=64, null=True, blank=True, unique=True)
    """The launch that it reports on; a launch has at most one receipt."""
    after_seq = models.BigIntegerField(default=0, editable=False)
    """The last event of the log before this receipt. It gives receipts their order, because a clock may be set back."""
    created_at = models.DateTimeField(auto_now_add=True)
    agent_type = models.CharField(max_length=64, blank=True, default="", editable=False)
    """The type of the session's agent; empty until maintenance has stored it."""

    objects = ReceiptQuerySet.as_manager()  # type: ignore[misc]

    class Meta(TeamModel.Meta):
        db_table = "continuity_receipts"
        ordering = ("-after_seq", "-created_at", "id")
        indexes = (models.Index(fields=("agent_type", "kind"), name="receipt_by_agent_type"),)

    def __str__(self) -> str:
        return f"{self.kind} ({self.verified})"
