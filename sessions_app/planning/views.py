"""The page on which the plan of a task is changed."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.services.errors import Invalid
from sessions_app.pages.shortcuts import find_task, form_status
from sessions_app.planning.forms import PlanForm
from sessions_app.planning.services import change_plan


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def edit_plan(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show who does a task, how urgent it is and its labels as a form, or save them."""
    row = find_task(request, task_id)
    if not may_write(request.user, row.team_id):
        return redirect("task", row.id)
    form = PlanForm(row, request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            change_plan(row, form.cleaned_data)
        except Invalid as error:
            form.add_error(error.details.get("field"), error.message)
        else:
            return redirect("task", row.id)
    return render(request, "planning/edit_plan.html", {"task": row, "form": form}, status=form_status(form))
