"""Sessions, and what is asked of them. Nothing here waits for an agent."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import SessionView, TaskView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.conversation import PromptAnswer, PromptRequest
from sessions_app.api.serializers.sessions import (
    CancelAnswer,
    CloseRequest,
    NewSession,
    PolicyChange,
    ResumeRequest,
    SessionSerializer,
    StatusAnswer,
    StatusSerializer,
)
from sessions_app.models import TaskSession
from sessions_app.services import catalogue, intents, policies, tasks
from sessions_app.services.status import session_status


class Sessions(TaskView):
    """The sessions of a task."""

    @described({200: SessionSerializer(many=True)}, 404)
    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """List the sessions, newest first."""
        return self.list(SessionSerializer, catalogue.visible_sessions(request.user).filter(task_id=task_id))

    @described({201: SessionSerializer, 200: SessionSerializer}, 400, 404, 409, request=NewSession)
    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Make a session with its first prompt, to be launched in the background.

        The same ``idempotency_key`` again on the same task gets that session once more, with 200.
        """
        asked = self.body(NewSession, task=self.task)
        profile, executor, key = (asked.pop(name) for name in ("agent_profile", "executor", "idempotency_key"))
        made, new = tasks.create_session_once(request.user, self.task, profile, executor, key, **asked)
        row = catalogue.visible_sessions(request.user).get(id=made.id)
        return self.show(SessionSerializer, row, 201 if new else 200)


class SessionDetail(SessionView):
    """One session."""

    @described({200: SessionSerializer}, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show a session."""
        return self.show(SessionSerializer, self.session)

    @described({200: SessionSerializer}, 400, 404, request=PolicyChange)
    def patch(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Change which policy the session has of its own, and whether its interrupted work is continued."""
        policies.set_session_policy(self.session.id, self.body(PolicyChange))
        row = catalogue.visible_sessions(request.user).get(id=self.session.id)
        return self.show(SessionSerializer, row)

    @described({204: None}, 404, 409)
    def delete(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Forget a session that has no live execution."""
        tasks.delete_session(self.session)
        return Response(status=204)


class Status(SessionView):
    """``task.session.status``."""

    @described({200: StatusSerializer}, 404)
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show what is known of a session; changes nothing."""
        return Response(session_status(self.session, request.user))


class OrderView(SessionView):
    """A view that takes an order and answers with the status that follows."""

    def carry(self, order: Callable[..., Any], *given: Any) -> Response:
        """Write the order down; 202."""
        order(self.session.id, self.request.user, *given)
        return self.taken()

    def taken(self, **more: Any) -> Response:
        """The status, read anew."""
        rows = catalogue.visible_sessions(self.request.user)
        session: TaskSession = rows.get(id=self.session.id)
        return Response({"status": session_status(session, self.request.user), **more}, status=202)


class Resume(OrderView):
    """Running again."""

    @described({202: StatusAnswer}, 400, 404, 409, request=ResumeRequest)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Ask for a session to run again."""
        return self.carry(intents.resume, self.body(ResumeRequest)["mode"])


class Prompt(SessionView):
    """Asking the agent."""

    @described({202: PromptAnswer, 200: PromptAnswer}, 400, 404, 409, request=PromptRequest)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Put a prompt into the queue; the same ``message_id`` again gets the first answer, with 200."""
        asked = self.body(PromptRequest)
        row, new = intents.prompt(self.session.id, asked["message_id"], asked["text"], request.user)
        return self.show(PromptAnswer, row, 202 if new else 200)


class Cancel(OrderView):
    """Ending the turn."""

    @described({202: CancelAnswer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Ask for the active turn to end; the session lives on."""
        cancelling = intents.cancel(self.session.id, request.user)
        return self.taken(cancelling=cancelling)


class Stop(OrderView):
    """Ending the execution."""

    @described({202: StatusAnswer}, 404, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Ask for the execution to end; the session can be resumed later."""
        return self.carry(intents.stop)


class Close(OrderView):
    """Ending the session."""

    @described({202: StatusAnswer}, 400, 404, 409, request=CloseRequest)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """End a session for good."""
        return self.carry(intents.close, self.body(CloseRequest)["as"])
