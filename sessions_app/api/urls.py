"""URLs of the API under ``/api/v1/``."""

from __future__ import annotations

from django.urls import path, re_path, register_converter
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import IsAuthenticated

from sessions_app.accounts import urls as accounts
from sessions_app.api.errors import NotFoundView
from sessions_app.api.views import (
    agents,
    catalogue,
    conversation,
    event_stream,
    sessions,
    tasks,
    workspace,
)
from sessions_app.notifications import urls as notifications
from sessions_app.workflows import urls as workflows


class NameConverter:
    """An id chosen by a client or agentctl: 1 to 128 characters, including slashes, without control characters."""

    regex = r"[^\x00-\x1f]{1,128}"

    def to_python(self, value: str) -> str:
        """The name."""
        return value

    def to_url(self, value: str) -> str:
        """The name."""
        return value


register_converter(NameConverter, "name")

_TASK = "tasks/<uuid:task_id>/"
_SESSION = _TASK + "sessions/<uuid:session_id>/"
_PROMPT = _SESSION + "prompts/<name:message_id>/"

urlpatterns = [
    path("sessions/bulk/", sessions.SessionBulkView.as_view()),
    path("tasks/", tasks.TaskListCreateView.as_view()),
    path(_TASK, tasks.TaskDetailView.as_view()),
    path(_TASK + "archive/", tasks.TaskArchiveView.as_view()),
    path(_TASK + "unarchive/", tasks.TaskUnarchiveView.as_view()),
    path(_TASK + "done/", tasks.TaskDoneView.as_view()),
    path(_TASK + "cancel/", tasks.TaskCancelView.as_view()),
    path(_TASK + "reopen/", tasks.TaskReopenView.as_view()),
    path(_TASK + "acknowledge/", tasks.TaskAcknowledgeView.as_view()),
    path(_TASK + "sessions/", sessions.SessionListCreateView.as_view()),
    path(_SESSION, sessions.SessionDetailView.as_view()),
    path(_SESSION + "status/", sessions.SessionStatusView.as_view()),
    path(_SESSION + "resume/", sessions.SessionResumeView.as_view()),
    path(_SESSION + "prompt/", sessions.PromptCreateView.as_view()),
    path(_SESSION + "cancel/", sessions.SessionCancelView.as_view()),
    path(_SESSION + "stop/", sessions.SessionStopView.as_view()),
    path(_SESSION + "more-output/", sessions.SessionMoreOutputView.as_view()),
    path(_SESSION + "close/", sessions.SessionCloseView.as_view()),
    path(_SESSION + "settings/", sessions.SessionSettingsView.as_view()),
    path(_SESSION + "login/", agents.SessionLoginView.as_view()),
    path(_SESSION + "logout/", agents.SessionLogoutView.as_view()),
    path(_SESSION + "acknowledge/", tasks.SessionAcknowledgeView.as_view()),
    path(_SESSION + "messages/", conversation.MessageListView.as_view()),
    path(_SESSION + "events/", conversation.EventListView.as_view()),
    path(_SESSION + "events/stream", event_stream.EventStreamView.as_view()),
    path(_SESSION + "receipts/", conversation.ReceiptListView.as_view()),
    path(_SESSION + "runs/", conversation.RunListView.as_view()),
    path(_SESSION + "files/", workspace.FolderView.as_view()),
    path(_SESSION + "files/content/", workspace.FileContentView.as_view()),
    path(_SESSION + "git/status/", workspace.GitStatusView.as_view()),
    path(_SESSION + "git/diff/", workspace.GitDiffView.as_view()),
    path(_SESSION + "git/log/", workspace.GitLogView.as_view()),
    path(_SESSION + "git/commit/", workspace.GitCommitView.as_view()),
    path(_SESSION + "permissions/", conversation.PermissionListView.as_view()),
    path(_SESSION + "permissions/<name:permission_id>/", conversation.PermissionAnswerView.as_view()),
    path(_SESSION + "prompts/", conversation.PromptListView.as_view()),
    path(_PROMPT + "resend/", conversation.PromptResendView.as_view()),
    path(_PROMPT + "continue/", conversation.PromptContinueView.as_view()),
    path(_PROMPT + "dismiss/", conversation.PromptDismissView.as_view()),
    path(_PROMPT, conversation.PromptDetailView.as_view()),
    path(_SESSION + "attachments/<str:sha256>/", conversation.AttachmentContentView.as_view(), name="attachment"),
    path(_SESSION + "waits/", conversation.WaitCreateView.as_view()),
    path(_SESSION + "waits/<name:wait_id>/again/", conversation.WaitAgainView.as_view()),
    path(_SESSION + "waits/<name:wait_id>/continue/", conversation.WaitContinueView.as_view()),
    path("runs/resume/", conversation.RunResumeView.as_view()),
    path("repositories/", tasks.RepositoryListCreateView.as_view()),
    path("agent-types/", catalogue.AgentTypeListView.as_view()),
    path("agent-types/<slug:name>/login/", agents.AgentTypeLoginView.as_view()),
    path("agent-types/<slug:name>/logout/", agents.AgentTypeLogoutView.as_view()),
    path("agent-profiles/", catalogue.AgentProfileListCreateView.as_view()),
    path("executors/", catalogue.ExecutorListCreateView.as_view()),
    path("executors/running/", catalogue.ExecutionListView.as_view()),
    path("executors/<uuid:executor_id>/", catalogue.ExecutorDetailView.as_view()),
    path("executors/<uuid:executor_id>/probe/", catalogue.ExecutorProbeView.as_view()),
    path("sweeps/", catalogue.SweepListCreateView.as_view()),
    path("sweeps/requests/<uuid:request_id>/", catalogue.SweepRequestDetailView.as_view()),
    path("sweeps/<uuid:sweep_id>/", catalogue.SweepDetailView.as_view()),
    path("attention/", tasks.AttentionListView.as_view()),
    path("attention/<uuid:item_id>/acknowledge/", tasks.AttentionItemAcknowledgeView.as_view()),
    path("attention/<uuid:item_id>/dismiss/", tasks.AttentionItemDismissView.as_view()),
    path("teams/<int:team_id>/policy/", sessions.TeamPolicyDetailView.as_view()),
    path("teams/<int:team_id>/mcp-servers/", agents.TeamMcpServerListView.as_view()),
    path("repositories/<uuid:repository_id>/mcp-servers/", agents.RepositoryMcpServerListView.as_view()),
    *accounts.api_urlpatterns,
    *notifications.api_urlpatterns,
    *workflows.api_urlpatterns,
    path("version/", catalogue.VersionView.as_view()),
    path("schema/", SpectacularAPIView.as_view(permission_classes=[IsAuthenticated]), name="api-schema"),
    # All files of this page are served from this origin, and nothing is inline.
    path(
        "docs/",
        SpectacularSwaggerSplitView.as_view(
            permission_classes=[IsAuthenticated], template_name="api/docs.html", url_name="api-schema"
        ),
        name="api-docs",
    ),
    re_path("", NotFoundView.as_view()),
]
