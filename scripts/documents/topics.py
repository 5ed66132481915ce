"""The README of each topic of ``sessions_app`` and the list of topics, from their packages and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Final

from django.apps import apps
from django.db.models import Model

from scripts.documents.markdown import join_sections, markdown_table, written_by
from sessions_app.events import EVENT_CLASSES

_ROOT: Final = Path(__file__).parents[2]
_APP: Final = _ROOT / "sessions_app"
_NO_TOPICS: Final = {"migrations", "templatetags"}
_BEGIN, _END = "<!-- topics -->\n", "<!-- end of topics -->"


def topics() -> list[str]:
    """Return the names of the packages of ``sessions_app`` that are topics, in the order of the alphabet."""
    return sorted(path.parent.name for path in _APP.glob("*/__init__.py") if path.parent.name not in _NO_TOPICS)


def topics_document() -> str:
    """Return docs/topics.md with its table written anew; its sentences are written by hand."""
    text = (_ROOT / "docs" / "topics.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    rows = [[f"[{name}](../sessions_app/{name}/README.md)", _promise(name)] for name in topics()]
    table = markdown_table(["topic", "what it promises"], rows)
    return f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}"


def topic_readme(name: str) -> str:
    """Return the README of a topic: what it promises, its modules, tables, events and tests."""
    sections = [
        written_by("the docstrings of this package"),
        f"# {_title(name)}",
        inspect.cleandoc(_docstring(_APP / name / "__init__.py")),
        markdown_table(["module", "contents"], _modules(name)),
    ]
    tables = [[f"`{model._meta.db_table}`", _summary(inspect.getdoc(model) or "")] for model in _models(name)]
    if tables:
        sections += ["## Tables", markdown_table(["table", "contents"], tables)]
    if events := _events(name):
        listed = ", ".join(f"`{event}`" for event in events)
        sections += ["## Events", f"{listed}: see [Events](../../docs/events.md)."]
    if (_ROOT / "tests" / name).is_dir():
        sections += ["## Tests", f"[tests/{name}](../../tests/{name})"]
    return join_sections(sections)


def _title(name: str) -> str:
    words = name.replace("_", " ").capitalize()
    return re.sub(r"\b(api|mcp)\b", lambda found: found[0].upper(), words, flags=re.IGNORECASE)


def _modules(name: str) -> list[list[str]]:
    package = _APP / name
    found = []
    for path in sorted(package.rglob("*.py")):
        summary = _summary(_docstring(path))
        if path == package / "__init__.py" or not summary or "migrations" in path.parts:
            continue
        shown = path.parent if path.name == "__init__.py" else path
        found.append([f"[{shown.relative_to(package)}]({path.relative_to(package)})", summary])
    return found


def _models(name: str) -> list[type[Model]]:
    prefix = f"sessions_app.{name}."
    return [model for model in apps.get_models() if f"{model.__module__}.".startswith(prefix)]


def _events(name: str) -> list[str]:
    prefix = f"sessions_app.{name}."
    return [event.name for event in EVENT_CLASSES.values() if event.__module__.startswith(prefix)]


def _promise(name: str) -> str:
    return _summary(_docstring(_APP / name / "__init__.py"))


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _summary(docstring: str) -> str:
    """Return the first paragraph in one line, with code marked as Markdown does."""
    first = docstring.partition("\n\n")[0]
    return " ".join(first.split()).replace("``", "`")
