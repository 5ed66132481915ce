"""Attention items: what needs a person, raised and resolved by the backend, and each user's marks on them."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.attention.rules.notices import PUSH_KEY, AttentionKind, Notice
from sessions_app.kernel.models.session import Task, TaskSession, choices
from sessions_app.workflows.models import Workflow, WorkflowRun

CAME_BACK_WITHIN: Final = timedelta(minutes=15)
"""What was over for less than this goes on: nobody is notified of it again."""


class AttentionItem(TeamModel):
    """One thing that needs a person; open for as long as it is true.

    It is about a session of a task, about a failed workflow run, which has a task and maybe a session, about a
    workflow whose scheduled runs are paused, or about the deployment. Then it belongs to no team, and only staff see
    it.
    """

    team_path = ("task__team", "workflow__team")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    key = models.CharField(max_length=200, unique=True)
    """Identifies the thing, for example ``permission:<id>``, so that it never has two items."""
    kind = models.CharField(max_length=16, choices=choices(AttentionKind))
    session = models.ForeignKey(TaskSession, models.CASCADE, null=True, blank=True, related_name="attention")
    task = models.ForeignKey(Task, models.CASCADE, null=True, blank=True, related_name="attention")
    workflow = models.ForeignKey(Workflow, models.CASCADE, null=True, blank=True, related_name="attention")
    run = models.ForeignKey(WorkflowRun, models.CASCADE, null=True, blank=True, related_name="attention")
    what = models.CharField(max_length=300)
    why = models.TextField(blank=True, default="")
    next_step = models.TextField(blank=True, default="")
    detail = models.TextField(blank=True, default="")
    """Evidence: the last error, the end of a log."""
    quoted = models.TextField(blank=True, default="", db_default="")
    """Words of others, as they are, for the placeholders in these texts: see ``rules.quotations``. Never shown."""
    worded = models.TextField(blank=True, default="", db_default="")
    """The texts that quote something, as JSON, with the quotations in their places; without secrets."""
    worded_for = models.CharField(max_length=64, blank=True, default="", db_default="")
    """The version of what ``worded`` was made of: the texts, the rules and the known secrets."""
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolution = models.CharField(max_length=64, blank=True, default="")

    class Meta(TeamModel.Meta):
        db_table = "attention_items"
        verbose_name, verbose_name_plural = "inbox item", "inbox items"
        ordering = ("-created_at", "id")
        indexes = (models.Index(fields=("session", "resolved_at"), name="attention_open"),)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(session__isnull=False, task__isnull=False, workflow=None)
                | models.Q(run__isnull=False, task__isnull=False, workflow=None)
                | models.Q(session=None, task=None, run=None, workflow__isnull=False)
                | models.Q(session=None, task=None, run=None, workflow=None, kind=AttentionKind.SYSTEM.value),
                name="attention_of_a_session_or_a_workflow",
            ),
        )

    is_worded = False
    """Whether the texts of this instance have the quotations in them: see ``attention.services.wording``."""

    def __str__(self) -> str:
        return self.key

    @property
    def about(self) -> Task | Workflow:
        """The task or the workflow that the item is about; both have a team. Not of an item of the deployment."""
        found = self.task or self.workflow
        assert found is not None  # noqa: S101 - a constraint of the table
        return found

    @property
    def is_of_deployment(self) -> bool:
        """Whether it is about the deployment, and of no team."""
        return self.kind == AttentionKind.SYSTEM

    @property
    def title(self) -> str:
        """The title of the task or workflow."""
        if self.is_of_deployment:
            return "System"
        return str(self.about)

    @property
    def subject(self) -> str:
        """What kind of thing ``title`` names."""
        if self.is_of_deployment:
            return ""
        if self.workflow is not None:
            return "Workflow"
        return "Task"

    @property
    def team_name(self) -> str:
        """The name of its team; empty if it is about the deployment."""
        if self.is_of_deployment:
            return ""
        return str(self.about.team.name)

    @property
    def group_key(self) -> object:
        """What the items about one thing have in common."""
        if self.is_of_deployment:
            return "system"
        return self.about.pk

    @property
    def path(self) -> str:
        """The path of the page where a person can settle it."""
        if self.is_of_deployment:
            return "/system/"
        if self.workflow_id is not None:
            return f"/workflows/{self.workflow_id}/"
        if self.run_id is not None:
            return f"/workflows/runs/{self.run_id}/"
        session = f"/tasks/{self.task_id}/sessions/{self.session_id}/"
        if self.kind != AttentionKind.FINISH:
            return session
        if self.key.startswith(PUSH_KEY):
            return f"{session}push/"
        return f"{session}finish/"

    @property
    def notice_id(self) -> str:
        """What a browser remembers of what it has shown: another value once the item was raised again."""
        return f"{self.id} {self.created_at.isoformat()}"

    @property
    def answer_path(self) -> str:
        """The path of the page where a person can answer what it is about; empty unless an agent asks something."""
        kind, _, request_id = self.key.partition(":")
        if self.session_id is None or kind not in (AttentionKind.PERMISSION, AttentionKind.QUESTION):
            return ""
        return f"{self.path}requests/?{urlencode({'request': request_id, 'next': '/attention/'})}"


class AttentionMark(models.Model):
    """One user's marks on one item."""

    item = models.ForeignKey(AttentionItem, models.CASCADE, related_name="marks")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    dismissed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "attention_marks"
        verbose_name, verbose_name_plural = "mark on an inbox item", "marks on inbox items"
        constraints = (models.UniqueConstraint(fields=("item", "user"), name="one_mark_per_user_and_item"),)

    def __str__(self) -> str:
        return f"mark of {self.user_id} on {self.item_id}"


class Presence(models.Model):
    """A user has a session's page open; visible to every web process, and expires automatically."""

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="presences")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "session_presences"
        verbose_name, verbose_name_plural = "open session page", "open session pages"
        constraints = (models.UniqueConstraint(fields=("session", "user"), name="one_presence_per_user_and_session"),)

    def __str__(self) -> str:
        return f"user {self.user_id} at session {self.session_id}"


def raise_for_workflow(workflow: Workflow, notice: Notice) -> bool:
    """Raise an item about a workflow in the caller's transaction; return False if it is already open.

    An open item keeps its marks and takes over the text of ``notice``.
    """
    if open_item(notice, workflow=workflow) is not None:
        return True
    AttentionItem.objects.filter(key=notice.key).update(**notice.columns())
    return False


def raise_for_run(run: WorkflowRun, notice: Notice) -> bool:
    """Raise an item about a workflow run without sessions; return False if it is already open."""
    return open_item(notice, run=run, task_id=run.task_id) is not None


def resolve_for_run(run: WorkflowRun, resolution: str) -> int:
    """Resolve the open items of a workflow run without sessions; return how many there were."""
    rows = AttentionItem.objects.filter(run=run, session=None, resolved_at=None)
    return rows.update(resolved_at=timezone.now(), resolution=resolution[:64])


def resolve_for_workflow(workflow: Workflow, resolution: str) -> int:
    """Resolve the open items of a workflow; return how many there were."""
    rows = AttentionItem.objects.filter(workflow=workflow, resolved_at=None)
    return rows.update(resolved_at=timezone.now(), resolution=resolution[:64])


def raise_for_deployment(notice: Notice) -> bool:
    """Raise an item that only staff see; return False if it is already open. Several processes may do so at once.

    One that was resolved less than ``CAME_BACK_WITHIN`` ago opens again with the marks of the users, so that a worker
    that cannot stay up is not a new message each time.
    """
    try:
        with transaction.atomic():
            # Locked, so that two processes that find it resolved do not both take away the marks of the users.
            list(AttentionItem.objects.select_for_update().filter(key=notice.key).values_list("id", flat=True))
            just_over = AttentionItem.objects.filter(key=notice.key, resolved_at__gte=timezone.now() - CAME_BACK_WITHIN)
            if just_over.update(resolved_at=None, resolution="", **notice.columns()):
                return True
            return open_item(notice) is not None
    except IntegrityError:
        return False  # another process has just raised it for the first time


def resolve_for_deployment(keys: Collection[str], resolution: str) -> int:
    """Resolve open items of the deployment; return how many there were."""
    rows = AttentionItem.objects.filter(kind=AttentionKind.SYSTEM, key__in=keys, resolved_at=None)
    return rows.update(resolved_at=timezone.now(), resolution=resolution[:64])


def open_item(notice: Notice, **about: Any) -> AttentionItem | None:
    """Create or reopen the item of a notice and return it; None if it is already open.

    Reopening removes the marks of all users, so that each sees it again. They are notified again unless it was over for
    less than ``CAME_BACK_WITHIN``, as with a turn that falls silent every few minutes.
    """
    earlier = AttentionItem.objects.filter(key=notice.key).first()
    if earlier is not None and earlier.resolved_at is None:
        return None
    values: dict[str, Any] = {"kind": notice.kind, **notice.columns(), "created_at": timezone.now()}
    if earlier is None:
        row = AttentionItem(key=notice.key, **about, **values)
        row.save(force_insert=True)
        return row
    AttentionItem.objects.filter(id=earlier.id).update(resolved_at=None, resolution="", **values)
    earlier.marks.all().delete()
    if earlier.resolved_at is not None and timezone.now() - earlier.resolved_at >= CAME_BACK_WITHIN:
        earlier.told.all().delete()
    earlier.kind = notice.kind
    return earlier


def update_wording(notice: Notice) -> None:
    """Update the text of an open item when more is known."""
    AttentionItem.objects.filter(key=notice.key, resolved_at=None).update(**notice.columns())
