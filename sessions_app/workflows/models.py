"""Workflows of teams, their runs, and the node runs of each run."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from executors_app.orm import ObjectField
from sessions_app.accounts.team_scope import TeamModel

RUN_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
NODE_STATES = ("running", "succeeded", "failed", "retried", "skipped", "cancelled")
TRIGGERS = ("manual", "cron", "idle", "api", "command")


class Workflow(TeamModel):
    """A workflow of a team. ``text`` is YAML or JSON as its author wrote it, and may still have errors."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="workflows")
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    text = models.TextField()
    files = ObjectField(default=dict, blank=True)
    """Other files that it names, such as components: text by path relative to the project."""
    revision = models.PositiveIntegerField(default=1)
    """Rises with each change of the text. A save names the revision that it is based on."""
    is_valid = models.BooleanField(default=False)
    repository = models.ForeignKey(
        "sessions_app.Repository", models.PROTECT, null=True, blank=True, related_name="workflows"
    )
    """Where runs work unless they name another repository. None: an empty directory."""
    agent_profile = models.ForeignKey(
        "executors_app.AgentProfile", models.PROTECT, null=True, blank=True, related_name="+"
    )
    """The agent for nodes without a runner."""
    executor = models.ForeignKey("executors_app.Executor", models.PROTECT, null=True, blank=True, related_name="+")
    triggers_enabled = models.BooleanField(default=False)
    """Whether its cron and idle triggers start runs."""
    triggers_enabled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    """The user who enabled the triggers or confirmed the last change. Scheduled runs have this user's rights."""
    triggers_confirmed_at = models.DateTimeField(null=True, blank=True)
    triggers_paused = models.TextField(blank=True, default="")
    """Why the triggers are paused until a change is confirmed; empty if they are not."""
    confirmed = ObjectField(default=dict, blank=True, editable=False)
    """The state that was confirmed last, as ``services.trigger_confirmation.serialize_parts`` returns it."""
    next_run_at = models.DateTimeField(null=True, blank=True)
    """When its cron trigger is due next."""
    trigger_error = models.TextField(blank=True, default="")
    """What prevented the last trigger from starting it; empty if nothing did."""
    missed_count = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    """How many scheduled runs did not start at their time, the last time that this happened; 0: never."""
    missed_from = models.DateTimeField(null=True, blank=True, editable=False)
    missed_until = models.DateTimeField(null=True, blank=True, editable=False)
    missed_run = models.ForeignKey(
        "WorkflowRun", models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False, editable=False
    )
    """The run that made up for them; None: there is none, or it was deleted."""
    missed_outcome = models.CharField(max_length=16, blank=True, default="", db_default="", editable=False)
    """What became of them, one of ``MissedOutcome``; empty: not recorded."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "workflows"
        ordering = ("name", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("team", "name"),
                condition=models.Q(archived_at__isnull=True),
                name="one_workflow_per_team_and_name",
            ),
        )

    def __str__(self) -> str:
        return self.name


class WorkflowRun(TeamModel):
    """One run of a workflow, with the text as it was at the start. The driver advances its state."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="workflow_runs")
    workflow = models.ForeignKey(Workflow, models.SET_NULL, null=True, blank=True, related_name="runs")
    """None for the run of a file (``manage.py run_workflow``), or if the workflow was deleted."""
    name = models.CharField(max_length=200)
    text = models.TextField()
    files = ObjectField(default=dict, blank=True)
    state = models.CharField(max_length=10, choices=[(s, s) for s in RUN_STATES], default="queued")
    error = models.TextField(blank=True, default="")
    inputs = ObjectField(default=dict, blank=True)
    """The values for triggers (timestamp, type, text, params), and other inputs by name."""
    outputs = ObjectField(default=dict, blank=True)
    trigger = models.CharField(max_length=10, choices=[(s, s) for s in TRIGGERS], default="manual")
    task = models.ForeignKey("sessions_app.Task", models.PROTECT, related_name="workflow_runs")
    """Every session of the run belongs to it."""
    workspace = models.ForeignKey(
        "sessions_app.TaskSession", models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    """The session without an agent whose worktree all nodes share. None: not created yet, or not needed."""
    agent_profile = models.ForeignKey(
        "executors_app.AgentProfile", models.PROTECT, null=True, blank=True, related_name="+"
    )
    executor = models.ForeignKey("executors_app.Executor", models.PROTECT, related_name="+")
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    revision = models.PositiveIntegerField(default=0)
    """The revision of the workflow at the start."""
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    owner = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Boot id of the supervisor that drives it: only the holder of the lease may write."""
    lease_expires_at = models.DateTimeField(null=True, blank=True, editable=False)
    generation = models.BigIntegerField(default=0, editable=False)
    round = models.PositiveIntegerField(default=0, editable=False)
    """How often it was resumed. Prompt and job ids depend on it, so that a repeated node gets new ones."""
    version = models.BigIntegerField(default=0, editable=False)
    """Rises with each commit of the run, so that a page knows whether anything is new."""
    idempotency_key = models.CharField(max_length=128, blank=True, default="", editable=False)
    asked = models.CharField(max_length=64, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    note = ""
    """A note for the user who starts it. Not a column, so it is empty when the row is read again."""

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "workflow_runs"
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(
                fields=("state", "created_at"),
                name="workflow_run_open",
                condition=models.Q(state__in=("queued", "running")),
            ),
            models.Index(fields=("workflow", "-created_at"), name="workflow_run_history"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("team", "idempotency_key"),
                condition=~models.Q(idempotency_key=""),
                name="one_workflow_run_per_idempotency_key",
            ),
        )

    def __str__(self) -> str:
        return f"run {str(self.id)[:8]} of {self.name}"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state not in ("queued", "running")


class NodeRun(TeamModel):
    """One run of a node, or one iteration of a loop. ``engine.records`` describes the fields."""

    team_path = "run__team"

    run = models.ForeignKey(WorkflowRun, models.CASCADE, related_name="node_runs")
    position = models.PositiveIntegerField()
    """Position in the order in which node runs began, from 0."""
    path = models.CharField(max_length=1024)
    node = models.CharField(max_length=200)
    kind = models.CharField(max_length=40)
    state = models.CharField(max_length=10, choices=[(s, s) for s in NODE_STATES], default="running")
    inputs = ObjectField(default=dict, blank=True)
    outputs = ObjectField(default=dict, blank=True)
    request = ObjectField(default=dict, blank=True)
    error = models.TextField(blank=True, default="")
    iteration = models.PositiveIntegerField(default=0)
    flawed = models.BooleanField(default=False)
    attempt = models.PositiveIntegerField(default=1)
    """How often its work was requested. Requesting an invalid answer again counts, too."""
    waiting_for = models.CharField(max_length=20, blank=True, default="")
    """``user`` (a held prompt, a permission request), ``agent`` or ``machine`` (it cannot start yet), or empty."""
    session = models.ForeignKey(
        "sessions_app.TaskSession", models.SET_NULL, null=True, blank=True, related_name="node_runs"
    )
    message_id = models.CharField(max_length=64, blank=True, default="")
    """The prompt of an agent node. Prompts that continue it or send it again are followed from it."""
    job_id = models.CharField(max_length=64, blank=True, default="")
    """The job of a shell node at agentctl."""
    output_tail = models.TextField(blank=True, default="")
    """The latest output of a running shell, for pages."""
    deadline_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "workflow_node_runs"
        verbose_name, verbose_name_plural = "step of a run", "steps of runs"
        ordering = ("run", "position")
        constraints = (models.UniqueConstraint(fields=("run", "path"), name="one_node_run_per_path"),)

    def __str__(self) -> str:
        return self.path
