"""The text of a tool call that is indexed: its title, and its command as conversations show it."""

from __future__ import annotations

import json
import re
from typing import Final

from sessions_app.stream.rules.tool_calls import command_of

COMMAND_LIMIT: Final = 4_000
"""Characters of a command that are read."""
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"?')
"""A string of JSON; the last one of a text that is cut has no end."""
_CUT_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def tool_text(title: str, kind: str, command: str, raw_input: str) -> str:
    """Return title and command of a tool call. All are beginnings, as the database has read them.

    A command of several words is a list in JSON then. The input itself is the command of some agents.
    """
    typed = _typed_command(command)
    if not typed and kind == "execute" and not raw_input.startswith(("{", "[")):
        typed = raw_input
    if not typed:
        return title
    line = f"$ {typed}"
    if title.strip("` \n") in ("", typed.strip()):
        return line
    return f"{title}\n{line}"


def _typed_command(command: str) -> str:
    words = _words_of(command)
    if words:
        return command_of({"raw_input": {"command": words}})
    return command


def _words_of(command: str) -> list[str]:
    """Return the words of a command that is a list of them; empty if it is no such list."""
    if not command.startswith('["'):
        return []
    try:
        words = json.loads(command)
    except (ValueError, RecursionError):
        if len(command) < COMMAND_LIMIT:
            return []  # a shell may be given a test such as ["$a" = b]
        words = [_decoded(found) for found in _STRING.findall(command)]
    if all(isinstance(word, str) for word in words):
        return [word.encode("utf-8", "replace").decode() for word in words]
    return []


def _decoded(string: str) -> str:
    try:
        return str(json.loads(f'"{_CUT_ESCAPE.sub("", string)}"', strict=False))
    except ValueError:
        return string
