"""API views of hosts, for staff."""

from __future__ import annotations

from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, StaffPermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.hosts import lost_clusters, services
from sessions_app.hosts.actions import ACTIONS
from sessions_app.hosts.api.serializers import (
    ClusterNodeSerializer,
    HostAnswerSerializer,
    HostSerializer,
    LostClusterAnswerSerializer,
    LostClusterSerializer,
    UnreachedClusterSerializer,
)
from sessions_app.hosts.cluster_nodes import list_cluster_nodes
from sessions_app.hosts.models import Host
from sessions_app.hosts.remaining import remaining_on


class HostListView(ApiView):
    """The machines that Kandev runs on."""

    permission_classes = [StaffPermission]

    @document_responses({200: HostSerializer(many=True)}, 403)
    def get(self, request: UserRequest) -> Response:
        """List the hosts, those that reported last first. Staff only."""
        return self.list(HostSerializer, services.list_hosts())


class ClusterNodeListView(ApiView):
    """The nodes of clusters on which sessions run."""

    permission_classes = [StaffPermission]

    @document_responses({200: ClusterNodeSerializer(many=True)}, 403)
    def get(self, request: UserRequest) -> Response:
        """List the nodes of clusters on which sessions run, as their Pods name them. Staff only."""
        return self.list(ClusterNodeSerializer, list_cluster_nodes())


class UnreachedClusterListView(ApiView):
    """Clusters of which no session can be reached."""

    permission_classes = [StaffPermission]

    @document_responses({200: UnreachedClusterSerializer(many=True)}, 403)
    def get(self, request: UserRequest) -> Response:
        """List the clusters of which no session can be reached. Staff only."""
        return self.list(UnreachedClusterSerializer, lost_clusters.list_unreached_clusters())


class LostClusterView(ApiView):
    """The declaration that a cluster is lost."""

    permission_classes = [StaffPermission]

    @document_responses({200: LostClusterAnswerSerializer}, 400, 403, 404, 409, request=LostClusterSerializer)
    def post(self, request: UserRequest) -> Response:
        """Declare that a cluster is gone for good. Staff only.

        The sessions that were started there and cannot be reached count as ended: they are resumed by their policy on
        the cluster that the executor names now. Refused with `cluster_answers` while the cluster answers. At most 1000
        sessions at once: repeat it while the list shows some.
        """
        wanted = self.body(LostClusterSerializer)
        count = lost_clusters.declare_lost(wanted["executor"], wanted["namespace"], request.user)
        return self.show(LostClusterAnswerSerializer, {"sessions": count})


class HostActionView(ApiView):
    """What people decide about a host."""

    permission_classes = [StaffPermission]

    @document_responses({200: HostAnswerSerializer}, 403, 404, 409, request=None)
    def post(self, request: UserRequest, host_id: int, action: str) -> Response:
        """Decide about a host, by `action`. Staff only. All hosts of that name are meant.

        `cordon`: it takes no new sessions. `drain`: in addition, each of its sessions is stopped once it is at rest.
        `uncordon`: it is in service again, and what a drain has stopped is resumed. Repeating an action changes
        nothing. `lost`: it is gone for ever; its sessions there end, and can be started on other hosts. Refused with
        `host_reporting` while it reports. Returns what still runs on the host.
        """
        if action not in ACTIONS:
            raise Http404(action)
        host = get_object_or_404(Host, id=host_id)
        ACTIONS[action].carry_out(host.name, request.user)
        return self.show(HostAnswerSerializer, remaining_on([host]))
