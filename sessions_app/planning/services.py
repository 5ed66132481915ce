"""Read and change the plans of tasks, and find tasks by them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.db.transaction import atomic

from sessions_app.kernel.models.session import Task
from sessions_app.kernel.services.errors import Invalid
from sessions_app.planning.models import TaskLabel, TaskPlan
from sessions_app.planning.rules.plans import Priority, clean_labels

MAX_LABELS_OFFERED: Final = 100
"""Labels of a user's teams that the filter of the board offers."""


PLAN_VALUES: Final = frozenset({"assignee", "priority", "labels"})
"""What ``change_plan`` changes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a task."""

    assignee: User | None
    priority: Priority
    labels: Sequence[str]


NO_PLAN: Final = Plan(None, Priority.NONE, ())


def plan_of(task: Task) -> Plan:
    """Return the plan of a task; no queries for a task of ``with_plans``."""
    row = getattr(task, "plan", None)
    labels = [label.name for label in task.labels.all()]
    if row is None:
        return Plan(None, Priority.NONE, labels)
    return Plan(_assignee_of(row), Priority(row.priority), labels)


def load_plans(tasks: Sequence[uuid.UUID]) -> dict[uuid.UUID, Plan]:
    """Return the plans of the tasks with these ids that have one, by id; at most three queries.

    For a page of many tasks, most of which have no plan.
    """
    labels: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for task_id, name in TaskLabel.objects.filter(task__among=tasks).values_list("task_id", "name"):
        labels[task_id].append(name)
    plans = {task_id: Plan(None, Priority.NONE, names) for task_id, names in labels.items()}
    for row in TaskPlan.objects.filter(task__among=tasks).prefetch_related(_assignees()):
        plans[row.task_id] = Plan(_assignee_of(row), Priority(row.priority), labels[row.task_id])
    return plans


def _assignees() -> Prefetch[Any]:
    return Prefetch("assignee", User.objects.only("username"))


def _assignee_of(row: TaskPlan) -> User | None:
    """Return who does the task; None also for an account that a release without plans has deleted."""
    try:
        return row.assignee
    except User.DoesNotExist:
        return None


def with_plans(tasks: QuerySet[Task]) -> QuerySet[Task]:
    """Prefetch the plans of tasks: three queries, whatever the number of tasks."""
    return tasks.prefetch_related(Prefetch("plan", TaskPlan.objects.prefetch_related(_assignees())), "labels")


def possible_assignees(team: Group) -> QuerySet[User]:
    """Return the active members of a team, by name."""
    found: QuerySet[User] = team.user_set.filter(is_active=True).order_by("username")
    return found


def labels_of_teams(teams: QuerySet[Group]) -> list[str]:
    """Return labels that tasks of these teams have, sorted, at most ``MAX_LABELS_OFFERED``."""
    labels = TaskLabel.objects.filter(task__team__in=teams, task__archived_at=None).order_by("name")
    return list(labels.values_list("name", flat=True).distinct()[:MAX_LABELS_OFFERED])


def is_planned(*, assignee: str = "", label: str = "", priority: Priority | None = None) -> Q:
    """Return a condition of tasks: the assignee's user name, a label in any case, at least this priority."""
    condition = Q()
    plans = TaskPlan.objects.filter(task=OuterRef("pk"))
    if assignee:
        condition &= Q(Exists(plans.filter(assignee__username=assignee)))
    if priority is not None:
        condition &= Q(Exists(plans.filter(priority__gte=priority)))
    if label:
        condition &= Q(Exists(TaskLabel.objects.filter(task=OuterRef("pk"), key=label.casefold())))
    return condition


def change_plan(task: Task, values: Mapping[str, Any]) -> None:
    """Change ``assignee`` (a user or None), ``priority`` (a ``Priority``) and ``labels`` (texts); missing ones stay.

    Raises Invalid for an assignee who is no active member of the task's team, and for labels that are not allowed.
    """
    assignee = values.get("assignee")
    if assignee is not None and not possible_assignees(task.team).filter(pk=assignee.pk).exists():
        raise Invalid("This person is not a member of the task’s team.", field="assignee")
    labels = None
    if "labels" in values:
        labels = _checked_labels(values["labels"])
    with atomic():
        # One change at a time; and a task that was deleted meanwhile gets no plan.
        if not Task.objects.select_for_update(no_key=True).filter(id=task.id).exists():
            return
        changed = {name: values[name] for name in ("assignee", "priority") if name in values}
        if changed:
            TaskPlan.objects.update_or_create(task=task, defaults=changed)
        if labels is not None:
            _replace_labels(task, labels)


def _checked_labels(labels: Sequence[str]) -> list[str]:
    try:
        return clean_labels(labels)
    except ValueError as error:
        raise Invalid(str(error), field="labels") from error


def _replace_labels(task: Task, labels: Sequence[str]) -> None:
    task.labels.all().delete()
    TaskLabel.objects.bulk_create(TaskLabel(task=task, name=name, key=name.casefold()) for name in labels)
