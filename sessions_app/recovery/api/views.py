"""API views of sweeps, receipts and policies."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import Group
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.accounts.teams import visible_teams
from sessions_app.api.base_views import ApiView, SessionApiView, StaffWritePermission, TeamManagerWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import (
    RecoverySweep,
    SweepRequest,
)
from sessions_app.recovery.api.serializers import (
    NewSweepSerializer,
    PolicyChangeSerializer,
    ReceiptSerializer,
    SweepDetailSerializer,
    SweepRequestSerializer,
    SweepSerializer,
    TeamPolicyAnswerSerializer,
)
from sessions_app.recovery.services import policies
from sessions_app.recovery.services.sweeps import request_sweep


class SweepListCreateView(ApiView):
    """Sweeps."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: SweepSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the sweeps, newest first."""
        return self.list(SweepSerializer, RecoverySweep.objects.all())

    @document_responses({202: SweepRequestSerializer}, 400, 403, request=NewSweepSerializer)
    def post(self, request: UserRequest) -> Response:
        """Request a sweep now; ``requests/{id}/`` returns its result. Staff only."""
        sweep_request = request_sweep(request.user, dry_run=self.body(NewSweepSerializer)["dry_run"])
        return self.show(SweepRequestSerializer, sweep_request, 202)


class SweepRequestDetailView(ApiView):
    """A requested sweep."""

    @document_responses({200: SweepRequestSerializer}, 404)
    def get(self, request: UserRequest, request_id: uuid.UUID) -> Response:
        """Return whether a requested sweep is done, and what it decided for your teams' sessions."""
        return self.show(SweepRequestSerializer, get_object_or_404(SweepRequest, id=request_id))


class SweepDetailView(ApiView):
    """One sweep."""

    @document_responses({200: SweepDetailSerializer}, 404)
    def get(self, request: UserRequest, sweep_id: uuid.UUID) -> Response:
        """Return a sweep, and what it decided for your teams' sessions."""
        return self.show(SweepDetailSerializer, get_object_or_404(RecoverySweep, id=sweep_id))


class ReceiptListView(SessionApiView):
    """The session's continuity receipts."""

    @document_responses({200: ReceiptSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the continuity receipts, newest first."""
        return self.list(ReceiptSerializer, self.session.receipts.with_first_turn())


class TeamPolicyDetailView(ApiView):
    """The restart policy of a team."""

    permission_classes = [TeamManagerWritePermission]

    @property
    def team(self) -> Group:
        """The team in the URL. Raises Http404 unless the user is a member or staff."""
        found: Group = get_object_or_404(visible_teams(self.request.user), id=self.kwargs["team_id"])
        return found

    @document_responses({200: TeamPolicyAnswerSerializer}, 404)
    def get(self, request: UserRequest, team_id: int) -> Response:
        """Return the team's policy, and the policy of its sessions that have none of their own."""
        return self.show(TeamPolicyAnswerSerializer, policies.team_policy_json(self.team))

    @document_responses({200: TeamPolicyAnswerSerializer}, 400, 404, request=PolicyChangeSerializer)
    def patch(self, request: UserRequest, team_id: int) -> Response:
        """Change the team's policy; fields that are omitted stay. Staff and the team's admins only."""
        policies.set_team_policy(self.team, self.body(PolicyChangeSerializer), request.user)
        return self.show(TeamPolicyAnswerSerializer, policies.team_policy_json(self.team))
