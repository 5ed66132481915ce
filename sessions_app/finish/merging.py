"""Merges, as they are carried out: in the team's repository, with a repository of Kandev's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from executors_app.repositories import branch_merge
from executors_app.repositories.branch_merge import MergeRefused, MergeRequest
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import Refusal


class MergeEffect:
    """Moves the base of a task to a merge of its session's branch."""

    def is_done(self, intent: FinishIntent) -> bool:
        """Look whether the base has the merge."""
        with _refusals():
            return branch_merge.is_merged(_repository(intent), merge_request(intent), intent.result_commit)

    def prepare(self, intent: FinishIntent) -> str:
        """Return the commit of the merge."""
        with _refusals():
            team, request = _repository(intent), merge_request(intent)
            try:
                return branch_merge.prepare_merge(team, request)
            except MergeRefused:
                if _is_carried_out(team, request, intent):
                    return intent.result_commit
                raise

    def apply(self, intent: FinishIntent) -> None:
        """Move the base to it."""
        with _refusals():
            team, request = _repository(intent), merge_request(intent)
            try:
                branch_merge.apply_merge(team, request, intent.result_commit, f"finish-{intent.id}")
            except MergeRefused:
                if not _is_carried_out(team, request, intent):
                    raise


def _is_carried_out(team: TeamRepository, request: MergeRequest, intent: FinishIntent) -> bool:
    """Whether a supervisor that was ending has moved the base after this one had looked."""
    return bool(intent.result_commit) and branch_merge.is_merged(team, request, intent.result_commit)


def merge_request(intent: FinishIntent) -> MergeRequest:
    """Return what an intent merges."""
    return MergeRequest(
        strategy=intent.strategy,
        branch_ref=intent.branch_ref,
        branch_commit=intent.branch_commit,
        target_ref=intent.target_ref,
        expected_commit=intent.expected_commit,
        message=intent.message,
        name=intent.author_name,
        email=intent.author_email,
        at=intent.created_at,
    )


def _repository(intent: FinishIntent) -> TeamRepository:
    repository = intent.session.task.repository
    if repository is None:
        raise RepositoryUnusable("The task of this session names no repository.")
    return TeamRepository.open(Path(repository.path))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except MergeRefused as refused:
        raise Refusal(refused.code, refused.message, refused.conflicts) from refused
