"""Pushes, as they are carried out: from the team's repository to the one server that staff have recorded for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from executors_app.repositories import bare
from executors_app.repositories.remote_failures import SENTENCES, RemoteCause, RemoteFailed
from executors_app.repositories.remotes import MESSAGES_LIMIT, Remote
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import OutcomeUnknown, Refusal, branch_name
from sessions_app.models import RepositoryRemote
from sessions_app.redaction.redactor import redact
from sessions_app.redaction.visible_text import make_visible

REMOTE_CHANGED: Final = "push_remote_changed"
COMMIT_MISSING: Final = "push_commit_missing"
OUTCOME_UNKNOWN: Final = "push_outcome_unknown"
LOOK_WAIT: Final = 90.0
"""Seconds to wait for another connection to the server before the attempt counts as failed.

All attempts together wait for longer than a connection can last that a killed process has left behind.
"""
_IN_DOUBT: Final = frozenset({RemoteCause.TIMEOUT, RemoteCause.UNREACHABLE, RemoteCause.FAILED, RemoteCause.BUSY})
"""After these, the server may have taken the push, or may take it at the next attempt."""


class PushEffect:
    """Moves one branch on the server to the commit that was confirmed.

    The server is asked before a push is repeated. One connection to it is open at a time, also across a crash, so the
    answer tells what an earlier attempt has done.
    """

    def is_done(self, intent: FinishIntent) -> bool:
        """Look whether the server has the commit. Raises OutcomeUnknown if the branch there is somewhere else."""
        found = self._look(intent)
        if found == intent.result_commit:
            return True
        if found == intent.expected_commit:
            return False
        raise OutcomeUnknown(
            OUTCOME_UNKNOWN,
            f"{branch_name(intent.target_ref)} on the server is now at {found[:12] or 'nothing'}. Someone may have "
            "moved it after this push, or before it. It is not pushed again: look at the server.",
        )

    def prepare(self, intent: FinishIntent) -> str:
        """Return the commit that was confirmed, if the branch on the server is where it was then."""
        team = open_repository(intent)
        require_objects(team, intent.branch_commit)
        found = self._look(intent)
        if found not in (intent.expected_commit, intent.branch_commit):
            raise Refusal(RemoteCause.MOVED, SENTENCES[RemoteCause.MOVED])
        if not is_own_branch(intent) and not is_fast_forward(team, found, intent.branch_commit):
            raise Refusal(RemoteCause.NOT_FAST_FORWARD, SENTENCES[RemoteCause.NOT_FAST_FORWARD])
        return intent.branch_commit

    def apply(self, intent: FinishIntent) -> None:
        """Push it; the server moves the branch only from where it was expected."""
        row = _remote_of(intent)
        remote, team = row.connection(), open_repository(intent)
        try:
            report = remote.push(
                team.git, intent.result_commit, intent.target_ref, intent.expected_commit, wait=LOOK_WAIT
            )
        except RemoteFailed as error:
            _store_answer(intent, error.messages, remote)
            self._explain(intent, error)
        else:
            _store_answer(intent, report.messages, remote)

    def _explain(self, intent: FinishIntent, error: RemoteFailed) -> None:
        """Return if the server has the commit all the same; raise Refusal if it has not and never will."""
        if error.cause in _IN_DOUBT:
            raise error
        if error.cause is RemoteCause.MOVED and self._look(intent) == intent.result_commit:
            return
        raise Refusal(str(error.cause), error.message) from error

    def _look(self, intent: FinishIntent) -> str:
        """Return where the branch on the server is; empty if there is none."""
        try:
            found = _remote_of(intent).connection().refs(intent.target_ref, wait=LOOK_WAIT)
        except RemoteFailed as error:
            if error.cause in _IN_DOUBT or intent.result_commit:
                # Once a push was begun, that the server does not let us look proves nothing about it.
                raise
            raise Refusal(str(error.cause), error.message) from error
        return found.get(intent.target_ref, "")


def open_repository(intent: FinishIntent) -> TeamRepository:
    """Open the repository that has the commits. Raises RepositoryUnusable."""
    repository = intent.session.task.repository
    if repository is None:
        raise RepositoryUnusable("The task of this session names no repository.")
    return TeamRepository.open(Path(repository.path))


def require_objects(team: TeamRepository, commit: str) -> None:
    """Raise Refusal unless the repository has the commit."""
    if bare.object_types(team.git, [commit]).get(commit) != "commit":
        raise Refusal(COMMIT_MISSING, "The repository does not have this commit any more.")


def is_own_branch(intent: FinishIntent) -> bool:
    """Whether a push moves the session's own branch, whose earlier commits may be left behind if that was confirmed."""
    return intent.target_ref == intent.branch_ref and intent.target_ref.startswith("refs/heads/kandev/")


def is_fast_forward(team: TeamRepository, old: str, new: str) -> bool:
    """Whether moving a branch from ``old`` (empty: it does not exist) to ``new`` leaves no commit behind.

    A commit that the repository does not have is none of the history of ``new``.
    """
    if not old or old == new:
        return True
    if bare.object_types(team.git, [old]).get(old) != "commit":
        return False
    return bare.is_ancestor(team.git, old, new)


def _remote_of(intent: FinishIntent) -> RepositoryRemote:
    """Return where the intent goes; raises Refusal if that is not what was confirmed any more."""
    row = RepositoryRemote.objects.filter(repository=intent.session.task.repository, address=intent.remote).first()
    if row is None:
        raise Refusal(REMOTE_CHANGED, "The remote of the repository was changed since this push was confirmed.")
    return row


def _store_answer(intent: FinishIntent, messages: str, remote: Remote) -> None:
    """Store what the server said, without secrets."""
    known = [value for value in (remote.credential.token,) if value]
    text, _ = redact(messages, known)
    intent.answer = make_visible(text)[:MESSAGES_LIMIT]
    if intent.answer:
        FinishIntent.objects.pending().filter(id=intent.id).update(answer=intent.answer)
