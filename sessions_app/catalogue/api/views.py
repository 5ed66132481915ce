"""API views of repositories, executors and executions."""

from __future__ import annotations

import uuid
from functools import cached_property

from django.contrib.auth.models import Group
from django.db import transaction
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from executors_app.models import Executor
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, StaffWritePermission, TeamManagerWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.catalogue.api.serializers import (
    ExecutionQuerySerializer,
    ExecutionSerializer,
    ExecutorChangeSerializer,
    ExecutorSerializer,
    NewExecutorSerializer,
    NewRepositorySerializer,
    ProbeAnswerSerializer,
    RepositoryChangeSerializer,
    RepositorySerializer,
)
from sessions_app.catalogue.services import executor_settings
from sessions_app.catalogue.services.executors import (
    UNFINISHED_STATUSES,
    delete_executor,
    probe_executor,
    visible_executions,
)
from sessions_app.catalogue.services.repositories import add_repository
from sessions_app.catalogue.services.repository_settings import (
    change_repository,
    remove_repository,
    settings_repositories,
)
from sessions_app.models import Repository


class ExecutorListCreateView(ApiView):
    """Executors: the places where agents run."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ExecutorSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the executors."""
        return self.list(ExecutorSerializer, Executor.objects.select_related("host"))

    @document_responses({201: ExecutorSerializer}, 400, 403, request=NewExecutorSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create an executor. Staff only."""
        values = self.body(NewExecutorSerializer)
        return self.show(ExecutorSerializer, executor_settings.add_executor(values, request.user), 201)


class ExecutorDetailView(ApiView):
    """One executor."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ExecutorSerializer}, 404)
    def get(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Return an executor."""
        return self.show(ExecutorSerializer, get_object_or_404(Executor, id=executor_id))

    @document_responses({200: ExecutorSerializer}, 400, 403, 404, 409, request=ExecutorChangeSerializer)
    def patch(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Change name, settings, capacity, host, pool or labels of an executor, make it the default, or disable it.

        Staff only. Another host is where new sessions start: those that exist stay where they are. With `version`, it
        is saved only over that version, else 409 `settings_changed`. The runtime never changes.
        """
        values = self.body(ExecutorChangeSerializer)
        version, disabled = values.pop("version", None), values.pop("disabled", None)
        becomes_default = values.pop("is_default", False)
        with transaction.atomic():
            if "host" in values:
                values["host_id"] = executor_settings.find_host_id(executor_id, values.pop("host"))
            executor = executor_settings.change_executor(executor_id, values, version, request.user)
            if disabled is False:
                executor = executor_settings.set_disabled(executor_id, request.user, disabled=False)
            if becomes_default:
                executor = executor_settings.make_default(executor_id, request.user)
            if disabled:
                executor = executor_settings.set_disabled(executor_id, request.user, disabled=True)
        return self.show(ExecutorSerializer, executor)

    @document_responses({204: None}, 404, 409, request=None)
    def delete(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Delete an executor. Fails with ``executor_in_use`` if sessions use it. Staff only."""
        delete_executor(get_object_or_404(Executor, id=executor_id), request.user)
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
        return self.list(RepositorySerializer, Repository.objects.visible_to(request.user).filter(removed_at=None))

    @document_responses({201: RepositorySerializer}, 400, 403, request=NewRepositorySerializer)
    def post(self, request: UserRequest) -> Response:
        """Open a git repository on this machine to a team. Staff only."""
        made = add_repository(self.body(NewRepositorySerializer, any_team=True), request.user)
        return self.show(RepositorySerializer, made, 201)


class RepositoryDetailView(ApiView):
    """One repository that is open to a team."""

    permission_classes = [TeamManagerWritePermission]

    @cached_property
    def repository(self) -> Repository:
        """The repository in the URL. Raises Http404 unless the user is a member of its team or staff."""
        found: Repository = get_object_or_404(settings_repositories(self.request.user), id=self.kwargs["repository_id"])
        return found

    @property
    def team(self) -> Group:
        """Its team."""
        return self.repository.team

    @document_responses({200: RepositorySerializer}, 404)
    def get(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Return a repository."""
        return self.show(RepositorySerializer, self.repository)

    @document_responses({200: RepositorySerializer}, 400, 403, 404, 409, request=RepositoryChangeSerializer)
    def patch(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Change name, default branch, base of new tasks, or make it the team's default. Staff and the team's admins.

        With `version`, it is saved only over that version, else 409 `repository_changed`.
        """
        values = self.body(RepositoryChangeSerializer)
        version = values.pop("version", None)
        return self.show(RepositorySerializer, change_repository(self.repository, values, request.user, version))

    @document_responses({204: None}, 403, 404, 409, request=None)
    def delete(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Remove a repository from its team: no new task can use it. Staff and the team's admins.

        Its tasks stay, with their sessions. Fails with `repository_in_use` while workflows use it.
        """
        remove_repository(self.repository, request.user)
        return Response(status=204)
