"""URLs of hosts: the system page and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.hosts import views
from sessions_app.hosts.api import views as api

urlpatterns = [
    path("system/", views.show_system, name="system"),
    path("system/live/", views.system_updates, name="system-live"),
    path("system/clusters/<uuid:executor_id>/lost/", views.declare_cluster_lost, name="cluster-lost"),
    path("system/hosts/<int:host_id>/<str:action>/", views.act_on_host, name="host-action"),
]

api_urlpatterns = [
    path("hosts/", api.HostListView.as_view()),
    path("hosts/nodes/", api.ClusterNodeListView.as_view()),
    path("hosts/clusters/", api.UnreachedClusterListView.as_view()),
    path("hosts/clusters/lost/", api.LostClusterView.as_view()),
    path("hosts/<int:host_id>/<str:action>/", api.HostActionView.as_view()),
]
