"""Tasks and their sessions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.orm import ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.catalogue.models import Repository
from sessions_app.kernel.rules.states import DesiredState, SessionState, TaskEnd, TaskState, WorkState
from sessions_app.recovery.rules.resumability import Policy


def choices(values: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the choices of a field; nothing shows the labels."""
    return [(value.value, value.value) for value in values]


_ENDS: Final[Mapping[str, TaskEnd]] = {TaskState.DONE: "done", TaskState.CANCELLED: "cancelled"}


class Task(TeamModel):
    """A piece of work. Its state follows from its sessions; only users set DONE and CANCELLED."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    title = models.CharField(max_length=300)
    description = models.TextField(blank=True, default="")
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="tasks")
    repository = models.ForeignKey(Repository, models.PROTECT, null=True, blank=True, related_name="tasks")
    base_branch = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=20, choices=choices(TaskState), default=TaskState.TODO)
    idempotency_key = models.CharField(max_length=128, blank=True, default="", editable=False)
    """Idempotency key of the request that created it, unique in its team; empty: none was sent."""
    asked = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Digest of that request, so that another request with the same key is refused."""
    entered_at = models.DateTimeField(null=True, blank=True, default=timezone.now, editable=False)
    """When it came into ``entered_state``; None: not known."""
    entered_state = models.CharField(
        max_length=20, blank=True, default=TaskState.TODO, db_default="", choices=choices(TaskState), editable=False
    )
    """The state that ``entered_at`` is about: a release that knows neither column changes the state alone."""
    archived_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "tasks"
        ordering = ("-created_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("team", "idempotency_key"),
                condition=~models.Q(idempotency_key=""),
                name="one_task_per_idempotency_key",
            ),
        )
        indexes = (
            models.Index(
                fields=("state", "-created_at", "id", "team"),
                name="task_board",
                condition=models.Q(archived_at__isnull=True),
            ),
            models.Index(fields=("-created_at", "id", "team"), name="task_newest"),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def in_state_since(self) -> datetime | None:
        """Since when it is in its state; None if that is not known."""
        if self.entered_state == self.state:
            return self.entered_at
        return None

    @property
    def is_over(self) -> bool:
        """Whether the task is archived, done or cancelled; none of its sessions is started again."""
        return bool(self.end)

    @property
    def end(self) -> TaskEnd:
        """How the task ended; empty while work on it can continue. An archived task may also be done or cancelled."""
        if self.archived_at is not None:
            return "archived"
        return _ENDS.get(self.state, "")


def entering(state: str) -> dict[str, Any]:
    """Return the values of the columns of a task that comes into another state now."""
    now = timezone.now()
    return {"state": state, "entered_state": state, "entered_at": now, "updated_at": now}


INTERRUPTED_WAIT = "interrupted_wait"
"""In ``metadata``: a wait that ended without an answer, ``{run_id, id, kind, reason, since, deadline, at}``."""
CANCEL_IGNORED = "cancel_ignored"
"""In ``metadata``: ``{run_id, since}`` of a turn that the agent continues although it was cancelled."""


def new_epoch() -> str:
    """Return a new identity for a session's log; it changes only when a database is restored."""
    return uuid.uuid4().hex


class TaskSession(TeamModel):
    """One agent's session on a task. Its states change only through ``kernel.transactions.SessionTransaction``."""

    team_path = "task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    task = models.ForeignKey(Task, models.CASCADE, related_name="sessions")
    state = models.CharField(max_length=20, choices=choices(SessionState), default=SessionState.CREATED)
    agent_profile = models.ForeignKey("executors_app.AgentProfile", models.PROTECT, related_name="+")
    model = models.CharField(max_length=200, blank=True, default="", editable=False)
    """The agent's model, as a workflow node names it; empty: the profile's."""
    executor = models.ForeignKey("executors_app.Executor", models.PROTECT, related_name="+")
    executor_pool = models.CharField(max_length=100, blank=True, default="", db_default="", editable=False)
    """The pool that chooses its executor when it first starts; empty: somebody has chosen the executor."""
    placement_reason = models.TextField(blank=True, default="", db_default="", editable=False)
    """Why its pool has chosen the executor, as a sentence; empty: it has not, or not yet."""
    agent_execution_id = models.UUIDField(null=True, blank=True)
    metadata = ObjectField(default=dict, blank=True)
    has_agent = models.BooleanField(default=True, editable=False)
    """False: a workspace without an agent, such as that of a workflow run."""
    shares_worktree_of = models.ForeignKey(
        "self", models.RESTRICT, null=True, blank=True, related_name="sharing", editable=False
    )
    """The session whose worktree this one uses, of the same task and executor; None: it has its own."""
    worktree_id = models.CharField(max_length=64, blank=True, default="")
    """Id of the session that owns the worktree; set at the first launch."""
    worktree_path = models.CharField(max_length=4096, blank=True, default="")
    worktree_branch = models.CharField(max_length=255, blank=True, default="")
    desired_state = models.CharField(max_length=10, choices=choices(DesiredState), default=DesiredState.RUNNING)
    work_state = models.CharField(max_length=10, choices=choices(WorkState), default=WorkState.IDLE)
    policy = models.CharField(max_length=10, choices=choices(Policy), blank=True, default="")
    """Empty: the team's policy, else the deployment's (``recovery.services.policies``)."""
    continue_prompts = models.BooleanField(null=True, blank=True)
    """None: the team's setting, else KANDEV_CONTINUE, else on if the policy is auto."""
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    last_seq = models.BigIntegerField(default=0)
    epoch = models.CharField(max_length=32, default=new_epoch, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    stopped_by_user = models.BooleanField(default=False)
    told_status = models.CharField(max_length=20, default="idle", editable=False)
    """The derived status last recorded in the log, so that each change is recorded once."""
    start_attempts = models.PositiveIntegerField(default=0)
    next_restart_at = models.DateTimeField(null=True, blank=True)
    start_rank = models.BigIntegerField(null=True, blank=True, editable=False)
    """Its position in the queue of automatic starts (``starts.rules.restart_rules``); None: it does not wait."""
    ready_since = models.DateTimeField(null=True, blank=True)
    died_at = models.DateTimeField(null=True, blank=True)
    """When its agent died that Kandev is to start again by itself, until an agent runs or a person takes over."""
    stalled_since = models.DateTimeField(null=True, blank=True)
    """Since when the open turn is silent, if for longer than ``KANDEV_STALL_NOTICE``; else None."""
    launch_id = models.CharField(max_length=64, blank=True, default="")
    """The start intent of the agent that should be running; empty: none should be."""
    context_mismatch = models.BooleanField(default=False)
    idempotency_key = models.CharField(max_length=128, blank=True, default="", editable=False)
    """Idempotency key of the request that created it, unique in its task; empty: none was sent."""
    asked = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Digest of that request, so that another request with the same key is refused."""
    inject_history = models.BooleanField(default=False)
    """The next prompt carries the conversation so far, which makes the receipt ``injected``."""
    usage = ObjectField(default=dict, blank=True, editable=False)
    """The agent's last report of tokens and costs (``stream.rules.usage``)."""
    branch_additions = models.PositiveIntegerField(null=True, blank=True, editable=False)
    """Lines that its branch had added to its base at ``branch_counted_at``; None: not known."""
    branch_deletions = models.PositiveIntegerField(null=True, blank=True, editable=False)
    branch_counted_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "task_sessions"
        verbose_name, verbose_name_plural = "session", "sessions"
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("desired_state", "state"), name="session_wanted"),
            models.Index(fields=("state", "error_code"), name="session_by_state"),
            models.Index(fields=("owner", "-created_at"), name="session_newest_of_owner"),
            models.Index(
                fields=("start_rank", "task"), name="session_start_rank", condition=models.Q(start_rank__isnull=False)
            ),
            models.Index(
                fields=("next_restart_at",),
                name="session_next_restart",
                condition=models.Q(next_restart_at__isnull=False),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("task", "idempotency_key"),
                condition=~models.Q(idempotency_key=""),
                name="one_session_per_idempotency_key",
            ),
        )

    def __str__(self) -> str:
        return f"session {str(self.id)[:8]}"

    @property
    def worktree_owner_id(self) -> uuid.UUID:
        """The session whose id determines worktree, branch and recovery ref."""
        return self.shares_worktree_of_id or self.id


def session_key(session_id: uuid.UUID | str) -> uuid.UUID:
    """Return a session's id as a UUID; raises ValueError for text that is none."""
    if isinstance(session_id, uuid.UUID):
        return session_id
    return uuid.UUID(session_id)
