"""Request pushes, and say beforehand what a push would do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.db.models import QuerySet

from executors_app.repositories import branch_merge
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.remote_failures import RemoteFailed
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import ExecutorError
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import ONCE_STATES, FinishKind, FinishState, branch_name
from sessions_app.finish.rules.wording import missing_base_sentence
from sessions_app.finish.services import request_intent, session_branch
from sessions_app.kernel.services.errors import Invalid, NotPushable, ReadOnly
from sessions_app.models import RepositoryRemote, TaskSession
from sessions_app.remotes.pushing import is_fast_forward
from sessions_app.remotes.services import TEST_WAIT, find_remote

BRANCH, BASE = "branch", "base"
PUSH_TARGETS: Final = (BRANCH, BASE)
NO_REMOTE: Final = "push_no_remote"
NOT_READY: Final = "push_remote_not_ready"
NO_BRANCH: Final = "push_branch_missing"
UNAVAILABLE: Final = "push_repository_unavailable"
UP_TO_DATE: Final = "push_up_to_date"
BRANCH_MOVED: Final = "push_branch_moved"
TAKEN_BACK: Final = "push_taken_back"
NEEDS_OVERWRITE: Final = "push_needs_overwrite"
NOT_FAST_FORWARD: Final = "remote_not_fast_forward"
MOVED: Final = "remote_moved"
CI_WARNING: Final = (
    "A push starts whatever the server runs for this branch, such as CI, with the secrets that are stored there. "
    "Review the commit first: an agent has written it."
)
_LINK: Final = re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9._~:/?#@!$&()*+,;=%\[\]-]{0,500}")
MAX_LINKS: Final = 5
_RECENT: Final = 5


@dataclass(frozen=True, slots=True)
class PushState:
    """What pushing would do now, and why it cannot be done."""

    target: str
    """``branch`` or ``base``."""
    address: str = ""
    ref: str = ""
    """The branch, here and on the server, as a full ref."""
    commit: str = ""
    """Where it is here."""
    remote_commit: str | None = None
    """Where it is on the server; empty: it does not exist there; None: nobody has looked."""
    overwrites: bool = False
    """Whether commits that only the server has would be left behind."""
    problem: str = ""
    """The code of why it cannot be pushed; empty if it can."""
    message: str = ""

    @property
    def name(self) -> str:
        """The branch, for people."""
        return branch_name(self.ref)


def read_push_state(session: TaskSession, target: str = BRANCH, *, look: bool = True) -> PushState:
    """Return what pushing the session's branch, or the base of its task, would do now; changes nothing.

    ``look`` asks the server, which takes at most 20 seconds.
    """
    state = PushState(target)
    repository = session.task.repository
    remote = find_remote(repository) if repository is not None else None
    if repository is None or remote is None:
        return replace(
            state, problem=NO_REMOTE, message="No remote is recorded for this repository. Staff can add one."
        )
    state = replace(state, address=remote.address)
    try:
        team = TeamRepository.open(Path(repository.path))
        state = _find_commit(state, session, team, repository.default_branch)
        if state.problem or not remote.is_ready:
            return state if state.problem else _not_ready(state)
        if not look:
            return state
        return _compare(session, team, remote, state)
    except RemoteFailed as error:
        return replace(state, problem=str(error.cause), message=error.message)
    except ExecutorError as error:
        return replace(state, problem=UNAVAILABLE, message=error.message)
    except OSError as error:
        return replace(state, problem=UNAVAILABLE, message=f"The repository cannot be read now: {error.strerror}.")


def _not_ready(state: PushState) -> PushState:
    message = "The remote has no key or token yet, or its host key is not confirmed. Staff can complete it."
    return replace(state, problem=NOT_READY, message=message)


def _find_commit(state: PushState, session: TaskSession, team: TeamRepository, default: str) -> PushState:
    if state.target == BASE:
        ref = branch_merge.find_target(team, session.task.base_branch, default)
    else:
        ref = session_branch(session)
    commit = team.refs(ref).get(ref, "") if ref else ""
    if commit:
        return replace(state, ref=ref, commit=commit)
    message = "The session’s branch is not in the repository yet."
    if state.target == BASE:
        message = missing_base_sentence(session.task.base_branch)
    return replace(state, ref=ref, problem=NO_BRANCH, message=message)


def _compare(session: TaskSession, team: TeamRepository, remote: RepositoryRemote, state: PushState) -> PushState:
    """Ask the server where the branch is, and say what follows."""
    found = remote.connection().refs(state.ref, wait=TEST_WAIT).get(state.ref, "")
    state = replace(state, remote_commit=found)
    if found == state.commit:
        return replace(state, problem=UP_TO_DATE, message=f"The server has {state.name} at this commit already.")
    if _pushed_before(session, state):
        message = (
            "This commit was pushed before, and the server’s branch was set back since. Kandev does not push it a "
            "second time: add a commit, or push it by hand."
        )
        return replace(state, problem=TAKEN_BACK, message=message)
    if is_fast_forward(team, found, state.commit):
        return state
    state = replace(state, overwrites=True)
    if state.target == BASE:
        message = f"{state.name} on the server has commits that this one lacks. Nothing would be overwritten by Kandev."
        return replace(state, problem=NOT_FAST_FORWARD, message=message)
    return state


def _pushed_before(session: TaskSession, state: PushState) -> bool:
    return _same_push(session, state, state.remote_commit or "").filter(state=FinishState.DONE).exists()


def request_push(
    session: TaskSession,
    by: User,
    *,
    target: str = BRANCH,
    commit: str,
    expected: str | None = None,
    overwrite: bool = False,
) -> FinishIntent:
    """Request the push of the reviewed commit; return the same intent for the same request.

    ``expected`` is where the branch on the server was when the push was confirmed; None: wherever it is now, if no
    commit is left behind. Raises ReadOnly without the right, Invalid, NotPushable, FinishPending.
    """
    if not may_finish(by, session.task.team, FinishKind.PUSH):
        raise ReadOnly("Only staff, the team’s admins and teams with the permission push_branches can push.")
    if target not in PUSH_TARGETS:
        raise Invalid("target must be branch or base.", field="target")
    if not OBJECT_ID.fullmatch(commit):
        raise Invalid("commit must be the full id of a commit.", field="commit")
    if expected and not OBJECT_ID.fullmatch(expected):
        raise Invalid("expected must be the full id of a commit, or empty.", field="expected")
    if expected is not None:
        known = read_push_state(session, target, look=False)
        earlier = _same_push(session, replace(known, commit=commit), expected).filter(state__in=ONCE_STATES).first()
        if earlier is not None:
            return earlier
    state = read_push_state(session, target)
    _require_confirmed(state, commit, expected, overwrite=overwrite)
    return request_intent(
        FinishIntent(
            session=session,
            kind=FinishKind.PUSH,
            remote=state.address,
            branch_ref=state.ref,
            branch_commit=commit,
            target_ref=state.ref,
            expected_commit=state.remote_commit or "",
            by=by,
        )
    )


def _same_push(session: TaskSession, state: PushState, expected: str) -> QuerySet[FinishIntent]:
    rows = FinishIntent.objects.filter(session_id=session.id, kind=FinishKind.PUSH, remote=state.address)
    return rows.filter(target_ref=state.ref, branch_commit=state.commit, expected_commit=expected)


def _require_confirmed(state: PushState, commit: str, expected: str | None, *, overwrite: bool) -> None:
    """Raise NotPushable unless what was confirmed is what is there, and can be pushed."""
    if state.commit and state.commit != commit:
        message = f"{state.name} has moved to {state.commit[:12]} since you reviewed it. Review it again."
        raise NotPushable(message, reason=BRANCH_MOVED, commit=state.commit)
    if state.problem:
        raise NotPushable(state.message, reason=state.problem, remote_commit=state.remote_commit)
    if expected is not None and expected != state.remote_commit:
        now = (state.remote_commit or "nothing")[:12]
        message = f"{state.name} on the server is now at {now}. Look at the push again."
        raise NotPushable(message, reason=MOVED, remote_commit=state.remote_commit)
    if state.overwrites and not (overwrite and expected is not None):
        message = (
            f"{state.name} on the server is at {(state.remote_commit or '')[:12]}, which this commit does not contain. "
            "Confirm that it is overwritten, naming that commit."
        )
        raise NotPushable(message, reason=NEEDS_OVERWRITE, remote_commit=state.remote_commit)


def recent_pushes(session: TaskSession) -> list[FinishIntent]:
    """Return the newest pushes of a session, the newest first."""
    rows = FinishIntent.objects.filter(session_id=session.id, kind=FinishKind.PUSH)
    return list(rows.select_related("by").order_by("-created_at", "-id")[:_RECENT])


def links_in(answer: str) -> list[str]:
    """Return the web addresses that a server has named, such as where a pull request can be opened."""
    found = (match.rstrip(".,;:!?)]") for match in _LINK.findall(answer))
    return list(dict.fromkeys(found))[:MAX_LINKS]
