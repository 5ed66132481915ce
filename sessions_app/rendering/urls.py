"""URLs of what is shown beside the text of a conversation."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.rendering import views

urlpatterns = [
    path(SESSION + "messages/<uuid:entry_id>/images/<str:digest>/", views.message_image, name="message-image"),
    path(SESSION + "requests/<name:request_id>/images/<str:digest>/", views.request_image, name="request-image"),
]
