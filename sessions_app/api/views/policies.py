"""What a team says of restarts."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from django.http import Http404
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import ApiView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.sessions import PolicyChange, TeamPolicyAnswer
from sessions_app.models.scoping import teams_of
from sessions_app.services import policies
from sessions_app.services.rights import may_manage


class ManagersWrite(IsAuthenticated):
    """Members read; staff and the team's admins write."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on; Http404 where the team is not the user's to see."""
        if not super().has_permission(request, view):
            return False
        team = view.team
        if request.method in SAFE_METHODS:
            return True
        return not getattr(request.user, "only_reads", False) and may_manage(request.user, team)


class TeamPolicyView(ApiView):
    """The policy of one team."""

    permission_classes = [ManagersWrite]

    @property
    def team(self) -> Group:
        """The team of the address; Http404 if the user is neither in it nor staff."""
        seen = Group.objects.all() if self.request.user.is_staff else teams_of(self.request.user)
        found: Group | None = seen.filter(id=self.kwargs["team_id"]).first()
        if found is None:
            raise Http404
        return found

    @described({200: TeamPolicyAnswer}, 404)
    def get(self, request: Request, team_id: int) -> Response:
        """Show what the team says, and what holds for its sessions that say nothing themselves."""
        return self.show(TeamPolicyAnswer, policies.team_policy(self.team))

    @described({200: TeamPolicyAnswer}, 400, 404, request=PolicyChange)
    def patch(self, request: Request, team_id: int) -> Response:
        """Let the team say its policy; what is left out stays. For staff and the team's admins."""
        policies.set_team_policy(self.team, self.body(PolicyChange), request.user)
        return self.show(TeamPolicyAnswer, policies.team_policy(self.team))
