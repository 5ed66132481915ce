"""Why git failed: a fixed sentence for people, and git's own output for the log.

git quotes what it reads. Its output may therefore contain a line of any file that a repository leads to, and text that
an agent chose, so nobody but operators may read it.
"""

from __future__ import annotations

import logging
import re
import secrets
import signal
from enum import StrEnum
from typing import Final

logger = logging.getLogger(__name__)
_RULE: Final = re.compile(r"object [0-9a-f]{40,64}: ([A-Za-z]{3,40}):")


class Cause(StrEnum):
    """Why a git command failed."""

    MEMORY = "memory"
    TIME = "time"
    OUTPUT = "output"
    FILE_SIZE = "file_size"
    BUSY = "busy"
    NO_SPACE = "no_space"
    PERMISSION = "permission"
    LOCKED = "locked"
    MOVED = "moved"
    RULES = "rules"
    MISSING = "missing"
    DAMAGED = "damaged"
    SYNTAX = "syntax"
    UNKNOWN = "unknown"


_SENTENCES: Final = {
    Cause.MEMORY: "It needed more memory than it may use.",
    Cause.TIME: "It needed more time than it may use.",
    Cause.OUTPUT: "It wrote more than it may return.",
    Cause.FILE_SIZE: "It would have written a larger file than it may.",
    Cause.BUSY: "Too many other git commands were running.",
    Cause.NO_SPACE: "The disk is full.",
    Cause.PERMISSION: "Permission was denied.",
    Cause.LOCKED: "A lock file is in the way; another git may be running.",
    Cause.MOVED: "A ref has moved meanwhile.",
    Cause.RULES: "An object breaks git's rules.",
    Cause.MISSING: "An object or ref is missing.",
    Cause.DAMAGED: "The data is damaged.",
    Cause.SYNTAX: "A configuration file is not valid.",
    Cause.UNKNOWN: "The reason is in git's own output.",
}
_SIGNALS: Final = {signal.SIGXCPU: Cause.TIME, signal.SIGXFSZ: Cause.FILE_SIZE}
_PATTERNS: Final = (
    (Cause.MEMORY, r"out of memory|memory exhausted|attempting to allocate|mmap failed|cannot allocate memory"),
    (Cause.FILE_SIZE, r"file too large|exceeds maximum allowed size"),
    (Cause.NO_SPACE, r"no space left|quota exceeded"),
    (Cause.LOCKED, r"\.lock': file exists|unable to create '[^']*\.lock'"),
    (Cause.MOVED, r"cannot lock ref|but expected|reference already exists|is at .* but"),
    (Cause.RULES, r"object [0-9a-f]{40,64}: [a-z]{3,40}:"),
    (Cause.PERMISSION, r"permission denied|operation not permitted|read-only file system"),
    (Cause.SYNTAX, r"bad config|bad numeric config"),
    (
        Cause.MISSING,
        r"missing|not a valid object name|bad [a-z ]{0,10}object|(?:bad|unknown) revision|could not read|unresolved",
    ),
    (Cause.DAMAGED, r"corrupt|inflate|pack|signature|checksum|sha1 mismatch|truncated|early eof|unable to unpack"),
)
_COMPILED: Final = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _PATTERNS)


def classify(text: str, exit_code: int) -> Cause:
    """Return why git failed, from its exit code (negative: the signal that ended it) and what it wrote to stderr."""
    if -exit_code in _SIGNALS:
        return _SIGNALS[signal.Signals(-exit_code)]
    for cause, pattern in _COMPILED:
        if pattern.search(text):
            return cause
    return Cause.UNKNOWN


def describe(cause: Cause, text: str) -> str:
    """Return the sentence for a cause. A broken rule is named by git's word for it, which is letters only."""
    if cause is Cause.RULES and (rule := _RULE.search(text)):
        return f"An object breaks git's rule {rule[1]}."
    return _SENTENCES[cause]


def log_failure(command: str, text: str, *, exit_code: int | None) -> str:
    """Log git's own output, and return the reference under which operators find it."""
    reference = f"git-{secrets.token_hex(4)}"
    # Some calls ask a question and expect this answer, without a word on stderr.
    level = logging.DEBUG
    if text:
        level = logging.WARNING
    logger.log(level, "%s: git %s failed with exit code %s: %s", reference, command, exit_code, ascii(text))
    return reference
