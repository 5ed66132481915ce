"""What the page of a branch's changes says about them, in words (pure). ``review.js`` says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.machine.git.branch_changes import Change, Conflict, Content, PartProblem, Problem
from sessions_app.kernel.rules.states import TurnOrigin
from sessions_app.kernel.rules.wording import plural
from sessions_app.review.rules.parts import PartKind

_EXECUTABLE: Final = "100755"
_WORDS: Final[Mapping[str, str]] = {
    Change.TYPE_CHANGED: "of another type",
    Change.MODE_ONLY: "mode only",
    Change.LINE_ENDS_ONLY: "line ends only",
    Change.CONFLICTED: "in conflict",
}
_CONFLICTS: Final[Mapping[str | None, str]] = {
    Conflict.BOTH_CHANGED: "Compared with this branch's own side of the merge.",
    Conflict.BOTH_ADDED: "Both sides of the merge have added it. Compared with this branch's own side.",
    Conflict.BOTH_DELETED: "Both sides of the merge have deleted or renamed it.",
    Conflict.ADDED_BY_US: "Only this branch has a file of this name.",
    Conflict.ADDED_BY_THEM: "Only the other side of the merge has a file of this name, which is shown here.",
    Conflict.DELETED_BY_US: "This branch has deleted it, and the other side has changed it. Shown as it is there.",
    Conflict.DELETED_BY_THEM: "The other side of the merge has deleted it, and this branch has changed it.",
}
_PARTS: Final[Mapping[str, str]] = {
    PartKind.UNCOMMITTED: "not committed",
    PartKind.COMMIT: "changed in commit {id}",
    PartKind.TURN: "changed in this turn",
}
TURN_NOTE: Final = "Between the snapshots before and after the turn: what others changed meanwhile is included."
PART_PROBLEMS: Final[Mapping[str, str]] = {
    PartProblem.NOT_OF_BRANCH: "This branch has no such commit.",
    PartProblem.NOT_STORED: "The snapshots around this turn are no longer stored, so what it changed is not known.",
    PartProblem.NOT_ENDED: "The turn has not ended.",
    PartProblem.NO_SNAPSHOT: "No snapshot was recorded at the end of this turn: it changed nothing, or none was taken.",
}
_ORIGINS: Final[Mapping[str | None, str]] = {
    TurnOrigin.AGENT: "Begun by the agent",
    TurnOrigin.KANDEV: "Begun by Kandev",
}
_CUT: Final = "The list is too long to show completely, and what is not listed may not be counted."
_PROBLEMS: Final[Mapping[str, str]] = {
    Problem.NO_BASE: "The base of this branch is not known, so only what is not committed is compared.",
    Problem.NOT_FOUND: "The base {name} was not found in this workspace, so only what is not committed is compared.",
    Problem.UNRELATED: "This branch has no commit in common with {name}, so every file counts as new.",
}


def branch_sentences(found: Mapping[str, Any]) -> list[str]:
    """Return what is said about the branch as a whole, or about the part of it that is shown."""
    part, base = found["part"], found["base"]
    if part["problem"]:
        return [PART_PROBLEMS.get(part["problem"], "It is not known what this has changed.")]
    if base is None:
        return _part_sentences(part, found)
    against = f"changed since {base['name']}"
    if base["problem"]:
        against = "not committed"
    sentences = [f"{_counted(found['count'], 'file')} {against}: +{found['additions']} −{found['deletions']}"]
    if base["problem"] in _PROBLEMS:
        sentences.append(_PROBLEMS[base["problem"]].format(name=base["name"]))
    if not base["problem"] or found["ahead"] is not None:
        sentences.append(distance_sentence(base["name"], found["ahead"], found["behind"]))
    if upstream := found["upstream"]:
        sentences.append(distance_sentence(upstream["name"], upstream["ahead"], upstream["behind"]))
    if found["truncated"]:
        sentences.append(_CUT)
    return sentences


def _part_sentences(part: Mapping[str, str], found: Mapping[str, Any]) -> list[str]:
    against = _PARTS.get(part["kind"], "changed").format(id=part["id"][:8])
    sentences = [f"{_counted(found['count'], 'file')} {against}: +{found['additions']} −{found['deletions']}"]
    if part["kind"] == PartKind.TURN:
        sentences.append(TURN_NOTE)
    if found["truncated"]:
        sentences.append(_CUT)
    return sentences


def turn_words(turn: Mapping[str, Any]) -> str:
    """Return what a turn is called: how its prompt begins, or who began it."""
    if prompt := " ".join(turn["prompt"].split()):
        return prompt
    return _ORIGINS.get(turn["origin"], "A turn")


def distance_sentence(name: str, ahead: int | None, behind: int | None) -> str:
    """Return how far a branch is from another one."""
    if ahead is None or behind is None:
        return f"How far the branch and {name} are apart is not known."
    parts = []
    if ahead:
        parts.append(f"{_counted(ahead, 'commit')} ahead of {name}")
    if behind:
        parts.append(f"{_counted(behind, 'commit')} behind {'it' if ahead else name}")
    if not parts:
        return f"The branch is at the same commit as {name}."
    return f"The branch is {' and '.join(parts)}."


def change_words(file: Mapping[str, Any]) -> str:
    """Return how a file differs, and whether that is committed."""
    words = _WORDS.get(file["change"], str(file["change"]))
    if file["uncommitted"]:
        return f"{words}, not committed"
    return words


def explanations(file: Mapping[str, Any]) -> list[str]:
    """Return why a file has no lines to show, or what they mean."""
    size = "" if file["size"] is None else f" of {_counted(file['size'], 'byte')}"
    sentences = {
        Content.BINARY: f"A binary file{size}: it has no lines to show.",
        Content.LARGE: f"A large file{size}: its lines are not compared.",
        Content.SUBMODULE: _submodule_sentence(file.get("commits")),
        Content.SYMLINK: "A symbolic link: its line is where it leads.",
        Content.REPOSITORY: "A repository of its own: what is in it does not belong to this branch.",
    }
    found = [sentences[file["content"]]] if file["content"] in sentences else []
    if file["change"] == Change.LINE_ENDS_ONLY:
        found.append("Only the ends of its lines differ, which are shown as ␍.")
    if file["change"] == Change.CONFLICTED:
        found.append(_CONFLICTS.get(file.get("conflict"), _CONFLICTS[Conflict.BOTH_CHANGED]))
    if file["change"] != Change.TYPE_CHANGED and file["old_mode"] and file["new_mode"] != file["old_mode"]:
        found += _mode_sentence(file["old_mode"], file["new_mode"])
    if file["content"] == Content.TEXT and file["additions"] == 0 == file["deletions"]:
        found += _same_lines(file["change"])
    return found


def _submodule_sentence(commits: Mapping[str, str | None] | None) -> str:
    """Return to which commits a submodule points; an agentctl of an earlier release does not say it."""
    if commits is None:
        return "A submodule: it points to another commit."
    old, new = commits["old"], commits["new"]
    if old is None:
        return f"A submodule, which points to {_commit_words(new)}."
    if new is None:
        return f"It was a submodule, which pointed to {_commit_words(old)}."
    return f"A submodule: it pointed to {_commit_words(old)}, and now points to {_commit_words(new)}."


def _commit_words(commit: str | None) -> str:
    if not commit:
        return "the commit that its line names"
    return f"commit {commit[:8]}"


def _mode_sentence(before: str, now: str) -> list[str]:
    if now == _EXECUTABLE:
        return ["It can be executed now."]
    if now and before == _EXECUTABLE:
        return ["It can no longer be executed."]
    if now:
        return [f"Its mode was {before} and is {now}."]
    return []


def _same_lines(change: str) -> list[str]:
    if change == Change.RENAMED:
        return ["Its content is the same."]
    if change == Change.ADDED:
        return ["It is empty."]
    return []


def _counted(number: int, what: str) -> str:
    return plural(number, f"1 {what}", f"{{}} {what}s")
