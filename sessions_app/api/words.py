"""The words that fields choose from, under the names that they have in the schema."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from rest_framework import serializers

from executors_app.domain import ExecutorStatus
from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.recovery_facts import Policy
from sessions_app.domain.states import DesiredState, PromptState, RunState, SessionState, TaskState, WorkState
from sessions_app.domain.tokens import WaitKind
from sessions_app.models import ApiToken


def words(kind: type[StrEnum]) -> list[str]:
    """The words themselves."""
    return [word.value for word in kind]


ATTENTION_KINDS = words(AttentionKind)
DESIRED_STATES = words(DesiredState)
EXECUTOR_STATUSES = words(ExecutorStatus)
POLICIES = words(Policy)
PROMPT_STATES = words(PromptState)
RUN_STATES = words(RunState)
SESSION_STATES = words(SessionState)
TASK_STATES = words(TaskState)
TOKEN_SCOPES = list(ApiToken.Scope.values)
WAIT_KINDS = words(WaitKind)
WORK_STATES = words(WorkState)


def one_of(choices: Iterable[str], **kwargs: Any) -> serializers.ChoiceField:
    """A field that takes one of these words."""
    return serializers.ChoiceField(choices=[str(choice) for choice in choices], **kwargs)
