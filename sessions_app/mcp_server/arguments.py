"""Arguments of the tools. Their JSON schemas are what a model sees."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sessions_app.kernel.services.idempotency import KEY_LIMIT
from sessions_app.prompts.services import TEXT_LIMIT
from sessions_app.recovery.rules.resumability import Mode
from sessions_app.search.rules.queries import LONGEST_QUERY

PAGE_LIMIT: Final = 50
"""Maximum number of rows on one page."""
MESSAGE_LIMIT: Final = 100
"""Maximum number of messages on one page."""
MESSAGE_TEXT_LIMIT: Final = 50_000
"""Maximum number of characters of one message that a call can request."""
MAX_WAIT: Final = 300
"""Seconds that ``wait_for_turn`` waits at most."""
DEFAULT_WAIT: Final = 45
"""Shorter than the 60 seconds after which some clients give up on a tool."""


class Arguments(BaseModel):
    """The arguments of a tool; unknown ones are rejected, so that none is silently ignored."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def refuse_nul(cls, value: Any) -> Any:
        """Reject U+0000, which PostgreSQL cannot store."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("Text cannot contain U+0000 (the NUL character).")
        return value


SessionId = Annotated[UUID, Field(description="Id of the session, from list_sessions or start_task.")]


class SessionArguments(Arguments):
    """Names a session."""

    session_id: SessionId


class PreviewMergeArguments(SessionArguments):
    """A merge that is only looked at."""

    strategy: Annotated[Literal["merge", "squash", "rebase"], Field(description="How it would be merged.")] = "merge"


class MergeSessionArguments(SessionArguments):
    """A merge of the commit that was reviewed."""

    strategy: Annotated[Literal["merge", "squash", "rebase"], Field(description="How it is merged.")]
    branch_commit: Annotated[str, Field(max_length=64, description="The reviewed commit of the branch.")]
    target_commit: Annotated[str, Field(max_length=64, description="The commit of the base, from preview_merge.")]
    message: Annotated[
        str, Field(max_length=20_000, description="Message of the commit; empty: the suggested message.")
    ] = ""


class PreviewPushArguments(SessionArguments):
    """A push that is only looked at."""

    target: Annotated[
        Literal["branch", "base"], Field(description="The session's branch, or the base of its task after a merge.")
    ] = "branch"


class PushSessionArguments(SessionArguments):
    """A push of the commit that was reviewed, while the branch on the server is where it was."""

    target: Annotated[Literal["branch", "base"], Field(description="As for preview_push.")] = "branch"
    commit: Annotated[str, Field(max_length=64, description="The reviewed commit, from preview_push.")]
    remote_commit: Annotated[
        str,
        Field(max_length=64, description="Where the branch on the server is, from preview_push; empty: nowhere yet."),
    ]
    overwrite: Annotated[
        bool,
        Field(description="Leave commits behind that only the server has; on the session's own branch alone."),
    ] = False


class PageArguments(Arguments):
    """Names a page of a list."""

    page: Annotated[int, Field(ge=1, le=1_000_000, description="Page number, from 1.")] = 1
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT, description="Number of rows on a page.")] = 20


class ListSessionsArguments(PageArguments):
    """Which sessions to list."""

    task_id: Annotated[UUID | None, Field(description="Only the sessions of this task.")] = None


class ListTasksArguments(PageArguments):
    """Which tasks to list."""

    archived: Annotated[bool, Field(description="List archived tasks instead of active ones.")] = False


class SearchArguments(PageArguments):
    """What to search, and where."""

    words: Annotated[
        str,
        Field(
            min_length=1,
            max_length=LONGEST_QUERY,
            description="Words, all of which a text has to contain; quoted, they have to follow each other. The last "
            "may go on.",
        ),
    ]
    session_id: Annotated[UUID | None, Field(description="Only the conversation of this session.")] = None
    task_id: Annotated[UUID | None, Field(description="Only this task and its conversations.")] = None
    best_first: Annotated[bool, Field(description="The best match first instead of the newest.")] = False


class ReadConversationArguments(SessionArguments):
    """Which part of a conversation to read."""

    after: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,
            description="Return the messages after this seq, oldest first; 0 for the beginning. Null: the newest ones.",
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=MESSAGE_LIMIT, description="Maximum number of messages to return.")] = 30
    text_limit: Annotated[
        int,
        Field(
            ge=1, le=MESSAGE_TEXT_LIMIT, description="Maximum length of one message in characters; longer ones are cut."
        ),
    ] = 4_000


class StartTaskArguments(Arguments):
    """A new task with its first session."""

    title: Annotated[str, Field(min_length=1, max_length=300, description="A short title for the work.")]
    prompt: Annotated[
        str,
        Field(
            min_length=1, max_length=TEXT_LIMIT, description="The first prompt, with everything the agent must know."
        ),
    ]
    client_key: Annotated[
        str,
        Field(
            min_length=1,
            max_length=KEY_LIMIT,
            description="A key that you choose, for example a UUID. A repeated call with the same key and the same "
            "arguments starts nothing twice and returns the same session.",
        ),
    ]
    team: Annotated[
        int | None, Field(description="Id of the team; null if you can write in exactly one. See list_start_options.")
    ] = None
    repository_id: Annotated[
        UUID | None,
        Field(description="The git repository to work in; null if the team has exactly one. See list_start_options."),
    ] = None
    base_branch: Annotated[
        str, Field(max_length=255, description="Branch to start from; empty: where the repository's tasks start.")
    ] = ""
    agent_profile_id: Annotated[
        UUID | None, Field(description="The agent profile; null for the one you used last. See list_start_options.")
    ] = None
    executor_id: Annotated[
        UUID | None, Field(description="The executor; null for the one you used last. See list_start_options.")
    ] = None


class PromptSessionArguments(SessionArguments):
    """A prompt to send."""

    text: Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT, description="The prompt.")]
    message_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=128,
            description="An id that you choose for this prompt, for example a UUID. Repeat it to repeat the call "
            "safely: a known message_id is never sent twice. Use it in wait_for_turn.",
        ),
    ]
    cancel_open_question: Annotated[
        bool,
        Field(
            description="If the agent is waiting for a permission: withdraw its request and cancel its turn for this "
            "prompt. False: the call fails with permission_pending."
        ),
    ] = False
    deliver: Annotated[
        Literal["queue", "now"],
        Field(
            description="queue: a prompt of its own, after the turn that is running. now: hand it to that turn, if its "
            "agent takes prompts there (can_steer of get_session); otherwise it is queued. See steered_into."
        ),
    ] = "queue"


class WaitForTurnArguments(SessionArguments):
    """Which turn to wait for, and how long."""

    message_id: Annotated[
        str | None,
        Field(max_length=128, description="The prompt to wait for. Null: the newest one that was not withdrawn."),
    ] = None
    timeout_seconds: Annotated[
        int,
        Field(
            ge=1, le=MAX_WAIT, description="Maximum wait in seconds. Call again if the turn is not finished by then."
        ),
    ] = DEFAULT_WAIT


class AnswerPermissionArguments(SessionArguments):
    """An answer to a permission request or a question."""

    permission_id: Annotated[str, Field(max_length=64, description="Id of the permission request.")]
    option_id: Annotated[str, Field(max_length=128, description="Id of the option that you choose.")]
    content: Annotated[
        dict[str, Any] | None, Field(description="For an accepted question with a form: the fields, as in its schema.")
    ] = None


class ResumeSessionArguments(SessionArguments):
    """How to resume a session."""

    mode: Annotated[
        Mode,
        Field(
            description="auto continues in the best available way, and retries a failed or given-up session. "
            "resume requires the agent's own conversation. fresh_start begins a new conversation in the same "
            "workspace. accept_mismatch continues although the agent's conversation differs from the log. "
            "workspace_only opens the workspace without the agent."
        ),
    ] = Mode.AUTO
