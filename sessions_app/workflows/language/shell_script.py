"""Pass values to a shell script safely: each template becomes a variable, quoted for its context.

The shell therefore never interprets a value as code, whatever it contains. Where the shell would not expand a variable
(in a quoted here-document) or would parse it twice (in backquotes), the script is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sessions_app.workflows.language.limits import MAX_ENVIRONMENT, MAX_ENVIRONMENT_VALUE
from sessions_app.workflows.language.values import (
    MISSING,
    NUMBER,
    TEMPLATE,
    LineCounter,
    Lookup,
    parse_reference,
    to_text,
)

VARIABLE: Final = "WORKFLOW_VALUE_"
_HEREDOC: Final = re.compile(r"<<(?P<dash>-?)[ \t]*(?P<quote>\\|'|\")?(?P<word>[A-Za-z0-9_.-]+)")
_PLAIN_TEXT: Final = re.compile(r"(?:[^\\$`'\"(){}<#\n]|\{(?=\{\{|[^{]|\Z))+")
"""Text without a meaning for the shell in any context. In a row of braces only the last two can begin a template.

Not a possessive quantifier: with one around a group, Python before 3.11.5 also matches braces of templates.
"""
_OPENING: Final = ("$((", "$(", "${")


class QuotingContext(StrEnum):
    """The kind of quoting around a place in a script."""

    PLAIN = "plain"
    COMMAND = "command"
    DOUBLE = "double"
    SINGLE = "single"
    BRACE = "brace"
    QUOTED_BRACE = "quoted_brace"
    ARITHMETIC = "arithmetic"
    BACKQUOTE = "backquote"
    HEREDOC = "heredoc"
    QUOTED_HEREDOC = "quoted_heredoc"


_UNSUPPORTED: Final = {
    QuotingContext.BACKQUOTE: "a template is used within backquotes; write $(…) instead",
    QuotingContext.QUOTED_HEREDOC: "a template is used in a here-document with a quoted delimiter; remove the quotes",
}

_CLOSING: Final = {
    QuotingContext.SINGLE: "'",
    QuotingContext.DOUBLE: '"',
    QuotingContext.BRACE: "}",
    QuotingContext.QUOTED_BRACE: "}",
    QuotingContext.COMMAND: ")",
    QuotingContext.BACKQUOTE: "`",
}


class ShellScriptError(ValueError):
    """A value cannot be passed to the script; users see the message."""


@dataclass(frozen=True, slots=True)
class TemplateSite:
    """One template in a script, and the quoting around it."""

    found: re.Match[str]
    around: QuotingContext


@dataclass(frozen=True, slots=True)
class ShellScript:
    """A script and the environment variables that it reads."""

    script: str
    environment: Mapping[str, str]


def prepare_script(script: str, lookup: Lookup) -> ShellScript:
    """Return the script with a variable in place of each template that has a value. Raises ShellScriptError."""
    parts: list[str] = []
    environment: dict[str, str] = {}
    end = size = 0
    for site in find_template_sites(script):
        reference = parse_reference(site.found)
        if reference is None:
            continue
        value = lookup(*reference)
        if value is MISSING:
            continue
        name = f"{VARIABLE}{len(environment) + 1}"
        environment[name] = environment_value(value, site.found.group())
        size += len(environment[name].encode("utf-8", "surrogatepass"))
        if size > MAX_ENVIRONMENT:
            raise ShellScriptError(
                f"its templates are together longer than {MAX_ENVIRONMENT >> 20} MiB; pass paths of files instead"
            )
        # A shell evaluates the content of variables in arithmetic, so anything but a number could be code.
        if site.around == QuotingContext.ARITHMETIC and not NUMBER.match(environment[name]):
            raise ShellScriptError(f"{site.found.group()} is used in arithmetic, and its value is not a number")
        before = script[end : site.found.start()]
        parts += (_escape_dollar(before, site.around), quoted_variable(name, site.around))
        end = site.found.end()
    parts.append(script[end:])
    return ShellScript("".join(parts), environment)


def quoted_variable(name: str, around: QuotingContext) -> str:
    """Return the reference to a variable, quoted so that its content stays one word."""
    if around in _UNSUPPORTED:
        raise ShellScriptError(_UNSUPPORTED[around])
    if around in {QuotingContext.PLAIN, QuotingContext.COMMAND, QuotingContext.BRACE}:
        return f'"${{{name}}}"'
    # Within single quotes nothing is expanded: end them, add the variable in double quotes, and begin them again.
    if around == QuotingContext.SINGLE:
        return f"'\"${{{name}}}\"'"
    return f"${{{name}}}"


def environment_value(value: object, what: str) -> str:
    """Return a value as the content of a variable. Raises ShellScriptError if no variable can hold it."""
    text = to_text(value)
    if "\0" in text:
        raise ShellScriptError(f"{what} contains a zero byte, which no environment variable can hold")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_ENVIRONMENT_VALUE:
        raise ShellScriptError(
            f"{what} is longer than {MAX_ENVIRONMENT_VALUE >> 10} KiB; pass the path of a file instead"
        )
    return text


def find_script_problems(script: str) -> list[tuple[int, str]]:
    """Return what ``prepare_script`` refuses whatever the values are, as (line from 0, message)."""
    lines = LineCounter(script)
    templates = [site for site in find_template_sites(script) if parse_reference(site.found)]
    refused = [site for site in templates if site.around in _UNSUPPORTED]
    return [(lines.before(site.found.start()), _UNSUPPORTED[site.around]) for site in refused]


def _escape_dollar(text: str, around: QuotingContext) -> str:
    """Escape the dollar of ``${{ x }}``, as other template languages write it, so that it stays a dollar."""
    if text.endswith("$") and around != QuotingContext.SINGLE:
        return f"{text[:-1]}\\$"
    return text


def find_template_sites(script: str) -> list[TemplateSite]:
    """Return every template outside comments."""
    if "{{" in script:
        return _ShellScanner(script).scan()
    return []


class _ShellScanner:
    """Tracks the quoting of a POSIX shell from the first to the last character."""

    def __init__(self, script: str):
        self._script = script
        self._position = 0
        self._stack: list[tuple[QuotingContext, int]] = [(QuotingContext.PLAIN, 0)]
        self._sites: list[TemplateSite] = []
        self._heredocs: list[tuple[str, bool]] = []

    def scan(self) -> list[TemplateSite]:
        while self._position < len(self._script):
            if plain := _PLAIN_TEXT.match(self._script, self._position):
                self._position = plain.end()
                continue
            if self._take_template(self._context):
                continue
            char = self._script[self._position]
            if char == "\\" and self._context != QuotingContext.SINGLE:
                self._position += 2
            elif char == "\n" and self._heredocs and self._context in {QuotingContext.PLAIN, QuotingContext.COMMAND}:
                self._position += 1
                self._read_heredocs()
            elif not self._open_context(char) and not self._close_context(char):
                self._position += 1
        return self._sites

    @property
    def _context(self) -> QuotingContext:
        return self._stack[-1][0]

    def _take_template(self, around: QuotingContext) -> bool:
        found = TEMPLATE.match(self._script, self._position)
        if found is None:
            return False
        self._sites.append(TemplateSite(found, around))
        self._position = found.end()
        return True

    def _push(self, around: QuotingContext, length: int, depth: int = 0) -> bool:
        self._stack.append((around, depth))
        self._position += length
        return True

    def _open_context(self, char: str) -> bool:
        if self._context == QuotingContext.SINGLE:
            return False
        # ``${{ x }}`` is a dollar before a template, and not the expansion of a parameter.
        if char == "$" and TEMPLATE.match(self._script, self._position + 1):
            return False
        if char == "$":
            return self._open_after_dollar()
        if char == "`" and self._context != QuotingContext.BACKQUOTE:
            return self._push(QuotingContext.BACKQUOTE, 1)
        return self._context not in {
            QuotingContext.DOUBLE,
            QuotingContext.QUOTED_BRACE,
            QuotingContext.ARITHMETIC,
        } and self._open_unquoted(char)

    def _open_after_dollar(self) -> bool:
        opener = next((text for text in _OPENING if self._script.startswith(text, self._position)), "")
        if opener == "$((":
            return self._push(QuotingContext.ARITHMETIC, 3)
        if opener == "$(":
            return self._push(QuotingContext.COMMAND, 2)
        if opener == "${":
            if self._context in {QuotingContext.DOUBLE, QuotingContext.QUOTED_BRACE, QuotingContext.HEREDOC}:
                return self._push(QuotingContext.QUOTED_BRACE, 2)
            return self._push(QuotingContext.BRACE, 2)
        return False

    def _open_unquoted(self, char: str) -> bool:
        if char == "'":
            return self._push(QuotingContext.SINGLE, 1)
        if char == '"':
            return self._push(QuotingContext.DOUBLE, 1)
        if self._context not in {QuotingContext.PLAIN, QuotingContext.COMMAND}:
            return False
        if char == "(":
            return self._push(QuotingContext.COMMAND, 1)
        if char == "#" and (self._position == 0 or self._script[self._position - 1] in " \t\n;|&("):
            self._position = self._end_of_line()
            return True
        return char == "<" and self._begin_heredoc()

    def _begin_heredoc(self) -> bool:
        if self._script.startswith("<<<", self._position):
            self._position += 3
            return True
        found = _HEREDOC.match(self._script, self._position)
        if found is None:
            return False
        self._heredocs.append((found["word"], bool(found["quote"])))
        self._position = found.end() + (found["quote"] in {"'", '"'})
        return True

    def _close_context(self, char: str) -> bool:
        around, depth = self._stack[-1]
        if around == QuotingContext.ARITHMETIC:
            return self._count_parentheses(char, depth)
        if char != _CLOSING.get(around):
            return False
        self._stack.pop()
        self._position += 1
        return True

    def _count_parentheses(self, char: str, depth: int) -> bool:
        if char == ")" and depth == 0:
            self._stack.pop()
            self._position += 2
            return True
        if char == "(":
            self._stack[-1] = (QuotingContext.ARITHMETIC, depth + 1)
        elif char == ")":
            self._stack[-1] = (QuotingContext.ARITHMETIC, depth - 1)
        return False

    def _end_of_line(self) -> int:
        end = self._script.find("\n", self._position)
        if end < 0:
            return len(self._script)
        return end

    def _read_heredocs(self) -> None:
        for word, is_quoted in self._heredocs:
            around = QuotingContext.QUOTED_HEREDOC if is_quoted else QuotingContext.HEREDOC
            self._read_heredoc(word, around)
        self._heredocs = []

    def _read_heredoc(self, word: str, around: QuotingContext) -> None:
        while self._position < len(self._script):
            end = self._end_of_line()
            line = self._script[self._position : end]
            for found in TEMPLATE.finditer(self._script, self._position, end):
                self._sites.append(TemplateSite(found, around))
            self._position = end + 1
            if line.strip() == word:
                return
