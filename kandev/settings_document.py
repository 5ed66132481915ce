"""Generate ``docs/settings.md`` from `kandev.environment`: settings, accepted values, defaults and meanings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

from kandev import environment
from kandev.environment import Environment, variable_name

NAME: Final = "settings.md"
_ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = ("kandev", "executors_app", "sessions_app")
_ASSIGNMENT: Final = r"^{name} = _env\.{field}$"
_INTRODUCTION: Final = """\
Settings are environment variables, read in [one place](../kandev/environment.py). An unknown `KANDEV_*` name or an \
invalid value ends every command with one line and status 2. Names that begin with `KANDEV_SERVICE_` or `KANDEV_PORT`, \
and the markers of agent processes, are ignored. `KANDEV_AGENT_USER` of earlier versions has no effect, and is \
reported with a warning.

A setting that is marked *secret* can also be read from a file: set `KANDEV_SECRET_KEY_FILE=/run/secrets/key` instead \
of `KANDEV_SECRET_KEY`. Durations are in seconds."""


def settings_documents() -> dict[str, str]:
    """Return the text of the document by its file name in ``docs/``."""
    head = "| setting | value | default | meaning |\n| --- | --- | --- | --- |"
    rows = "\n".join(_table_row(entry, meaning) for entry, meaning in _settings_table())
    written = "<!-- Written by `manage.py write_docs`. Change kandev/environment.py, not this file. -->"
    return {NAME: f"# Settings\n\n{written}\n\n{_INTRODUCTION}\n\n{head}\n{rows}\n"}


def _settings_table() -> Iterator[tuple[Field[Any], str]]:
    meanings = _field_descriptions()
    unread = set(_unread_fields())
    for entry in fields(Environment):
        meaning = meanings[entry.name]
        yield entry, f"{meaning} *Nothing reads it yet.*" if entry.name in unread else meaning


def _field_descriptions() -> Mapping[str, str]:
    """Return the docstring under each field."""
    tree = ast.parse(inspect.getsource(Environment)).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101  (its source begins with it)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = str(ast.literal_eval(text.value)).replace("``", "`")
    return found


def _table_row(entry: Field[Any], meaning: str) -> str:
    takes = str(entry.metadata["parse"].__doc__).rstrip(".")
    if entry.metadata["secret"]:
        takes += " (*secret*)"
    default = f"`{entry.metadata['default']}`" if entry.metadata["default"] else "–"
    return f"| `{variable_name(entry)}` | {takes[0].lower()}{takes[1:]} | {default} | {meaning} |"


def _unread_fields() -> Iterator[str]:
    """Return fields that become a Django setting which no code reads."""
    own = (_ROOT / "kandev" / "settings.py").read_text(encoding="utf-8")
    mine = {environment.__file__, __file__, str(_ROOT / "kandev" / "settings.py")}
    others = [path for name in _PACKAGES for path in (_ROOT / name).rglob("*.py") if str(path) not in mine]
    asked = set(re.findall(r"\bKANDEV_[A-Z_]+", "".join(path.read_text(encoding="utf-8") for path in others)))
    for entry in fields(Environment):
        name = variable_name(entry)
        plain = re.compile(_ASSIGNMENT.format(name=name, field=entry.name), re.MULTILINE)
        rest = plain.sub("", own)
        if name not in asked and not re.search(rf"\b({name}|_env\.{entry.name})\b", rest):
            yield entry.name
