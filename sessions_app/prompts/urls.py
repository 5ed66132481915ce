"""URLs of prompts: the page that edits one, earlier prompts for the composer, and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.prompts import api, views

urlpatterns = [
    path(SESSION + "edit-prompt/", views.edit_prompt, name="session-edit-prompt"),
    path(SESSION + "prompt-history/", views.prompt_history, name="session-prompt-history"),
]

api_urlpatterns = [
    path(SESSION + "prompt/", api.PromptCreateView.as_view()),
    path(SESSION + "prompts/", api.PromptListView.as_view()),
    path(SESSION + "prompts/<name:message_id>/resend/", api.PromptResendView.as_view()),
    path(SESSION + "prompts/<name:message_id>/continue/", api.PromptContinueView.as_view()),
    path(SESSION + "prompts/<name:message_id>/send-now/", api.PromptSendNowView.as_view()),
    path(SESSION + "prompts/<name:message_id>/dismiss/", api.PromptDismissView.as_view()),
    path(SESSION + "prompts/<name:message_id>/", api.PromptDetailView.as_view()),
    path(SESSION + "attachments/<name:sha256>/", api.AttachmentContentView.as_view(), name="attachment"),
]
