"""The requests of agents that somebody must answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.encryption import EncryptedJSONField
from executors_app.orm import ListField, ObjectField
from executors_app.wire import questions
from executors_app.wire.protocol import WITHDRAWN
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import PermissionState, QuestionStatus, RequestKind
from sessions_app.stream.rules.tool_calls import is_unknown_action, offered_options
from sessions_app.turns.models import Turn
from sessions_app.waits.models import WaitKey, begin_wait, mint_wait_key
from sessions_app.waits.rules.wait_keys import WaitKind

if TYPE_CHECKING:
    from sessions_app.kernel.transactions import SessionTransaction


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
        indexes = (
            models.Index(fields=("session", "state"), name="permission_open"),
            models.Index(
                fields=("requested_at",), name="permission_unsettled", condition=models.Q(settled_at__isnull=True)
            ),
        )

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
        if self.reason == WITHDRAWN:
            return QuestionStatus.WITHDRAWN
        return QuestionStatus.CANCELLED


def begin_permission_wait(transaction: SessionTransaction, permission_id: str, run: Turn | None, asks: str) -> WaitKey:
    """Begin the wait for what an agent ``asks``, with this deployment's deadline; return its key."""
    deadline = None
    if settings.KANDEV_PERMISSION_TIMEOUT:
        deadline = timezone.now() + timedelta(seconds=settings.KANDEV_PERMISSION_TIMEOUT)
    if run is None:
        return mint_wait_key(transaction, None, WaitKind.PERMISSION, permission_id, expires_at=deadline)
    return begin_wait(transaction, WaitKind.PERMISSION, permission_id, deadline=deadline, asks=str(asks))
