"""The tables of sessions and the transaction that changes them.

Nothing outside this package writes a session's states or its log.
"""

from sessions_app.agents.models import AgentSettings, AgentTestResult, McpServerList, ReportedAgent
from sessions_app.attention.models import (
    AttentionItem,
    AttentionMark,
    Presence,
    raise_for_run,
    raise_for_workflow,
    resolve_for_run,
    resolve_for_workflow,
)
from sessions_app.attention.raising import raise_item, resolve_items
from sessions_app.background.models import BackgroundWork
from sessions_app.catalogue.models import Repository
from sessions_app.finish.models import FinishIntent
from sessions_app.hosts.models import Host, HostMaintenance, HostProcess
from sessions_app.kernel.bulk import update_rows
from sessions_app.kernel.models.event import SessionEvent
from sessions_app.kernel.models.intent import (
    AGENT_AWAITED_SINCE,
    DRAINED_REASON,
    FITS,
    IDLE_REASON,
    OVERTAKING_KINDS,
    PLACEMENT_WAIT,
    QUEUED_FOR_CAPACITY,
    REFUSED_BY_HOST,
    Intent,
    IntentKind,
)
from sessions_app.kernel.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT, Task, TaskSession
from sessions_app.kernel.transactions import (
    Lease,
    LeaseLost,
    NewEvent,
    SessionTransaction,
    append_events,
    refresh_task_state,
    session_transaction,
    session_transactions,
    write_numbered_events,
)
from sessions_app.maintenance.models import Backup, Chore, DataSize, Leftover, Orphaned, RemovedWorktree
from sessions_app.metrics.models import MetricCount
from sessions_app.navigation.models import SessionMark
from sessions_app.permissions.models import PermissionRequest
from sessions_app.placement.models import RepositorySighting
from sessions_app.planning.models import TaskLabel, TaskPlan
from sessions_app.prompts.models import Attachment, Prompt
from sessions_app.recovery.models import (
    ContinuityReceipt,
    PreparedHistory,
    RecoverySweep,
    SweepOutcome,
    SweepRequest,
    TeamPolicy,
)
from sessions_app.remotes.models import RepositoryRemote
from sessions_app.rendering.models import RenderedText
from sessions_app.review.models import ReviewComment, ViewedVersion
from sessions_app.search.models import SearchCursor, SearchDocument
from sessions_app.stream.models import (
    PART_LIMIT,
    TEXT_ROLES,
    Message,
    MessageDraft,
    MessagePart,
    answers_of,
    append_texts,
    first_parts,
    leading_texts,
    messages_of,
    newest_answer,
    newest_tool,
    open_tool_sizes,
    open_tools,
    random_ids,
    text_pieces,
    texts_of,
    tools_by_id,
    tools_of_turn,
    unfinished_messages,
    write_messages,
)
from sessions_app.supervisor.models import Supervisor
from sessions_app.suspensions.models import Suspension
from sessions_app.turns.models import Run, Turn, newest_turn_of
from sessions_app.usage.models import BudgetHold, TurnUsage, UsageBudget
from sessions_app.waits.models import ResumeToken, WaitKey
