"""API views of repositories, executors and executions."""

from __future__ import annotations

import uuid

from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from executors_app.models import Executor
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, StaffWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.catalogue.api.serializers import (
    ExecutionQuerySerializer,
    ExecutionSerializer,
    ExecutorSerializer,
    NewExecutorSerializer,
    NewRepositorySerializer,
    ProbeAnswerSerializer,
    RepositorySerializer,
)
from sessions_app.catalogue.services.executors import (
    UNFINISHED_STATUSES,
    delete_executor,
    probe_executor,
    visible_executions,
)
from sessions_app.catalogue.services.repositories import add_repository
from sessions_app.models import Repository


class ExecutorListCreateView(ApiView):
    """Executors: the places where agents run."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ExecutorSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the executors."""
        return self.list(ExecutorSerializer, Executor.objects.all())

    @document_responses({201: ExecutorSerializer}, 400, 403, request=NewExecutorSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create an executor. Staff only."""
        return self.show(ExecutorSerializer, Executor.objects.create(**self.body(NewExecutorSerializer)), 201)


class ExecutorDetailView(ApiView):
    """One executor."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ExecutorSerializer}, 404)
    def get(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Return an executor."""
        return self.show(ExecutorSerializer, get_object_or_404(Executor, id=executor_id))

    @document_responses({204: None}, 404, 409, request=None)
    def delete(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Delete an executor. Fails with ``executor_in_use`` if sessions use it. Staff only."""
        delete_executor(get_object_or_404(Executor, id=executor_id))
        return Response(status=204)


class ExecutorProbeView(ApiView):
    """A probe of an executor."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ProbeAnswerSerializer}, 404, 503, request=None)
    def post(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Check whether an executor is available. Changes nothing. Staff only."""
        return Response(probe_executor(get_object_or_404(Executor, id=executor_id), request.user))


class ExecutionListView(ApiView):
    """Live executions."""

    @document_responses({200: ExecutionSerializer(many=True)}, 400, parameters=[ExecutionQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List the executions of your teams."""
        status = self.query(ExecutionQuerySerializer).get("status")
        statuses = (status,) if status else UNFINISHED_STATUSES
        return self.list(ExecutionSerializer, visible_executions(request.user).filter(status__in=statuses))


class RepositoryListCreateView(ApiView):
    """The repositories that are open to the user's teams."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: RepositorySerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the repositories."""
        return self.list(RepositorySerializer, Repository.objects.visible_to(request.user))

    @document_responses({201: RepositorySerializer}, 400, 403, request=NewRepositorySerializer)
    def post(self, request: UserRequest) -> Response:
        """Open a git repository on this machine to a team. Staff only."""
        made = add_repository(self.body(NewRepositorySerializer, any_team=True))
        return self.show(RepositorySerializer, made, 201)
