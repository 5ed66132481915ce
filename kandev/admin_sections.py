"""The sections of the admin: its models as staff look for them, not by the Django app that holds their code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the admin's index, with the models below it in their order."""

    slug: str
    """Its part of the address ``/admin/section/…/``."""
    name: str
    models: tuple[str, ...]
    """Labels, such as ``sessions_app.task``."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of models of other projects, whose own ones are not the words of our pages."""


def _ours(*names: str) -> tuple[str, ...]:
    return tuple(f"sessions_app.{name}" for name in names)


SECTIONS: Final = (
    Section(
        "sessions",
        "Tasks and sessions",
        (
            *_ours("task", "tasksession", "prompt", "attachment", "permissionrequest", "turn", "waitkey"),
            *_ours("suspension", "backgroundwork", "finishintent", "reviewcomment", "taskplan", "tasklabel"),
        ),
    ),
    Section(
        "agents",
        "Agents and executors",
        (
            "executors_app.agentprofile",
            "executors_app.executor",
            "executors_app.executorrunning",
            *_ours("repository", "repositoryremote", "mcpserverlist", "agentsettings", "reportedagent"),
            "executors_app.agentcapability",
            *_ours("agenttestresult"),
        ),
    ),
    Section(
        "hosts",
        "Hosts",
        _ours(
            "host",
            "hostmaintenance",
            "hostprocess",
            "repositorysighting",
            "supervisor",
            "orphaned",
            "datasize",
            "backup",
        ),
    ),
    Section(
        "recovery",
        "Recovery",
        _ours("teampolicy", "continuityreceipt", "recoverysweep", "sweepoutcome", "sweeprequest", "preparedhistory"),
    ),
    Section("workflows", "Workflows", ("workflows.workflow", "workflows.workflowrun", "workflows.noderun")),
    Section(
        "notifications",
        "Inbox and notifications",
        (
            *_ours("attentionitem", "attentionmark", "presence"),
            "notifications.notificationsettings",
            "notifications.webhook",
            "notifications.pushdevice",
            "notifications.pushkey",
            "notifications.delivery",
            "notifications.delivereditem",
        ),
    ),
    Section(
        "people",
        "People and teams",
        (
            "auth.user",
            "auth.group",
            "accounts.teamrole",
            "accounts.apitoken",
            "accounts.loginlink",
            "accounts.attemptcount",
            "accounts.preferences",
            *_ours("sessionmark", "viewedversion"),
        ),
        {"auth.group": "Teams"},
    ),
    Section("usage", "Usage and budgets", _ours("turnusage", "usagebudget", "budgethold")),
    Section(
        "records",
        "Records",
        _ours("sessionevent", "message", "messagepart", "intent", "renderedtext", "searchdocument", "searchcursor"),
    ),
    Section(
        "maintenance",
        "Maintenance",
        (
            *_ours("chore", "leftover", "removedworktree", "metriccount"),
            "executors_app.secretkeycheck",
            "django_q.schedule",
            "django_q.ormq",
            "django_q.success",
            "django_q.failure",
        ),
        {
            "django_q.schedule": "Schedules of the worker",
            "django_q.ormq": "Background jobs that wait",
            "django_q.success": "Background jobs that succeeded",
            "django_q.failure": "Background jobs that failed",
        },
    ),
)
"""Every model of the admin belongs to one of them."""
SECTION_OF: Final[Mapping[str, Section]] = {model: section for section in SECTIONS for model in section.models}
