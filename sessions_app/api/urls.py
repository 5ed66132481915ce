"""Where everything of the API is, under ``/api/v1/`` (interfaces 3)."""

from __future__ import annotations

from django.urls import path, re_path, register_converter

from sessions_app.api.views import (
    asking,
    attention,
    bulk,
    catalogue,
    conversation,
    documentation,
    notifications,
    policies,
    sessions,
    stream,
    tasks,
    tokens,
    waits,
    workflows,
    workspace,
)


class NameConverter:
    """What a caller or agentctl named something: 1 to 128 characters, slashes included, no controls."""

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
    path("sessions/bulk/", bulk.Bulk.as_view()),
    path("tasks/", tasks.Tasks.as_view()),
    path(_TASK, tasks.TaskDetail.as_view()),
    path(_TASK + "archive/", tasks.Archive.as_view()),
    path(_TASK + "unarchive/", tasks.Unarchive.as_view()),
    path(_TASK + "done/", tasks.Done.as_view()),
    path(_TASK + "cancel/", tasks.Cancel.as_view()),
    path(_TASK + "reopen/", tasks.Reopen.as_view()),
    path(_TASK + "sessions/", sessions.Sessions.as_view()),
    path(_SESSION, sessions.SessionDetail.as_view()),
    path(_SESSION + "status/", sessions.Status.as_view()),
    path(_SESSION + "resume/", sessions.Resume.as_view()),
    path(_SESSION + "prompt/", sessions.Prompt.as_view()),
    path(_SESSION + "cancel/", sessions.Cancel.as_view()),
    path(_SESSION + "stop/", sessions.Stop.as_view()),
    path(_SESSION + "close/", sessions.Close.as_view()),
    path(_SESSION + "acknowledge/", attention.AcknowledgeSession.as_view()),
    path(_SESSION + "messages/", conversation.Messages.as_view()),
    path(_SESSION + "events/", conversation.Events.as_view()),
    path(_SESSION + "events/stream", stream.Stream.as_view()),
    path(_SESSION + "receipts/", conversation.Receipts.as_view()),
    path(_SESSION + "runs/", conversation.Runs.as_view()),
    path(_SESSION + "files/", workspace.Files.as_view()),
    path(_SESSION + "files/content/", workspace.Content.as_view()),
    path(_SESSION + "git/status/", workspace.Status.as_view()),
    path(_SESSION + "git/diff/", workspace.Diff.as_view()),
    path(_SESSION + "git/log/", workspace.Log.as_view()),
    path(_SESSION + "git/commit/", workspace.Commit.as_view()),
    path(_SESSION + "permissions/", asking.Permissions.as_view()),
    path(_SESSION + "permissions/<name:permission_id>/", asking.PermissionDetail.as_view()),
    path(_SESSION + "prompts/", asking.Prompts.as_view()),
    path(_PROMPT + "resend/", asking.Resend.as_view()),
    path(_PROMPT + "continue/", asking.Continue.as_view()),
    path(_PROMPT + "dismiss/", asking.Dismiss.as_view()),
    path(_PROMPT, asking.PromptDetail.as_view()),
    path(_SESSION + "waits/", waits.Waits.as_view()),
    path(_SESSION + "waits/<name:wait_id>/again/", waits.WaitsAgain.as_view()),
    path(_SESSION + "waits/<name:wait_id>/continue/", waits.WaitsContinue.as_view()),
    path("runs/resume/", waits.RunsResume.as_view()),
    path("repositories/", tasks.Repositories.as_view()),
    path("agent-types/", catalogue.AgentTypes.as_view()),
    path("agent-profiles/", catalogue.AgentProfiles.as_view()),
    path("executors/", catalogue.Executors.as_view()),
    path("executors/running/", catalogue.Running.as_view()),
    path("executors/<uuid:executor_id>/", catalogue.ExecutorView.as_view()),
    path("executors/<uuid:executor_id>/probe/", catalogue.Probe.as_view()),
    path("sweeps/", catalogue.Sweeps.as_view()),
    path("sweeps/requests/<uuid:request_id>/", catalogue.SweepRequested.as_view()),
    path("sweeps/<uuid:sweep_id>/", catalogue.SweepView.as_view()),
    path("attention/", attention.Attention.as_view()),
    path("attention/<uuid:item_id>/acknowledge/", attention.AcknowledgeItem.as_view()),
    path("attention/<uuid:item_id>/dismiss/", attention.DismissItem.as_view()),
    path("notifications/", notifications.Notifications.as_view()),
    path("notifications/test/", notifications.TestEmail.as_view()),
    path("notifications/deliveries/", notifications.Deliveries.as_view()),
    path("webhooks/", notifications.Webhooks.as_view()),
    path("webhooks/<uuid:webhook_id>/", notifications.WebhookDetail.as_view()),
    path("webhooks/<uuid:webhook_id>/rotate/", notifications.RotateWebhook.as_view()),
    path("webhooks/<uuid:webhook_id>/test/", notifications.TestWebhook.as_view()),
    path("teams/<int:team_id>/policy/", policies.TeamPolicyView.as_view()),
    path("workflows/", workflows.Workflows.as_view()),
    path("workflows/check/", workflows.Check.as_view()),
    path("workflows/<uuid:workflow_id>/", workflows.WorkflowView.as_view()),
    path("workflows/<uuid:workflow_id>/runs/", workflows.RunsOfWorkflow.as_view()),
    path("workflows/<uuid:workflow_id>/triggers/", workflows.Triggers.as_view()),
    path("workflows/<uuid:workflow_id>/triggers/confirm/", workflows.ConfirmationOfTriggers.as_view()),
    path("workflow-runs/", workflows.WorkflowRuns.as_view()),
    path("workflow-runs/<uuid:run_id>/", workflows.RunDetail.as_view()),
    path("workflow-runs/<uuid:run_id>/cancel/", workflows.CancelRun.as_view()),
    path("workflow-runs/<uuid:run_id>/resume/", workflows.Resume.as_view()),
    path("tokens/", tokens.Tokens.as_view()),
    path("tokens/<uuid:token_id>/", tokens.TokenDetail.as_view()),
    path("schema/", documentation.Schema.as_view(), name="api-schema"),
    path("docs/", documentation.Documentation.as_view(), name="api-docs"),
    re_path("", documentation.NoSuchAddress.as_view()),
]
