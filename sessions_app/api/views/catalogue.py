"""Who can run, where, what runs there now, and what the sweeps found."""

from __future__ import annotations

import uuid

from django.shortcuts import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import agent_types
from sessions_app.api.base import ApiView, StaffWrites
from sessions_app.api.serializers.catalogue import (
    AgentTypeSerializer,
    ExecutionQuery,
    ExecutionSerializer,
    ExecutorSerializer,
    NewExecutor,
    NewProfile,
    ProbeAnswer,
    ProfileSerializer,
)
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.sweeps import NewSweep, SweepDetail, SweepRequestSerializer, SweepSerializer
from sessions_app.models import RecoverySweep, SweepRequest
from sessions_app.services import catalogue
from sessions_app.services.sweeps import ask_for_sweep


class AgentTypes(ApiView):
    """The kinds of agents."""

    @described({200: AgentTypeSerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the kinds of agents and what each can do."""
        return self.list(AgentTypeSerializer, sorted(agent_types().values(), key=lambda kind: kind.title))


class AgentProfiles(ApiView):
    """How teams run agents."""

    permission_classes = [StaffWrites]

    @described({200: ProfileSerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the profiles that the user's teams can use."""
        return self.list(ProfileSerializer, catalogue.visible_profiles(request.user))

    @described({201: ProfileSerializer}, 400, 403, request=NewProfile)
    def post(self, request: Request) -> Response:
        """Make a profile; for staff only, for it can name an executable."""
        made = AgentProfile.objects.create(**self.body(NewProfile, any_team=True))
        return self.show(ProfileSerializer, made, 201)


class Executors(ApiView):
    """The places where agents run."""

    permission_classes = [StaffWrites]

    @described({200: ExecutorSerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the executors."""
        return self.list(ExecutorSerializer, Executor.objects.all())

    @described({201: ExecutorSerializer}, 400, 403, request=NewExecutor)
    def post(self, request: Request) -> Response:
        """Make an executor; for staff only."""
        return self.show(ExecutorSerializer, Executor.objects.create(**self.body(NewExecutor)), 201)


class ExecutorView(ApiView):
    """One place where agents run."""

    permission_classes = [StaffWrites]

    @described({200: ExecutorSerializer}, 404)
    def get(self, request: Request, executor_id: uuid.UUID) -> Response:
        """Show an executor."""
        return self.show(ExecutorSerializer, get_object_or_404(Executor, id=executor_id))

    @described({204: None}, 404, 409, request=None)
    def delete(self, request: Request, executor_id: uuid.UUID) -> Response:
        """Delete an executor that nothing uses, else ``executor_in_use``; for staff only."""
        catalogue.delete_executor(get_object_or_404(Executor, id=executor_id))
        return Response(status=204)


class Probe(ApiView):
    """A look at an executor."""

    permission_classes = [StaffWrites]

    @described({200: ProbeAnswer}, 404, 503, request=None)
    def post(self, request: Request, executor_id: uuid.UUID) -> Response:
        """Look whether an executor can be used now; for staff only. Changes nothing."""
        return Response(catalogue.probe(get_object_or_404(Executor, id=executor_id), request.user))


class Running(ApiView):
    """What claims to run."""

    @described({200: ExecutionSerializer(many=True)}, 400, parameters=[ExecutionQuery])
    def get(self, request: Request) -> Response:
        """List the executions of the user's teams."""
        status = self.query(ExecutionQuery).get("status")
        wanted = (status,) if status else catalogue.LIVE
        return self.list(ExecutionSerializer, catalogue.visible_executions(request.user).filter(status__in=wanted))


class Sweeps(ApiView):
    """The looks at everything that claims to run."""

    permission_classes = [StaffWrites]

    @described({200: SweepSerializer(many=True)})
    def get(self, request: Request) -> Response:
        """List the sweeps, newest first."""
        return self.list(SweepSerializer, RecoverySweep.objects.all())

    @described({202: SweepRequestSerializer}, 400, 403, request=NewSweep)
    def post(self, request: Request) -> Response:
        """Ask the supervisor for a sweep now; for staff only. ``requests/{id}/`` tells what came of it."""
        asked = ask_for_sweep(request.user, dry_run=self.body(NewSweep)["dry_run"])
        return self.show(SweepRequestSerializer, asked, 202)


class SweepRequested(ApiView):
    """A sweep that was asked for."""

    @described({200: SweepRequestSerializer}, 404)
    def get(self, request: Request, request_id: uuid.UUID) -> Response:
        """Show whether a sweep that was asked for is done, and what it decided for the user's teams."""
        return self.show(SweepRequestSerializer, get_object_or_404(SweepRequest, id=request_id))


class SweepView(ApiView):
    """One sweep."""

    @described({200: SweepDetail}, 404)
    def get(self, request: Request, sweep_id: uuid.UUID) -> Response:
        """Show a sweep and what it decided for the sessions of the user's teams."""
        return self.show(SweepDetail, get_object_or_404(RecoverySweep, id=sweep_id))
