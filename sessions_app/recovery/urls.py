"""URLs of restarts, sweeps and policies: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.recovery import views
from sessions_app.recovery.api import views as api

urlpatterns = [
    path("restart/", views.restart_control_plane, name="restart"),
    path("restart/live/", views.restart_updates, name="restart-live"),
    path("sweeps/", views.list_sweeps, name="sweeps"),
    path("sweeps/live/", views.sweep_updates, name="sweeps-live"),
    path("sweeps/<uuid:sweep_id>/", views.show_sweep, name="sweep"),
    path("sweeps/requests/<uuid:request_id>/", views.show_sweep_request, name="sweep-request"),
    path("sweeps/requests/<uuid:request_id>/live/", views.sweep_request_updates, name="sweep-request-live"),
]

api_urlpatterns = [
    path(SESSION + "receipts/", api.ReceiptListView.as_view()),
    path("sweeps/", api.SweepListCreateView.as_view()),
    path("sweeps/requests/<uuid:request_id>/", api.SweepRequestDetailView.as_view()),
    path("sweeps/<uuid:sweep_id>/", api.SweepDetailView.as_view()),
    path("teams/<int:team_id>/policy/", api.TeamPolicyDetailView.as_view()),
]
