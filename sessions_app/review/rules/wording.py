"""What the page of a branch's changes says about them, in words (pure). ``review.js`` says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.machine.git.branch_changes import Change, Content, Problem
from sessions_app.kernel.rules.wording import plural

_EXECUTABLE: Final = "100755"
_WORDS: Final[Mapping[str, str]] = {
    Change.TYPE_CHANGED: "of another type",
    Change.MODE_ONLY: "mode only",
    Change.LINE_ENDS_ONLY: "line ends only",
    Change.CONFLICTED: "in conflict",
}
_PROBLEMS: Final[Mapping[str, str]] = {
    Problem.NO_BASE: "The base of this branch is not known, so only what is not committed is compared.",
    Problem.NOT_FOUND: "The base {name} was not found in this workspace, so only what is not committed is compared.",
    Problem.UNRELATED: "This branch has no commit in common with {name}, so every file counts as new.",
}


def branch_sentences(found: Mapping[str, Any]) -> list[str]:
    """Return what is said about the branch as a whole."""
    base = found["base"]
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
        sentences.append("The list is too long to show completely, and what is not listed may not be counted.")
    return sentences


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
        Content.SUBMODULE: "A submodule: it points to another commit.",
        Content.SYMLINK: "A symbolic link: its line is where it leads.",
        Content.REPOSITORY: "A repository of its own: what is in it does not belong to this branch.",
    }
    found = [sentences[file["content"]]] if file["content"] in sentences else []
    if file["change"] == Change.LINE_ENDS_ONLY:
        found.append("Only the ends of its lines differ, which are shown as ␍.")
    if file["change"] == Change.CONFLICTED:
        found.append("Compared with this branch's own side of the merge.")
    if file["change"] != Change.TYPE_CHANGED and file["old_mode"] and file["new_mode"] != file["old_mode"]:
        found += _mode_sentence(file["old_mode"], file["new_mode"])
    if file["content"] == Content.TEXT and file["additions"] == 0 == file["deletions"]:
        found += _same_lines(file["change"])
    return found


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
