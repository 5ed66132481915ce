"""URLs of the inbox: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.attention import views
from sessions_app.attention.api import views as api
from sessions_app.kernel.addresses import SESSION, TASK

urlpatterns = [
    path("attention/", views.show_inbox, name="attention"),
    path("attention/live/", views.inbox_updates, name="attention-live"),
    path("attention/count/", views.inbox_count, name="attention-count"),
    path("attention/seen/", views.mark_all_seen, name="attention-mark-all"),
    path("attention/<uuid:item_id>/<str:action>/", views.mark_item, name="attention-mark"),
]

api_urlpatterns = [
    path(TASK + "acknowledge/", api.TaskAcknowledgeView.as_view()),
    path(SESSION + "acknowledge/", api.SessionAcknowledgeView.as_view()),
    path("attention/", api.AttentionListView.as_view()),
    path("attention/<uuid:item_id>/acknowledge/", api.AttentionItemAcknowledgeView.as_view()),
    path("attention/<uuid:item_id>/dismiss/", api.AttentionItemDismissView.as_view()),
]
