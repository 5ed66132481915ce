"""API views of usage and of budgets."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import Group
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.accounts.teams import visible_teams
from sessions_app.api.base_views import ApiView, SessionApiView, TeamManagerWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.usage import budgets
from sessions_app.usage.api.serializers import BudgetSerializer, UsageQuerySerializer, UsageReportSerializer
from sessions_app.usage.rules.budgets import Limits
from sessions_app.usage.services import UsageFilter, usage_report


class UsageView(ApiView):
    """What agents report to have used."""

    @document_responses({200: UsageReportSerializer}, 400, parameters=[UsageQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """Sum what the agents of your teams have used, by day, agent, member and task; of one team or task if named."""
        query = self.query(UsageQuerySerializer)
        report = usage_report(request.user, query["days"], UsageFilter(query.get("team"), query.get("task")))
        return self.show(UsageReportSerializer, report)


class SessionBudgetView(SessionApiView):
    """What a session may use in all."""

    @document_responses({200: BudgetSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the session's own budget."""
        return self.show(BudgetSerializer, budgets.budget_of_session(self.session.id))

    @document_responses({200: BudgetSerializer}, 400, 404, request=BudgetSerializer)
    def put(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Replace the session's own budget; what is omitted is no limit."""
        budgets.set_session_budget(self.session.id, Limits(**self.body(BudgetSerializer)), request.user)
        return self.show(BudgetSerializer, budgets.budget_of_session(self.session.id))


class TeamBudgetView(ApiView):
    """What a team may use on one day."""

    permission_classes = [TeamManagerWritePermission]

    @property
    def team(self) -> Group:
        """The team in the URL. Raises Http404 unless the user is a member or staff."""
        found: Group = get_object_or_404(visible_teams(self.request.user), id=self.kwargs["team_id"])
        return found

    @document_responses({200: BudgetSerializer}, 404)
    def get(self, request: UserRequest, team_id: int) -> Response:
        """Return the team's budget for each day."""
        return self.show(BudgetSerializer, budgets.budget_of_team(self.team))

    @document_responses({200: BudgetSerializer}, 400, 404, request=BudgetSerializer)
    def put(self, request: UserRequest, team_id: int) -> Response:
        """Replace the team's budget; what is omitted is no limit. Staff and the team's admins only."""
        budgets.set_team_budget(self.team, Limits(**self.body(BudgetSerializer)), request.user)
        return self.show(BudgetSerializer, budgets.budget_of_team(self.team))
