"""API views of sessions and actions on them. None of them waits for an agent."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.agents.api.serializers import AgentSettingsSerializer, SettingRequestSerializer
from sessions_app.agents.services.agent_settings import agent_settings_document, request_setting
from sessions_app.api.base_views import ApiView, PromptParser, SessionApiView, TaskApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.board.services import tasks
from sessions_app.models import TaskSession
from sessions_app.prompts.api import parse_files
from sessions_app.recovery.api.serializers import PolicyChangeSerializer
from sessions_app.recovery.services import policies
from sessions_app.sessions.api.serializers import (
    BulkAnswerSerializer,
    BulkRequestSerializer,
    CancelAnswerSerializer,
    CloseRequestSerializer,
    NewSessionSerializer,
    ResumeRequestSerializer,
    SessionSerializer,
    StatusAnswerSerializer,
    StatusSerializer,
)
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.intents import request_many
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.sessions.services.status import session_status
from sessions_app.stream import services as output_limits


class SessionListCreateView(TaskApiView):
    """The sessions of a task."""

    parser_classes = [PromptParser]

    @document_responses({200: SessionSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """List the sessions, newest first."""
        return self.list(SessionSerializer, visible_sessions(request.user).filter(task_id=task_id))

    @document_responses(
        {201: SessionSerializer, 200: SessionSerializer}, *(400, 404, 409, 413, 415), request=NewSessionSerializer
    )
    def post(self, request: UserRequest, task_id: uuid.UUID) -> Response:
        """Create a session with its first prompt, and start it in the background.

        Repeating the request with the same ``idempotency_key`` on the same task returns the same session, with 200.
        """
        values = self.body(NewSessionSerializer, task=self.task)
        profile, executor, key = (values.pop(name) for name in ("agent_profile", "executor", "idempotency_key"))
        if files := parse_files(values):
            values["files"] = files
        mark = tasks.mark_session(profile, executor, key, **values)
        made, new = tasks.create_session_once(request.user, self.task, profile, executor, mark, **values)
        row = visible_sessions(request.user).get(id=made.id)
        return self.show(SessionSerializer, row, 201 if new else 200)


class SessionDetailView(SessionApiView):
    """One session."""

    @document_responses({200: SessionSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return a session."""
        return self.show(SessionSerializer, self.session)

    @document_responses({200: SessionSerializer}, 400, 404, request=PolicyChangeSerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Change the session's own restart policy, and whether interrupted work is continued."""
        policies.set_session_policy(self.session.id, self.body(PolicyChangeSerializer))
        row = visible_sessions(request.user).get(id=self.session.id)
        return self.show(SessionSerializer, row)

    @document_responses({204: None}, 404, 409)
    def delete(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Delete a session that has no live execution."""
        tasks.delete_session(self.session)
        return Response(status=204)


class SessionStatusView(SessionApiView):
    """``task.session.status``."""

    @document_responses({200: StatusSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the status of a session. Changes nothing."""
        return Response(session_status(self.session, request.user))


class SessionActionView(SessionApiView):
    """Base class of views that record a request and respond with the session's status."""

    def record_request(self, service: Callable[..., Any], *arguments: Any) -> Response:
        """Record the request with a service, and return 202."""
        service(self.session.id, self.request.user, *arguments)
        return self.status_response()

    def status_response(self, **more: Any) -> Response:
        """Return the current status from the database, with 202."""
        rows = visible_sessions(self.request.user)
        session: TaskSession = rows.get(id=self.session.id)
        return Response({"status": session_status(session, self.request.user), **more}, status=202)


class SessionResumeView(SessionActionView):
    """Resuming a session."""

    @document_responses({202: StatusAnswerSerializer}, 400, 404, 409, request=ResumeRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Request that a session runs again."""
        return self.record_request(intents.request_resume, self.body(ResumeRequestSerializer)["mode"])


class SessionCancelView(SessionActionView):
    """Cancelling the turn."""

    @document_responses({202: CancelAnswerSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Request that the active turn ends; the session stays."""
        cancelling = intents.request_cancel(self.session.id, request.user)
        return self.status_response(cancelling=cancelling)


class SessionStopView(SessionActionView):
    """Stopping a session."""

    @document_responses({202: StatusAnswerSerializer}, 404, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Request that the execution ends; the session can be resumed later."""
        return self.record_request(intents.request_stop)


class SessionMoreOutputView(SessionActionView):
    """Storing more of an agent's output."""

    @document_responses({202: StatusAnswerSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Store as much output again as the limit that was reached allows."""
        return self.record_request(output_limits.allow_more_output)


class SessionCloseView(SessionActionView):
    """Closing a session."""

    @document_responses({202: StatusAnswerSerializer}, 400, 404, 409, request=CloseRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Close a session permanently."""
        values = self.body(CloseRequestSerializer)
        delete = values["delete_transcript"]
        intents.request_close(self.session.id, request.user, values["as"], delete_transcript=delete)
        return self.status_response()


class SessionSettingsView(SessionApiView):
    """The settings of the session's agent."""

    @document_responses({200: AgentSettingsSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the settings, commands and title that the agent reported last, with the state of each change."""
        return self.show(AgentSettingsSerializer, agent_settings_document(self.session))

    @document_responses({202: AgentSettingsSerializer}, 400, 404, 409, request=SettingRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Request a change of one setting; a running agent gets it at once, any other with its next start."""
        values = self.body(SettingRequestSerializer)
        request_setting(self.session.id, request.user, values["setting"], values["value"])
        return self.show(AgentSettingsSerializer, agent_settings_document(self.session), 202)


class SessionBulkView(ApiView):
    """One action on many sessions."""

    @document_responses({200: BulkAnswerSerializer}, 400, request=BulkRequestSerializer)
    def post(self, request: UserRequest) -> Response:
        """Resume or stop many sessions. Each has its own result; one that fails does not affect the others."""
        values = self.body(BulkRequestSerializer)
        return self.show(
            BulkAnswerSerializer, {"results": request_many(request.user, values["action"], values["sessions"])}
        )
