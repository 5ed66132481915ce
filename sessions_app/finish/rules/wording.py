"""What pages say about merges and pushes, in words, and the command that does the same by hand (pure)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from sessions_app.finish.rules.finish import MAX_CONFLICTS, FinishKind, FinishState, Strategy, branch_name

STRATEGY_LABELS: Final = {
    Strategy.MERGE: "Merge: keep all commits and add a merge commit",
    Strategy.SQUASH: "Squash: add one commit with all changes",
    Strategy.REBASE: "Rebase: repeat each commit on the base",
}
STATE_LABELS: Final[Mapping[str, tuple[str, str]]] = {
    FinishState.REQUESTED: ("Waiting for the supervisor", "busy"),
    FinishState.APPLYING: ("Being carried out", "busy"),
    FinishState.DONE: ("Done", "good"),
    FinishState.REFUSED: ("Not carried out", "ask"),
    FinishState.UNKNOWN: ("Unknown", "bad"),
}
_MESSAGE_SUBJECTS: Final = 50


def merge_message(title: str, branch: str, target: str) -> str:
    """Return the suggested message of a merge commit."""
    return f"{title}\n\nMerge {branch_name(branch)} into {branch_name(target)}."


def squash_message(title: str, subjects: Sequence[str]) -> str:
    """Return the suggested message of a squashed branch: the task's title, and the subjects of its commits."""
    listed = [f"* {subject}" for subject in subjects[:_MESSAGE_SUBJECTS]]
    if len(subjects) > _MESSAGE_SUBJECTS:
        listed.append("* …")
    return "\n".join([title, "", *listed]).strip()


class DescribedIntent(Protocol):
    """What is said about a merge or push."""

    kind: str
    strategy: str
    target_ref: str
    branch_commit: str
    expected_commit: str


def intent_sentence(intent: DescribedIntent) -> str:
    """Return what a merge or push does, naming the commits that it is bound to."""
    target, commit = branch_name(intent.target_ref), intent.branch_commit[:12]
    if intent.kind == FinishKind.PUSH:
        return f"Push {commit} to {target}"
    verb = {Strategy.SQUASH: "Squash", Strategy.REBASE: "Rebase"}.get(Strategy(intent.strategy), "Merge")
    return f"{verb} {commit} into {target} at {intent.expected_commit[:12]}"


def missing_base_sentence(named: str) -> str:
    """Return why a task has no base, and what to choose; ``named``: the base that it names."""
    if named:
        return f"{named} is not a branch of the repository. Create it there, or start a task with another base branch."
    return (
        "The task names no base branch, and the repository has none checked out. Set the repository’s default branch "
        "in the settings, or start a task with a base branch."
    )


def command_by_hand(path: str, strategy: str, branch_commit: str, target_commit: str) -> str:
    """Return the command that does in a checked-out base what Kandev does not do there."""
    git = f"git -C {shlex.quote(path)}" if path else "git"
    if strategy == Strategy.SQUASH:
        return f"{git} merge --squash {branch_commit} && {git} commit"
    if strategy == Strategy.REBASE:
        return f"{git} cherry-pick {target_commit}..{branch_commit}"
    return f"{git} merge --no-ff {branch_commit}"


def command_in_a_worktree(path: str, strategy: str, branch_commit: str, target: str, target_commit: str) -> str:
    """Return the command that merges into a base that is not checked out: in a worktree beside the repository."""
    place = f"{path.rstrip('/')}-merge"
    added = f"git -C {shlex.quote(path)} worktree add {shlex.quote(place)} {shlex.quote(target)}"
    return f"{added} && {command_by_hand(place, strategy, branch_commit, target_commit)}"


def _one_line(name: str) -> str:
    """Return a file's name as git quotes it if it contains something else than printable characters."""
    return name if name.isprintable() else json.dumps(name)


def conflict_prompt(target: str, files: Sequence[str], target_commit: str) -> str:
    """Return the prompt that asks the agent to resolve the conflicts of its branch with its base.

    ``files`` were named by agents or members, so they are quoted, and no name gets a line of its own.
    """
    name = branch_name(target)
    lines = [f"- `{_one_line(file)}`" for file in files[:MAX_CONFLICTS]]
    if len(files) > MAX_CONFLICTS:
        lines.append(f"- and {len(files) - MAX_CONFLICTS} more")
    listed = "\n".join(lines)
    return (
        f"Your branch conflicts with its base `{name}` (commit {target_commit[:12]}) in these files:\n\n{listed}\n\n"
        f"Merge `{name}` into your branch, resolve the conflicts so that both sides keep working, run the tests, and "
        "commit the result."
    )
