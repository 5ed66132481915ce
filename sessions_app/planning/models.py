"""The plans of tasks, and their labels."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import Task
from sessions_app.planning.rules.plans import LABEL_LENGTH, Priority


class TaskPlan(TeamModel):
    """Assignee and priority of a task.

    Releases without this table may delete the task, so the database does not enforce the reference.
    """

    team_path = "task__team"

    task = models.OneToOneField(Task, models.CASCADE, primary_key=True, related_name="plan", db_constraint=False)
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="assigned_tasks",
        db_constraint=False,
    )
    priority = models.PositiveSmallIntegerField(
        choices=[(priority.value, priority.word) for priority in Priority], default=Priority.NONE
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "task_plans"

    def __str__(self) -> str:
        return f"plan of {self.task_id}"


class TaskLabel(TeamModel):
    """A label of a task. Labels of one task differ by more than case."""

    team_path = "task__team"

    task = models.ForeignKey(Task, models.CASCADE, related_name="labels", db_constraint=False)
    name = models.CharField(max_length=LABEL_LENGTH)
    key = models.CharField(max_length=3 * LABEL_LENGTH, editable=False)
    """The name without case, by which labels are compared; case folding can make a name three times as long."""

    class Meta(TeamModel.Meta):
        db_table = "task_labels"
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("task", "key"), name="one_label_per_task_and_key"),)
        indexes = (models.Index(fields=("key", "task"), name="tasks_of_label"),)

    def __str__(self) -> str:
        return self.name
