"""One noun a file; nothing outside this package writes a status or a line of the log."""

from sessions_app.models.api_token import ApiToken
from sessions_app.models.attempt_count import AttemptCount
from sessions_app.models.attention import (
    AttentionItem,
    AttentionMark,
    Presence,
    raise_for_run,
    raise_for_workflow,
    raise_item,
    resolve,
    resolve_for_run,
    resolve_for_workflow,
)
from sessions_app.models.bulk import update_rows
from sessions_app.models.draft import Draft, Lease, LeaseLost, refresh_task, writing, writing_all
from sessions_app.models.event import NewEvent, SessionEvent, append, write_numbered
from sessions_app.models.intent import IDLE, OVERTAKING, QUEUED_FOR_CAPACITY, Intent, IntentKind
from sessions_app.models.login_link import LoginLink
from sessions_app.models.maintenance import Chore, Leftover, Orphaned
from sessions_app.models.message import (
    PART_LIMIT,
    TEXT_ROLES,
    Message,
    MessageDraft,
    MessagePart,
    append_texts,
    open_tools,
    texts_of,
    tools_named,
    unfinished_messages,
    write_messages,
)
from sessions_app.models.metric_count import MetricCount
from sessions_app.models.notification import DeliveredItem, Delivery, NotificationSettings, Webhook
from sessions_app.models.preferences import Preferences
from sessions_app.models.prompt import Prompt
from sessions_app.models.receipt import ContinuityReceipt
from sessions_app.models.resume_token import ResumeToken
from sessions_app.models.run import PermissionRequest, Run
from sessions_app.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT, POLICIES, TaskSession
from sessions_app.models.sweep import RecoverySweep, Supervisor, SweepOutcome
from sessions_app.models.sweep_request import SweepRequest
from sessions_app.models.task import Repository, Task
from sessions_app.models.team_policy import TeamPolicy
from sessions_app.models.team_role import TeamRole
from sessions_app.models.workflow import NodeRun, Workflow, WorkflowRun

__all__ = [
    "CANCEL_IGNORED",
    "IDLE",
    "INTERRUPTED_WAIT",
    "OVERTAKING",
    "PART_LIMIT",
    "POLICIES",
    "QUEUED_FOR_CAPACITY",
    "TEXT_ROLES",
    "ApiToken",
    "AttemptCount",
    "AttentionItem",
    "AttentionMark",
    "Chore",
    "ContinuityReceipt",
    "DeliveredItem",
    "Delivery",
    "Draft",
    "Intent",
    "IntentKind",
    "Lease",
    "LeaseLost",
    "Leftover",
    "LoginLink",
    "Message",
    "MessageDraft",
    "MessagePart",
    "MetricCount",
    "NewEvent",
    "NodeRun",
    "NotificationSettings",
    "Orphaned",
    "PermissionRequest",
    "Preferences",
    "Presence",
    "Prompt",
    "RecoverySweep",
    "Repository",
    "ResumeToken",
    "Run",
    "SessionEvent",
    "Supervisor",
    "SweepOutcome",
    "SweepRequest",
    "Task",
    "TaskSession",
    "TeamPolicy",
    "TeamRole",
    "Webhook",
    "Workflow",
    "WorkflowRun",
    "append",
    "append_texts",
    "open_tools",
    "raise_for_run",
    "raise_for_workflow",
    "raise_item",
    "refresh_task",
    "resolve",
    "resolve_for_run",
    "resolve_for_workflow",
    "texts_of",
    "tools_named",
    "unfinished_messages",
    "update_rows",
    "write_messages",
    "write_numbered",
    "writing",
    "writing_all",
]
