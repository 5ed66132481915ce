"""API view of usage."""

from __future__ import annotations

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.usage.api.serializers import UsageQuerySerializer, UsageReportSerializer
from sessions_app.usage.services import usage_report


class UsageView(ApiView):
    """What agents report to have used."""

    @document_responses({200: UsageReportSerializer}, 400, parameters=[UsageQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """Sum what the agents of your teams have used, by day, agent, member and task; of one team or task if named."""
        query = self.query(UsageQuerySerializer)
        report = usage_report(request.user, query["days"], team=query.get("team"), task=query.get("task"))
        return self.show(UsageReportSerializer, report)
