"""Loop workflows: the file that a team keeps, a run of it, and each time that a node ran (seed 003, design 11)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from executors_app.json_fields import ObjectField
from sessions_app.accounts.team_scope import TeamModel

RUN_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
NODE_STATES = ("running", "succeeded", "failed", "retried", "skipped", "cancelled")
TRIGGERS = ("manual", "cron", "idle", "api", "command")


class Workflow(TeamModel):
    """A workflow that a team keeps. ``text`` is YAML or JSON as somebody wrote it, valid or not yet."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="workflows")
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    text = models.TextField()
    files = ObjectField(default=dict, blank=True)
    """Other files that it names, as components and prompts: text by path relative to the project."""
    revision = models.PositiveIntegerField(default=1)
    """Grows with each change of the text; who saves names the one that they read."""
    is_valid = models.BooleanField(default=False)
    repository = models.ForeignKey(
        "sessions_app.Repository", models.PROTECT, null=True, blank=True, related_name="workflows"
    )
    """Where runs work unless they name another; None: in an empty directory."""
    agent_profile = models.ForeignKey(
        "executors_app.AgentProfile", models.PROTECT, null=True, blank=True, related_name="+"
    )
    """The agent of nodes without a runner."""
    executor = models.ForeignKey("executors_app.Executor", models.PROTECT, null=True, blank=True, related_name="+")
    triggers_enabled = models.BooleanField(default=False)
    """Whether its cron and idle triggers start runs."""
    triggers_enabled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    """Who enabled its triggers, or confirmed a change last: scheduled runs use this person's rights."""
    triggers_confirmed_at = models.DateTimeField(null=True, blank=True)
    triggers_paused = models.TextField(blank=True, default="")
    """Why its triggers wait until somebody entitled confirms what has changed; empty: they do not wait."""
    confirmed = ObjectField(default=dict, blank=True, editable=False)
    """What was confirmed last, as ``services.workflow_confirmation.confirmed_parts`` describes it."""
    next_run_at = models.DateTimeField(null=True, blank=True)
    """When its cron trigger is due next."""
    trigger_error = models.TextField(blank=True, default="")
    """What kept its last trigger from starting it; empty: nothing."""
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
    """One run, of the text as it was when it began. Its states are written by ``supervisor.workflows`` alone."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("auth.Group", models.PROTECT, related_name="workflow_runs")
    workflow = models.ForeignKey(Workflow, models.SET_NULL, null=True, blank=True, related_name="runs")
    """None: of a file (``manage.py run_workflow``), or its workflow was deleted."""
    name = models.CharField(max_length=200)
    text = models.TextField()
    files = ObjectField(default=dict, blank=True)
    state = models.CharField(max_length=10, choices=[(s, s) for s in RUN_STATES], default="queued")
    error = models.TextField(blank=True, default="")
    inputs = ObjectField(default=dict, blank=True)
    """What triggers give: timestamp, type, text, params; other keys are inputs by name."""
    outputs = ObjectField(default=dict, blank=True)
    trigger = models.CharField(max_length=10, choices=[(s, s) for s in TRIGGERS], default="manual")
    task = models.ForeignKey("sessions_app.Task", models.PROTECT, related_name="workflow_runs")
    """Every session of the run belongs to it."""
    workspace = models.ForeignKey(
        "sessions_app.TaskSession", models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    """The session without an agent whose worktree all nodes work in; None: not made yet, or none is needed."""
    agent_profile = models.ForeignKey(
        "executors_app.AgentProfile", models.PROTECT, null=True, blank=True, related_name="+"
    )
    executor = models.ForeignKey("executors_app.Executor", models.PROTECT, related_name="+")
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    revision = models.PositiveIntegerField(default=0)
    """Of its workflow when it began."""
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    owner = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Boot id of the supervisor that drives it; as for executions (rules 17-19)."""
    lease_expires_at = models.DateTimeField(null=True, blank=True, editable=False)
    generation = models.BigIntegerField(default=0, editable=False)
    round = models.PositiveIntegerField(default=0, editable=False)
    """How often somebody had it go on after its end, so that what is asked again is another prompt and job."""
    version = models.BigIntegerField(default=0, editable=False)
    """Grows with each commit of the run, so that a page knows whether anything is new."""
    idempotency_key = models.CharField(max_length=128, blank=True, default="", editable=False)
    asked = models.CharField(max_length=64, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    note = ""
    """What whoever starts it is told beforehand; no column, so empty once it is read again."""

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
        """Whether nothing more comes of it."""
        return self.state not in ("queued", "running")


class NodeRun(TeamModel):
    """One time that a node ran, or an iteration of a loop (``workflows.records``, which names the fields)."""

    team_path = "run__team"

    run = models.ForeignKey(WorkflowRun, models.CASCADE, related_name="node_runs")
    position = models.PositiveIntegerField()
    """Its place in the order of beginnings, from 0."""
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
    """How often its work was asked for; a repair of an answer is one more."""
    waiting_for = models.CharField(max_length=20, blank=True, default="")
    """``user``: a prompt is held, a permission is asked; ``agent``, ``machine``: it cannot begin yet; else empty."""
    session = models.ForeignKey(
        "sessions_app.TaskSession", models.SET_NULL, null=True, blank=True, related_name="node_runs"
    )
    message_id = models.CharField(max_length=64, blank=True, default="")
    """The prompt of an agent node in the ledger of its session; a chain of prompts that settle it is followed."""
    job_id = models.CharField(max_length=64, blank=True, default="")
    """The job of a shell or function node at agentctl."""
    output_tail = models.TextField(blank=True, default="")
    """The last of what a shell that is still running has said, for pages."""
    deadline_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "workflow_node_runs"
        ordering = ("run", "position")
        constraints = (models.UniqueConstraint(fields=("run", "path"), name="one_node_run_per_path"),)

    def __str__(self) -> str:
        return self.path
