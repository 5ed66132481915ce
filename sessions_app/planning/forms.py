"""The form for the plan of a task."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import User

from sessions_app.models import Task
from sessions_app.planning.rules.plans import LABEL_LENGTH, MAX_LABELS, Priority, split_labels
from sessions_app.planning.services import plan_of, possible_assignees


class PlanForm(forms.Form):
    """Assignee, priority and labels of a task."""

    assignee: forms.ModelChoiceField[User] = forms.ModelChoiceField(
        queryset=None, label="Assignee", empty_label="Nobody", required=False
    )
    priority = forms.TypedChoiceField(
        label="Priority",
        choices=[(priority.value, priority.word.capitalize()) for priority in reversed(Priority)],
        coerce=lambda value: Priority(int(value)),
    )
    labels = forms.CharField(
        label="Labels",
        required=False,
        max_length=MAX_LABELS * (LABEL_LENGTH + 2),
        help_text="Separated by commas, such as “bug, parser”.",
    )

    def __init__(self, task: Task, *args: Any, **kwargs: Any):
        plan = plan_of(task)
        kwargs.setdefault("prefix", "plan")
        super().__init__(*args, **kwargs)
        self.initial = {
            "assignee": plan.assignee,
            "priority": plan.priority.value,
            "labels": ", ".join(plan.labels),
        }
        field = self.fields["assignee"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = possible_assignees(task.team)

    def clean_labels(self) -> list[str]:
        """Return the labels. Raises ValidationError."""
        try:
            return split_labels(self.cleaned_data["labels"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
