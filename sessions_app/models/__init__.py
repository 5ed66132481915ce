"""The tables of sessions and the transaction that changes them.

Nothing outside this package writes a session's states or its log.
"""

from sessions_app.models.agents import AgentSettings, McpServerList, ReportedAgent
from sessions_app.models.attention import (
    AttentionItem,
    AttentionMark,
    Presence,
    raise_for_run,
    raise_for_workflow,
    resolve_for_run,
    resolve_for_workflow,
)
from sessions_app.models.attention_rules import raise_item, resolve_items
from sessions_app.models.bulk import update_rows
from sessions_app.models.event import NewEvent, SessionEvent, append_events, write_numbered_events
from sessions_app.models.histories import PreparedHistory
from sessions_app.models.message import (
    PART_LIMIT,
    TEXT_ROLES,
    Attachment,
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
from sessions_app.models.operations import (
    Chore,
    Leftover,
    MetricCount,
    Orphaned,
    RecoverySweep,
    Supervisor,
    SweepOutcome,
    SweepRequest,
)
from sessions_app.models.rendered_text import RenderedText
from sessions_app.models.runs import (
    AGENT_AWAITED_SINCE,
    IDLE_REASON,
    OVERTAKING_KINDS,
    QUEUED_FOR_CAPACITY,
    ContinuityReceipt,
    Intent,
    IntentKind,
    PermissionRequest,
    Prompt,
)
from sessions_app.models.session import CANCEL_IGNORED, INTERRUPTED_WAIT, Repository, Task, TaskSession, TeamPolicy
from sessions_app.models.side_effects import SIDE_EFFECTS
from sessions_app.models.transactions import (
    Lease,
    LeaseLost,
    SessionTransaction,
    refresh_task_state,
    register_side_effects,
    session_transaction,
    session_transactions,
)
from sessions_app.models.turns import Run, Turn, newest_turn_of
from sessions_app.models.waits import ResumeToken

register_side_effects(SIDE_EFFECTS)
