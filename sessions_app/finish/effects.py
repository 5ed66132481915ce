"""What changes outside the database when an intent is carried out, by its kind."""

from __future__ import annotations

from typing import Final, Protocol

from sessions_app.finish.merging import MergeEffect
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import FinishKind
from sessions_app.remotes.pushing import PushEffect


class Effect(Protocol):
    """How one kind of intent is carried out. Every call may be repeated, also after a crash in the middle of it.

    All raise Refusal if it cannot be done as it was confirmed, and ExecutorError if a repository cannot be used now.
    """

    def is_done(self, intent: FinishIntent) -> bool:
        """Look whether the target has the result already. Raises Refusal if it has moved to something else."""

    def prepare(self, intent: FinishIntent) -> str:
        """Check that it may be done, and return the commit to which the target is moved; changes nothing outside.

        Repeated for the same intent, it returns the same commit.
        """

    def apply(self, intent: FinishIntent) -> None:
        """Move the target from ``expected_commit`` to ``result_commit``, only if it is still where it was."""


EFFECTS: Final[dict[FinishKind, Effect]] = {FinishKind.MERGE: MergeEffect(), FinishKind.PUSH: PushEffect()}
"""Every kind with how it is carried out."""
