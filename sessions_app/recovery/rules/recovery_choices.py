"""The ways to continue a session whose agent is not running, as pages, API and MCP server offer them.

Whether an agent denies that it can restore a conversation, or claims it and fails, makes no difference to its user:
both get the same choices, in the same words. Only the first one differs: what may still restore the conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sessions_app.recovery.rules.resumability import Assessment, Mode, Reason, assess_mode, token_was_rejected

OFFERING_ACTIONS: Final = frozenset({"try_again", "fresh_start", "new_session", "choose_conversation"})
"""Actions of a situation that offer these choices."""


class Choice(StrEnum):
    """A way to continue; ``choices`` of a status."""

    TRY_AGAIN = "try_again"
    ACCEPT_CONVERSATION = "accept_conversation"
    OLD_CONVERSATION = "old_conversation"
    START_FRESH = "start_fresh"
    SESSION_IN_WORKTREE = "session_in_worktree"
    NEW_SESSION = "new_session"


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """A choice with the words on its button."""

    choice: Choice
    text: str
    mode: Mode | None = None
    """The mode of the resume request that carries it out; None: it is a new session."""


TRY_AGAIN: Final = RecoveryChoice(Choice.TRY_AGAIN, "Try again", Mode.AUTO)
ACCEPT: Final = RecoveryChoice(Choice.ACCEPT_CONVERSATION, "Accept the loaded conversation", Mode.ACCEPT_MISMATCH)
OLD_CONVERSATION: Final = RecoveryChoice(Choice.OLD_CONVERSATION, "Try the old conversation again", Mode.RESUME)
START_FRESH: Final = RecoveryChoice(Choice.START_FRESH, "Start fresh in this workspace", Mode.FRESH_START)
SESSION_IN_WORKTREE: Final = RecoveryChoice(Choice.SESSION_IN_WORKTREE, "New session in this worktree")
NEW_SESSION: Final = RecoveryChoice(Choice.NEW_SESSION, "Create new session")

_WITHOUT_CONVERSATION: Final = (START_FRESH, SESSION_IN_WORKTREE, NEW_SESSION)


def recovery_choices(assessment: Assessment, *, shares_worktree: bool) -> list[RecoveryChoice]:
    """Return the choices that would not be refused, the one that may keep the conversation first.

    ``shares_worktree``: whether a new session could continue in the session's worktree.
    """
    offered = [*_with_conversation(assessment), *_WITHOUT_CONVERSATION]
    if assessment.cause.resume_reason is Reason.WORKTREE_MISSING:
        return [TRY_AGAIN, NEW_SESSION]  # a new try looks for it again: its disk may have been mounted since
    if not shares_worktree:
        offered.remove(SESSION_IN_WORKTREE)
    return [each for each in offered if each.mode is None or assess_mode(assessment, each.mode).allowed]


def _with_conversation(assessment: Assessment) -> list[RecoveryChoice]:
    """Return what may still restore the conversation; nothing if the agent has no means to do so."""
    if assessment.has_mismatch:
        return [ACCEPT]
    if token_was_rejected(assessment):
        return [OLD_CONVERSATION]
    return [TRY_AGAIN]
