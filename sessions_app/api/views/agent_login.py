"""API views of the ways to log agents in, by session, and by agent type, team and executor."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from executors_app.agents import AgentType
from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.api.base_views import ApiView, SessionApiView
from sessions_app.api.serializers.agent_login import (
    AgentLoginSerializer,
    LoginRequestSerializer,
    PlaceLoginSerializer,
    PlaceQuerySerializer,
    PlaceSerializer,
)
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import TaskSession
from sessions_app.services import agent_login, agent_setup, catalogue


def _known_type(name: str) -> AgentType:
    try:
        return agent_type(name)
    except UnknownPlugin as error:
        raise Http404 from error


class SessionLoginView(SessionApiView):
    """Logging a session's agent in."""

    @document_responses({200: AgentLoginSerializer}, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the ways to log in that the agent has published, and the state of the last login."""
        return self.answer()

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=LoginRequestSerializer)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Start the agent with a login; what waits for it is sent afterwards. Needs the right to open its terminal."""
        agent_login.request_login(self.session.id, request.user, self.body(LoginRequestSerializer)["method"])
        return self.answer(202)

    def answer(self, status: int = 200) -> Response:
        """Return the document of the session as it is now."""
        session: TaskSession = catalogue.visible_sessions(self.request.user).get(id=self.session.id)
        kind = _known_type(session.agent_profile.agent_type)
        argv = session.agent_profile.argv(session.executor.runtime)
        document = agent_login.login_document(kind, agent_login.reported_agent(session), argv, session)
        return self.show(AgentLoginSerializer, document, status)


class SessionLogoutView(SessionLoginView):
    """Logging a session's agent out."""

    http_method_names = ["post", "options"]

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Start the agent to log it out. Everything that uses its login there needs a new one."""
        agent_login.request_logout(self.session.id, request.user)
        return self.answer(202)


class AgentTypeLoginView(ApiView):
    """Logging an agent of a type in for a team on an executor, in the session of its test."""

    @document_responses({200: AgentLoginSerializer}, 400, 404, parameters=[PlaceQuerySerializer])
    def get(self, request: Request, name: str) -> Response:
        """Return the ways to log in that the agent has published there, and the state of the test's last login."""
        return self.answer(name, self.query(PlaceQuerySerializer))

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=PlaceLoginSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Log in by one of these ways, and test the agent with one turn."""
        kind, asked = _known_type(name), self.body(PlaceLoginSerializer)
        agent_login.log_in_at(request.user, kind, asked["team"], asked["executor"], asked["method"])
        return self.answer(name, asked, 202)

    def answer(self, name: str, place: dict[str, Any], status: int = 200) -> Response:
        """Return the document of this place."""
        kind, team, executor = _known_type(name), place["team"], place["executor"]
        argv = agent_login.profile_argv(agent_setup.profile_for(kind, team), kind, executor.runtime)
        reported = agent_login.reported_at(team.pk, executor.pk, kind.name)
        session = agent_setup.newest_test(kind, team, executor)
        return self.show(AgentLoginSerializer, agent_login.login_document(kind, reported, argv, session), status)


class AgentTypeLogoutView(AgentTypeLoginView):
    """Logging an agent of a type out for a team on an executor."""

    http_method_names = ["post", "options"]

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=PlaceSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Log the agent out. Everything that uses its login there, also of other teams, needs a new one."""
        kind, asked = _known_type(name), self.body(PlaceSerializer)
        agent_login.log_out_at(request.user, kind, asked["team"], asked["executor"])
        return self.answer(name, asked, 202)
