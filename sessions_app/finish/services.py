"""Request merges and pushes, and say beforehand what a merge would do."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.repositories import branch_merge
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.branch_merge import MergePreview, MergeRequest
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import ExecutorError
from sessions_app.finish.events import FinishRequested
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import (
    MAX_CONFLICTS,
    MESSAGE_LIMIT,
    ONCE_STATES,
    FinishKind,
    FinishState,
    Strategy,
    branch_name,
)
from sessions_app.finish.rules.wording import merge_message, missing_base_sentence, squash_message
from sessions_app.kernel.services.errors import FinishPending, Invalid, NotMergeable, ReadOnly
from sessions_app.models import TaskSession, session_transaction
from sessions_app.recovery.services.assessment import execution_of
from sessions_app.review.services import list_branch_changes

NO_REPOSITORY: Final = "merge_no_repository"
NO_BRANCH: Final = "merge_branch_missing"
NO_TARGET: Final = "merge_target_missing"
UNAVAILABLE: Final = "merge_repository_unavailable"
TAKEN_BACK: Final = "merge_taken_back"
OTHER_STRATEGY: Final = "merge_other_strategy"
_RECENT: Final = 5


@dataclass(frozen=True, slots=True)
class MergeState:
    """What merging a session's branch would do now, and why it cannot be merged."""

    branch_ref: str = ""
    branch_commit: str = ""
    target_ref: str = ""
    target_commit: str = ""
    preview: MergePreview | None = None
    """None if it could not be tried."""
    checked_out: str = ""
    """Where the base is checked out: ``main``, ``worktree`` or empty, as ``branch_merge.where_checked_out`` says."""
    problem: str = ""
    """The code of why it cannot be merged; empty if it can."""
    message: str = ""

    @property
    def branch(self) -> str:
        """The name of the branch, for people."""
        return branch_name(self.branch_ref)

    @property
    def target(self) -> str:
        """The name of the base, for people."""
        return branch_name(self.target_ref)

    @property
    def has_conflicts(self) -> bool:
        """Whether files are in conflict."""
        return self.preview is not None and bool(self.preview.conflicts)


def read_merge_state(session: TaskSession, strategy: str = Strategy.MERGE) -> MergeState:
    """Return what merging the branch into the base of its task would do now; changes nothing."""
    repository = session.task.repository
    if repository is None:
        return MergeState(problem=NO_REPOSITORY, message="The task names no repository, so there is nothing to merge.")
    try:
        return _read_merge_state(
            session, TeamRepository.open(Path(repository.path)), strategy, repository.default_branch
        )
    except ExecutorError as error:
        return MergeState(problem=UNAVAILABLE, message=error.message)
    except OSError as error:
        return MergeState(problem=UNAVAILABLE, message=f"The repository cannot be read now: {error.strerror}.")


def _read_merge_state(session: TaskSession, team: TeamRepository, strategy: str, default: str) -> MergeState:
    branch = session_branch(session)
    commit = team.refs(branch).get(branch, "") if branch else ""
    if not commit:
        message = "The session’s branch is not in the repository yet."
        return MergeState(branch, problem=NO_BRANCH, message=message)
    target = branch_merge.find_target(team, session.task.base_branch, default)
    if not target:
        return MergeState(branch, commit, problem=NO_TARGET, message=missing_base_sentence(session.task.base_branch))
    target_commit = team.refs(target).get(target, "")
    checked_out = branch_merge.where_checked_out(team, target)
    request = MergeRequest(strategy, branch, commit, target, target_commit, "", "", "", timezone.now())
    preview = branch_merge.preview_merge(team, request)
    problem, message = preview.problem, preview.message
    if checked_out and not problem:
        problem = "merge_target_checked_out"
        message = f"{branch_name(target)} is checked out, so Kandev does not move it."
    if not problem and _is_taken_back(session, request):
        problem = TAKEN_BACK
        message = (
            f"This commit was merged before, and {branch_name(target)} was set back since. Kandev does not merge it a "
            "second time: add a commit, or merge it by hand."
        )
    return MergeState(branch, commit, target, target_commit, preview, checked_out, problem, message)


def _is_taken_back(session: TaskSession, request: MergeRequest) -> bool:
    """Whether this very merge was carried out, though the base is where it was before."""
    rows = FinishIntent.objects.filter(session_id=session.id, kind=FinishKind.MERGE, state=FinishState.DONE)
    same = rows.filter(branch_commit=request.branch_commit, expected_commit=request.expected_commit)
    return same.filter(target_ref=request.target_ref).exists()


def session_branch(session: TaskSession) -> str:
    """Return the session's branch as a full ref; empty if it has none yet."""
    branch = session.worktree_branch
    if not branch and (execution := execution_of(session)) is not None:
        branch = execution.worktree_branch
    return f"refs/heads/{branch.removeprefix('refs/heads/')}" if branch else ""


def suggested_message(session: TaskSession, state: MergeState, strategy: str) -> str:
    """Return the message that a merge gets unless another one is given."""
    if strategy == Strategy.SQUASH:
        return squash_message(session.task.title, state.preview.subjects if state.preview else ())
    return merge_message(session.task.title, state.branch_ref, state.target_ref)


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """What a merge would leave out, because it is not committed."""

    paths: tuple[str, ...] = ()
    head: str = ""
    """The commit that the workspace is at; empty if it is not known."""
    is_known: bool = True
    saved_at: datetime | None = None
    """When that was saved, if the workspace is not open: it may have changed since. None: it is as of now."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is uncommitted."""
        return self.is_known and not self.paths


def read_uncommitted(session: TaskSession) -> Uncommitted:
    """Return the files with uncommitted changes, in the workspace or, if that is not open, in its saved work."""
    for kept in (False, True):
        try:
            found = list_branch_changes(session, kept=kept)
        except (ExecutorError, OSError):
            continue
        paths = tuple(file["path"] for file in found["files"] if file["uncommitted"])
        head, saved = found.get("head") or "", found.get("kept")
        if saved is None:
            return Uncommitted(paths, head)
        if saved["commit"] == head:
            break  # no snapshot was taken of this commit, and the commit says nothing of what is beside it
        return Uncommitted(paths, head, saved_at=datetime.fromisoformat(saved["at"]))
    return Uncommitted(is_known=False)


def request_merge(
    session: TaskSession, by: User, *, strategy: str, branch_commit: str, target_commit: str, message: str = ""
) -> FinishIntent:
    """Request the merge of the reviewed commit into the base of the task; return the same intent for the same request.

    Raises ReadOnly without the right, Invalid, NotMergeable if it could not be merged now, FinishPending.
    """
    if not may_finish(by, session.task.team, FinishKind.MERGE):
        raise ReadOnly("Only staff, the team’s admins and teams with the permission merge_branches can merge.")
    if strategy not in list(Strategy):
        raise Invalid("strategy must be merge, squash or rebase.", field="strategy")
    for field, commit in (("branch_commit", branch_commit), ("target_commit", target_commit)):
        if not OBJECT_ID.fullmatch(commit):
            raise Invalid(f"{field} must be the full id of a commit.", field=field)
    message = message.replace("\0", "").replace("\r\n", "\n")  # forms send lines as Windows does
    if len(message) > MESSAGE_LIMIT:
        raise Invalid(f"message must have at most {MESSAGE_LIMIT} characters.", field="message")
    earlier = _same_merge(session, branch_commit, target_commit)
    if earlier is not None and earlier.is_open:
        return _of_strategy(earlier, strategy)
    state = read_merge_state(session, strategy)
    if earlier is not None and state.problem != TAKEN_BACK:
        return _of_strategy(earlier, strategy)
    _require_reviewed(state, branch_commit, target_commit)
    return request_intent(
        FinishIntent(
            session=session,
            kind=FinishKind.MERGE,
            strategy=strategy,
            branch_ref=state.branch_ref,
            branch_commit=branch_commit,
            target_ref=state.target_ref,
            expected_commit=target_commit,
            message=message.strip() or suggested_message(session, state, strategy),
            author_name=(by.get_full_name() or by.get_username())[:200],
            author_email=by.email or f"{by.get_username()}@kandev.invalid",
            by=by,
        )
    )


def _same_merge(session: TaskSession, branch_commit: str, target_commit: str) -> FinishIntent | None:
    """Return the merge that the same confirmation has requested, also once it has moved the base."""
    rows = FinishIntent.objects.filter(session_id=session.id, kind=FinishKind.MERGE, state__in=ONCE_STATES)
    return rows.filter(branch_commit=branch_commit, expected_commit=target_commit).first()


def _of_strategy(earlier: FinishIntent, strategy: str) -> FinishIntent:
    """Return the earlier merge of the same commits. Raises NotMergeable if that one has another strategy."""
    if earlier.strategy == strategy:
        return earlier
    who = earlier.by.get_username() if earlier.by is not None else "another member"
    raise NotMergeable(
        f"{who} has already requested to {earlier.strategy} these commits, so they are not merged by {strategy}.",
        reason=OTHER_STRATEGY,
        intent_id=str(earlier.id),
        strategy=earlier.strategy,
        state=earlier.state,
        by=who,
    )


def _require_reviewed(state: MergeState, branch_commit: str, target_commit: str) -> None:
    """Raise NotMergeable unless what was confirmed is what is there, and could be merged."""
    if state.branch_commit and state.branch_commit != branch_commit:
        raise NotMergeable(
            f"The branch has moved to {state.branch_commit[:12]} since you reviewed it. Review it again.",
            reason="merge_branch_moved",
            branch_commit=state.branch_commit,
        )
    if state.target_commit and state.target_commit != target_commit:
        raise NotMergeable(
            f"{state.target} has moved to {state.target_commit[:12]} since you confirmed. Look at the merge again.",
            reason="merge_target_moved",
            target_commit=state.target_commit,
        )
    if state.problem:
        conflicts: Sequence[str] = state.preview.conflicts if state.preview else ()
        raise NotMergeable(state.message, reason=state.problem, conflicts=list(conflicts[:MAX_CONFLICTS]))


def recent_intents(session: TaskSession) -> list[FinishIntent]:
    """Return the newest merges and pushes of a session, the newest first."""
    return list(session.finish_intents.select_related("by").order_by("-created_at", "-id")[:_RECENT])


def find_intent(session: TaskSession, intent_id: uuid.UUID) -> FinishIntent | None:
    """Return one merge or push of a session."""
    return session.finish_intents.select_related("by").filter(id=intent_id).first()


def request_intent(intent: FinishIntent) -> FinishIntent:
    """Write a new intent and its event; return the earlier one if the same is requested again.

    Raises FinishPending while another one of the session is to be carried out, and NotMergeable if the same was
    requested with another strategy.
    """
    event = FinishRequested(
        intent_id=str(intent.id),
        kind=str(intent.kind),
        strategy=str(intent.strategy),
        target=intent.target_ref,
        expected_commit=intent.expected_commit,
        branch_commit=intent.branch_commit,
        by=intent.by.get_username() if intent.by is not None else "",
    )
    with session_transaction(intent.session_id) as transaction:
        # The session is locked, so of two requests at once the second finds the row of the first.
        earlier = _same_intent(intent)
        if earlier is not None:
            return _of_strategy(earlier, intent.strategy)
        if FinishIntent.objects.pending().filter(session_id=intent.session_id).exists():
            raise FinishPending
        intent.save(force_insert=True)
        transaction.record_event(event)
        crash_points.reached("finish_request.written", intent.session_id)
    crash_points.reached("finish_request.committed", intent.session_id)
    return intent


def _same_intent(intent: FinishIntent) -> FinishIntent | None:
    same = FinishIntent.objects.filter(
        session_id=intent.session_id,
        kind=intent.kind,
        remote=intent.remote,
        target_ref=intent.target_ref,
        expected_commit=intent.expected_commit,
        branch_commit=intent.branch_commit,
        state__in=ONCE_STATES,
    )
    return same.first()
