"""API views of agent types, profiles, executors, executions and sweeps."""

from __future__ import annotations

import uuid

from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from executors_app import __version__
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import listed_agent_types
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, StaffWritePermission
from sessions_app.api.serializers.catalogue import (
    AgentTypeSerializer,
    ExecutionQuerySerializer,
    ExecutionSerializer,
    ExecutorSerializer,
    NewExecutorSerializer,
    NewProfileSerializer,
    NewSweepSerializer,
    ProbeAnswerSerializer,
    ProfileSerializer,
    SweepDetailSerializer,
    SweepRequestSerializer,
    SweepSerializer,
    VersionSerializer,
)
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import RecoverySweep, SweepRequest
from sessions_app.services import catalogue
from sessions_app.services.sweeps import request_sweep


class VersionView(ApiView):
    """The version of this deployment."""

    @document_responses({200: VersionSerializer})
    def get(self, request: UserRequest) -> Response:
        """Return the version of Kandev that answers."""
        return self.show(VersionSerializer, {"version": __version__})


class AgentTypeListView(ApiView):
    """Agent types."""

    @document_responses({200: AgentTypeSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the agent types and their capabilities; those whose programs are installed on this machine first."""
        return self.list(AgentTypeSerializer, [kind for kind, _ in listed_agent_types()])


class AgentProfileListCreateView(ApiView):
    """Agent profiles."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ProfileSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the agent profiles that your teams can use."""
        return self.list(ProfileSerializer, catalogue.visible_profiles(request.user))

    @document_responses({201: ProfileSerializer}, 400, 403, request=NewProfileSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create an agent profile. Staff only, because a profile can name an executable."""
        made = AgentProfile.objects.create(**self.body(NewProfileSerializer, any_team=True))
        return self.show(ProfileSerializer, made, 201)


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
        catalogue.delete_executor(get_object_or_404(Executor, id=executor_id))
        return Response(status=204)


class ExecutorProbeView(ApiView):
    """A probe of an executor."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ProbeAnswerSerializer}, 404, 503, request=None)
    def post(self, request: UserRequest, executor_id: uuid.UUID) -> Response:
        """Check whether an executor is available. Changes nothing. Staff only."""
        return Response(catalogue.probe_executor(get_object_or_404(Executor, id=executor_id), request.user))


class ExecutionListView(ApiView):
    """Live executions."""

    @document_responses({200: ExecutionSerializer(many=True)}, 400, parameters=[ExecutionQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List the executions of your teams."""
        status = self.query(ExecutionQuerySerializer).get("status")
        wanted = (status,) if status else catalogue.LIVE_STATUSES
        return self.list(ExecutionSerializer, catalogue.visible_executions(request.user).filter(status__in=wanted))


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
        asked = request_sweep(request.user, dry_run=self.body(NewSweepSerializer)["dry_run"])
        return self.show(SweepRequestSerializer, asked, 202)


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
