"""docs/settings.md: the settings, with the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, Final

from kandev.environment import Environment, variable_name
from scripts.documents.markdown import written_by

_INTRODUCTION: Final = """\
Settings are environment variables, read in [one place](../kandev/environment.py). An unknown `KANDEV_*` name or an \
invalid value ends every command with one line and status 2. Names that begin with `KANDEV_SERVICE_` or `KANDEV_PORT`, \
and the markers of agent processes, are ignored.

A setting that is marked *secret* can also be read from a file: set `KANDEV_SECRET_KEY_FILE=/run/secrets/key` instead \
of `KANDEV_SECRET_KEY`. Durations are in seconds."""


def settings_document() -> str:
    """Return ``docs/settings.md``: settings, accepted values, defaults and meanings."""
    head = "| setting | value | default | meaning |\n| --- | --- | --- | --- |"
    meanings = _field_descriptions()
    rows = "\n".join(_table_row(entry, meanings[entry.name]) for entry in fields(Environment))
    written = written_by("kandev/environment.py")
    return f"# Settings\n\n{written}\n\n{_INTRODUCTION}\n\n{head}\n{rows}\n"


def _field_descriptions() -> Mapping[str, str]:
    """Return the docstring under each field."""
    tree = ast.parse(inspect.getsource(Environment)).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101  (its source begins with it)
    found = {}
    for entry, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and isinstance(text, ast.Expr):
            found[entry.target.id] = str(ast.literal_eval(text.value)).replace("``", "`")
    return found


def _table_row(entry: Field[Any], meaning: str) -> str:
    takes = str(entry.metadata["parse"].__doc__).rstrip(".")
    if entry.metadata["secret"]:
        takes += " (*secret*)"
    default = f"`{entry.metadata['default']}`" if entry.metadata["default"] else "–"
    return f"| `{variable_name(entry)}` | {takes[0].lower()}{takes[1:]} | {default} | {meaning} |"
