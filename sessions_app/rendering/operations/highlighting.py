"""Highlight code as HTML: ``<span class="…">`` with the short class names of Pygments.

Only languages on a list are highlighted: the author of the code also chooses the language, and every lexer adds risk.
Some lexers take time that grows with the square of the length, so this runs in a limited process only.
"""

from __future__ import annotations

from html import escape
from typing import Final

from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename, get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

MAX_CHARS: Final = 200_000
"""Longer code is not highlighted."""
MAX_LINE: Final = 5_000
LANGUAGES: Final = frozenset(
    {"bash", "c", "cmake", "console", "cpp", "csharp", "css", "csv", "dart", "diff", "docker", "elixir", "erlang", "go"}
    | {"graphql", "groovy", "haskell", "html", "html+django", "ini", "java", "javascript", "jinja", "json", "jsx"}
    | {"kotlin", "less", "lua", "make", "markdown", "nginx", "perl", "php", "powershell", "properties", "protobuf"}
    | {"python", "r", "ruby", "rust", "scala", "scss", "sql", "swift", "terraform", "toml", "tsx", "typescript"}
    | {"vue", "xml", "yaml", "zig"}
)
CLASSES: Final = frozenset(filter(None, STANDARD_TYPES.values()))
"""All class names that the output may contain."""
_FORMATTER: Final = HtmlFormatter(nowrap=True)


def highlight_code(code: str, language: str) -> str:
    """Highlight code in a language by its usual name (``py``, ``sh``); an unknown language is only escaped."""
    if not language:
        return escape(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    return _highlight(code, lexer)


def highlight_file(code: str, path: str) -> str:
    """Highlight the content of a file, whose name determines the language."""
    kind = find_lexer_class_for_filename(path.rpartition("/")[2])
    if kind is None:
        return escape(code)
    return _highlight(code, kind(stripnl=False, ensurenl=False))


def _highlight(code: str, lexer: Lexer) -> str:
    is_too_long = len(code) > MAX_CHARS or any(len(line) > MAX_LINE for line in code.splitlines())
    if is_too_long or not LANGUAGES.intersection(lexer.aliases):
        return escape(code)
    return str(highlight(code, lexer, _FORMATTER))
