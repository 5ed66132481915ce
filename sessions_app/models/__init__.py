"""One noun a file; nothing outside this package writes a status or a line of the log."""

from sessions_app.models.draft import Draft, Lease, LeaseLost, refresh_task, writing
from sessions_app.models.event import NewEvent, SessionEvent, append, reserve, write_reserved
from sessions_app.models.intent import OVERTAKING, QUEUED_FOR_CAPACITY, Intent, IntentKind
from sessions_app.models.login_link import LoginLink
from sessions_app.models.message import (
    PART_LIMIT,
    Message,
    MessageDraft,
    MessagePart,
    append_texts,
    drafts_of,
    texts_of,
    write_messages,
)
from sessions_app.models.prompt import Prompt
from sessions_app.models.receipt import ContinuityReceipt
from sessions_app.models.resume_token import ResumeToken
from sessions_app.models.run import PermissionRequest, Run
from sessions_app.models.session import POLICIES, TaskSession
from sessions_app.models.sweep import RecoverySweep, Supervisor, SweepOutcome
from sessions_app.models.sweep_request import SweepRequest
from sessions_app.models.task import Repository, Task
from sessions_app.models.team_role import TeamRole

__all__ = [
    "OVERTAKING",
    "PART_LIMIT",
    "POLICIES",
    "QUEUED_FOR_CAPACITY",
    "ContinuityReceipt",
    "Draft",
    "Intent",
    "IntentKind",
    "Lease",
    "LeaseLost",
    "LoginLink",
    "Message",
    "MessageDraft",
    "MessagePart",
    "NewEvent",
    "PermissionRequest",
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
    "TeamRole",
    "append",
    "append_texts",
    "drafts_of",
    "refresh_task",
    "reserve",
    "texts_of",
    "write_messages",
    "write_reserved",
    "writing",
]
