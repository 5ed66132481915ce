"""Merges and pushes of a session's branch: requested, done, refused, or of unknown outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind, FailedFinish
from sessions_app.finish.rules.finish import KIND_NOUNS, FinishKind, branch_name
from sessions_app.kernel.events.base import Event, Inbox
from sessions_app.sessions.rules.situation_facts import Label

_VERBS: Final[Mapping[str, str]] = {FinishKind.MERGE: "merged into", FinishKind.PUSH: "pushed to"}
_KINDS = ", ".join(f"`{kind}`" for kind in FinishKind)


def _resolve(inbox: Inbox, resolution: str, kind: str, target: str) -> None:
    """Settle the item about an earlier attempt to reach the same target."""
    key = notices.finish_key(inbox.session_id, target, is_push=kind == FinishKind.PUSH)
    inbox.resolve(resolution, kinds=(AttentionKind.FINISH,), key=key)


def _raise(inbox: Inbox, kind: str, attempt: FailedFinish) -> None:
    """Raise the item about an attempt anew, so that whoever has seen or dismissed an earlier one is told."""
    _resolve(inbox, "tried_again", kind, attempt.target)
    inbox.raise_item(notices.finish_notice(inbox.session_id, attempt))


class FinishRequested(
    Event,
    name="session.finish.requested",
    recorded_by="a user's request",
):
    """A merge or push was requested; it has not happened yet."""

    intent_id: str
    kind: str = Field(description=_KINDS)
    strategy: str = Field(description="`merge`, `squash` or `rebase`; empty for a push")
    target: str = Field(description="the branch that is to be moved, as a full ref")
    expected_commit: str = Field(description="where the target was when it was confirmed; empty: it did not exist")
    branch_commit: str = Field(description="the commit that was reviewed")
    by: str

    def timeline_label(self) -> Label:
        """Say what and into which branch."""
        return Label(f"A {KIND_NOUNS.get(self.kind, 'change')} into {branch_name(self.target)} was requested", "busy")


class FinishDone(
    Event,
    name="session.finish.done",
    recorded_by="the job *finish*, once the target has the commit",
    audited=True,
):
    """A merge or push has happened."""

    intent_id: str
    kind: str = Field(description=_KINDS)
    target: str
    branch_commit: str
    result_commit: str = Field(description="where the target is now")

    def timeline_label(self) -> Label:
        """Say where the branch is now."""
        verb = _VERBS.get(self.kind, "brought to")
        return Label(f"The branch was {verb} {branch_name(self.target)} ({self.result_commit[:8]})", "good")

    def update_inbox(self, inbox: Inbox) -> None:
        """Settle the item about earlier attempts."""
        _resolve(inbox, "done", self.kind, self.target)


class FinishRefused(
    Event,
    name="session.finish.refused",
    recorded_by="the job *finish*, when it cannot be done as it was confirmed",
    audited=True,
    raises=(AttentionKind.FINISH,),
):
    """A merge or push was not carried out; nothing has changed."""

    intent_id: str
    kind: str = Field(description=_KINDS)
    target: str
    error_code: str
    error_message: str
    conflicts: list[str] = Field(default_factory=list, description="files in conflict, at most 100")

    def timeline_label(self) -> Label:
        """Say why."""
        return Label(f"The {KIND_NOUNS.get(self.kind, 'change')} was not carried out. {self.error_message}", "ask")

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item with the reason."""
        attempt = FailedFinish(
            self.target,
            self.error_message,
            is_push=self.kind == FinishKind.PUSH,
            has_conflicts=bool(self.conflicts),
        )
        _raise(inbox, self.kind, attempt)


class FinishUnknown(
    Event,
    name="session.finish.unknown",
    recorded_by="the job *finish*, when it cannot find out whether it has happened",
    audited=True,
    raises=(AttentionKind.FINISH,),
):
    """It is not known whether a merge or push has happened; it is not tried again."""

    intent_id: str
    kind: str = Field(description=_KINDS)
    target: str
    error_code: str
    error_message: str

    def timeline_label(self) -> Label:
        """Say what is not known."""
        noun = KIND_NOUNS.get(self.kind, "change")
        return Label(f"It is not known whether the {noun} has happened. {self.error_message}", "ask")

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item that says what to look at."""
        is_push = self.kind == FinishKind.PUSH
        _raise(inbox, self.kind, FailedFinish(self.target, self.error_message, is_push=is_push, is_unknown=True))
