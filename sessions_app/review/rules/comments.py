"""Review comments: their limits, the prompt that carries them, and whether their lines are still the same (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

from executors_app.machine.git.branch_changes import MAX_LINE
from sessions_app.kernel.rules.states import PromptState
from sessions_app.redaction.visible_text import make_visible

MAX_PENDING: Final = 50
"""Comments of a session that wait to be sent. All of them fit into one prompt."""
MAX_STORED: Final = 1000
"""Comments of a session; beyond them, the oldest that were sent are deleted."""
MAX_TEXT: Final = 4000
MAX_EXCERPT: Final = 8000
"""Characters of the lines that one comment is about; more are refused, so that none is compared in part."""
MAX_PATH: Final = 4096
"""Characters of a path, and of its name in a prompt."""
MAX_RANGE: Final = 200
"""Lines that one comment is about."""
MAX_LINE_NUMBER: Final = 100_000_000
_SIGNS: Final = {ord("\r"): "␍", ord("\x1b"): "␛"}
"""Carriage returns and escapes are part of a line's content, and shown so on the pages."""
PROMPT_HEAD: Final = (
    "Review comments on the changes of this branch. Each one names a file and lines, quotes these lines as they were "
    "when the comment was written, and ends with what the reviewer says about them."
)


class Side(StrEnum):
    """Which version of a file the numbers of lines count."""

    OLD = "old"
    """The file at the base of the branch."""
    NEW = "new"
    """The file as it is in the workspace."""


class Lines(StrEnum):
    """Whether the lines of a comment are still what its author saw."""

    CURRENT = "current"
    OUTDATED = "outdated"
    UNKNOWN = "unknown"


class Quoted(Protocol):
    """What a prompt needs of a comment."""

    path: str
    side: str
    first_line: int
    last_line: int
    excerpt: str
    text: str


def readable_lines(text: str) -> str:
    """Return lines as people see them, so that two versions can be compared wherever they were read."""
    return make_visible(text.translate(_SIGNS))


def compose_prompt(comments: Sequence[Quoted]) -> str:
    """Return the one prompt with all these comments, in the order of files and lines."""
    ordered = sorted(comments, key=lambda comment: (comment.path, comment.first_line, comment.last_line))
    parts = [PROMPT_HEAD]
    for number, comment in enumerate(ordered, 1):
        parts.append(f"{number}. {_place(comment)}:\n\n{_quoted(comment.excerpt)}\n\n{comment.text}")
    return "\n\n".join(parts)


def line_range(first: int, last: int) -> str:
    """Return *line 3* or *lines 3 to 5*."""
    if first == last:
        return f"line {first}"
    return f"lines {first} to {last}"


def prompt_path(path: str) -> str:
    """Return a path as prompts name it: on one line, and quoted if it contains unusual characters."""
    if path.isprintable():
        return path
    return json.dumps(path)


def _place(comment: Quoted) -> str:
    before = " before the change" if comment.side == Side.OLD else ""
    return f"{prompt_path(comment.path)}, {line_range(comment.first_line, comment.last_line)}{before}"


def _quoted(excerpt: str) -> str:
    """Return lines with a mark before each, so that nothing in them looks like what the reviewer says."""
    return "\n".join(f"> {line}" for line in excerpt.split("\n"))


def numbered_lines(hunks: Iterable[Mapping[str, Any]], side: str) -> dict[int, str]:
    """Return the lines of one side that hunks contain, by their numbers."""
    return dict(_numbered(hunks, side))


def _numbered(hunks: Iterable[Mapping[str, Any]], side: str) -> Iterator[tuple[int, str]]:
    own, start = ("- ", "old_start") if side == Side.OLD else ("+ ", "new_start")
    for hunk in hunks:
        number = hunk[start]
        for line in hunk["lines"]:
            if line[:1] in own:
                yield number, line[1:]
                number += 1


def text_lines(content: str) -> dict[int, str]:
    """Return the lines of a whole file by their numbers."""
    lines = content.removesuffix("\n").split("\n")
    return dict(enumerate(lines, 1))


def compare_lines(comment: Quoted, now: Mapping[int, str], *, is_whole: bool) -> Lines:
    """Compare what a comment quotes with the lines ``now``, which are all of the file if it ``is_whole``."""
    numbers = range(comment.first_line, comment.last_line + 1)
    present = [now[number] for number in numbers if number in now]
    if len(present) < len(numbers):
        return Lines.OUTDATED if is_whole else Lines.UNKNOWN
    if readable_lines("\n".join(present)) != comment.excerpt:
        return Lines.OUTDATED
    # Of a longer line, only the beginning was compared.
    if any(len(line) > MAX_LINE for line in present):
        return Lines.UNKNOWN
    return Lines.CURRENT


_SENTENCES: Final[Mapping[str, str]] = {
    PromptState.QUEUED: "Its prompt is in the queue.",
    PromptState.SENDING: "Its prompt is being sent.",
    PromptState.ACCEPTED: "Its prompt is being sent.",
    PromptState.DELIVERED: "Sent to the agent.",
    PromptState.DONE: "Sent to the agent.",
    PromptState.HELD: "It is not known whether its prompt has reached the agent. Decide in the conversation.",
    PromptState.INTERRUPTED: "The turn with its prompt was interrupted. Decide in the conversation.",
    PromptState.DISMISSED: "Its prompt was dismissed, or followed by another one: see the conversation.",
    PromptState.WITHDRAWN: "Its prompt was withdrawn, so it has not been sent.",
}


def delivery_sentence(prompt_state: str) -> str:
    """Return what became of a comment; ``prompt_state`` is empty if no prompt has had it."""
    return _SENTENCES.get(prompt_state, "Not sent yet.")
