"""Values in a shell script: each template becomes a variable, quoted as its place needs, and the value its content.

So a value is never read as a script, whatever it holds. Where the shell would not expand a variable (in a quoted
here-document) or would read it twice (in backquotes), the script is refused.
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
_PLAIN_TEXT: Final = re.compile(r"(?:[^\\$`'\"(){}<#\n]++|\{(?=\{\{|[^{]|\Z))++")
"""What means nothing to a shell wherever it stands; of many braces in a row only the last two can begin a template."""
_OPENING: Final = ("$((", "$(", "${")


class QuotingContext(StrEnum):
    """What a place in a script lies within."""

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
    QuotingContext.BACKQUOTE: "a template stands in backquotes; write $(…) instead",
    QuotingContext.QUOTED_HEREDOC: "a template stands in a here-document with a quoted delimiter; remove the quotes",
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
    """A script and a value do not go together; the message is for people."""


@dataclass(frozen=True, slots=True)
class TemplateSite:
    """One template of a script, and what it lies within."""

    found: re.Match[str]
    around: QuotingContext


@dataclass(frozen=True, slots=True)
class ShellScript:
    """A script and the variables it reads."""

    script: str
    environment: Mapping[str, str]


def prepare_script(script: str, lookup: Lookup) -> ShellScript:
    """The script with a variable in place of every template that has a value. Raises ShellTextError."""
    parts: list[str] = []
    environment: dict[str, str] = {}
    end = size = 0
    for site in find_template_sites(script):
        asked = parse_reference(site.found)
        value = MISSING if asked is None else lookup(*asked)
        if value is MISSING:
            continue
        name = f"{VARIABLE}{len(environment) + 1}"
        environment[name] = environment_value(value, site.found.group())
        size += len(environment[name].encode("utf-8", "surrogatepass"))
        if size > MAX_ENVIRONMENT:
            raise ShellScriptError(f"its templates are together longer than {MAX_ENVIRONMENT >> 20} MiB; pass files")
        if site.around == QuotingContext.ARITHMETIC and not NUMBER.match(environment[name]):
            raise ShellScriptError(f"{site.found.group()} stands in arithmetic and is not a number")
        before = script[end : site.found.start()]
        parts += (_strip_dollar(before, site.around), quoted_variable(name, site.around))
        end = site.found.end()
    return ShellScript("".join([*parts, script[end:]]), environment)


def quoted_variable(name: str, around: QuotingContext) -> str:
    """How a variable is written in a place, so that its content stays one word of text."""
    if around in _UNSUPPORTED:
        raise ShellScriptError(_UNSUPPORTED[around])
    if around in {QuotingContext.PLAIN, QuotingContext.COMMAND, QuotingContext.BRACE}:
        return f'"${{{name}}}"'
    return f"'\"${{{name}}}\"'" if around == QuotingContext.SINGLE else f"${{{name}}}"


def environment_value(value: object, what: str) -> str:
    """A value as a variable's content. Raises ShellTextError for one that no variable can hold."""
    text = to_text(value)
    if "\0" in text:
        raise ShellScriptError(f"{what} holds a zero byte, which no variable can")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_ENVIRONMENT_VALUE:
        raise ShellScriptError(f"{what} is longer than {MAX_ENVIRONMENT_VALUE >> 10} KiB; pass the path of a file")
    return text


def find_script_problems(script: str) -> list[tuple[int, str]]:
    """What ``prepare`` would refuse whatever the values: (line from 0, message)."""
    lines = LineCounter(script)
    return [
        (lines.before(site.found.start()), _UNSUPPORTED[site.around])
        for site in find_template_sites(script)
        if site.around in _UNSUPPORTED and parse_reference(site.found)
    ]


def _strip_dollar(text: str, around: QuotingContext) -> str:
    """``${{ x }}`` of other template languages: the dollar must not run into the variable."""
    return f"{text[:-1]}\\$" if text.endswith("$") and around != QuotingContext.SINGLE else text


def find_template_sites(script: str) -> list[TemplateSite]:
    """Every template outside of comments."""
    return _ShellScanner(script).scan() if "{{" in script else []


class _ShellScanner:
    """Follows the quoting of a POSIX shell from the first to the last character."""

    def __init__(self, script: str):
        self._script = script
        self._at = 0
        self._stack: list[tuple[QuotingContext, int]] = [(QuotingContext.PLAIN, 0)]
        self._found: list[TemplateSite] = []
        self._heredocs: list[tuple[str, bool]] = []

    def scan(self) -> list[TemplateSite]:
        while self._at < len(self._script):
            if plain := _PLAIN_TEXT.match(self._script, self._at):
                self._at = plain.end()
                continue
            if self._template(self._top):
                continue
            char = self._script[self._at]
            if char == "\\" and self._top != QuotingContext.SINGLE:
                self._at += 2
            elif char == "\n" and self._heredocs and self._top in {QuotingContext.PLAIN, QuotingContext.COMMAND}:
                self._at += 1
                self._read_heredocs()
            elif not self._opened(char) and not self._closed(char):
                self._at += 1
        return self._found

    @property
    def _top(self) -> QuotingContext:
        return self._stack[-1][0]

    def _template(self, around: QuotingContext) -> bool:
        found = TEMPLATE.match(self._script, self._at)
        if found is None:
            return False
        self._found.append(TemplateSite(found, around))
        self._at = found.end()
        return True

    def _push(self, around: QuotingContext, length: int, depth: int = 0) -> bool:
        self._stack.append((around, depth))
        self._at += length
        return True

    def _opened(self, char: str) -> bool:
        if self._top == QuotingContext.SINGLE:
            return False
        if char == "$" and TEMPLATE.match(self._script, self._at + 1):
            return False
        if char == "$":
            return self._opened_by_dollar()
        if char == "`" and self._top != QuotingContext.BACKQUOTE:
            return self._push(QuotingContext.BACKQUOTE, 1)
        return self._top not in {
            QuotingContext.DOUBLE,
            QuotingContext.QUOTED_BRACE,
            QuotingContext.ARITHMETIC,
        } and self._opened_bare(char)

    def _opened_by_dollar(self) -> bool:
        opener = next((one for one in _OPENING if self._script.startswith(one, self._at)), "")
        if opener == "$((":
            return self._push(QuotingContext.ARITHMETIC, 3)
        if opener == "$(":
            return self._push(QuotingContext.COMMAND, 2)
        if opener == "${":
            quoted = self._top in {QuotingContext.DOUBLE, QuotingContext.QUOTED_BRACE, QuotingContext.HEREDOC}
            return self._push(QuotingContext.QUOTED_BRACE if quoted else QuotingContext.BRACE, 2)
        return False

    def _opened_bare(self, char: str) -> bool:
        if char in "'\"":
            return self._push(QuotingContext.SINGLE if char == "'" else QuotingContext.DOUBLE, 1)
        if self._top not in {QuotingContext.PLAIN, QuotingContext.COMMAND}:
            return False
        if char == "(":
            return self._push(QuotingContext.COMMAND, 1)
        if char == "#" and (self._at == 0 or self._script[self._at - 1] in " \t\n;|&("):
            end = self._script.find("\n", self._at)
            self._at = len(self._script) if end < 0 else end
            return True
        return char == "<" and self._heredoc_announced()

    def _heredoc_announced(self) -> bool:
        if self._script.startswith("<<<", self._at):
            self._at += 3
            return True
        found = _HEREDOC.match(self._script, self._at)
        if found is None:
            return False
        self._heredocs.append((found["word"], bool(found["quote"])))
        self._at = found.end() + (found["quote"] in {"'", '"'})
        return True

    def _closed(self, char: str) -> bool:
        around, depth = self._stack[-1]
        if around == QuotingContext.ARITHMETIC:
            return self._arithmetic(char, depth)
        if char != _CLOSING.get(around):
            return False
        self._stack.pop()
        self._at += 1
        return True

    def _arithmetic(self, char: str, depth: int) -> bool:
        if char == ")" and depth == 0:
            self._stack.pop()
            self._at += 2
            return True
        if char in "()":
            self._stack[-1] = (QuotingContext.ARITHMETIC, depth + (1 if char == "(" else -1))
        return False

    def _read_heredocs(self) -> None:
        for word, quoted in self._heredocs:
            self._read_heredoc(word, QuotingContext.QUOTED_HEREDOC if quoted else QuotingContext.HEREDOC)
        self._heredocs = []

    def _read_heredoc(self, word: str, around: QuotingContext) -> None:
        while self._at < len(self._script):
            end = self._script.find("\n", self._at)
            end = len(self._script) if end < 0 else end
            line = self._script[self._at : end]
            self._found += (TemplateSite(found, around) for found in TEMPLATE.finditer(self._script, self._at, end))
            self._at = end + 1
            if line.strip() == word:
                return
