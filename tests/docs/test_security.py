"""Every row in the tables of docs/security.md names tests that pytest can collect."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.documents import text_of
from tests.services import ROOT

_NODE = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")
_FILE = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)*`")
_HEADS = ("asset | attacker | boundary | mechanism | test", "stored | who may write it |")


def table_rows(head: str) -> list[str]:
    """Return the rows of the table whose heading starts with ``head``."""
    table = text_of("security.md").split(f"| {head}", 1)[1].split("\n\n", 1)[0]
    return [line for line in table.splitlines()[2:] if line.startswith("|")]


@cache
def cases_of(file: str) -> frozenset[str]:
    """Return the tests that pytest collects from a file, as far as its source shows."""
    found: set[str] = set()
    for one in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        inner = one.body if isinstance(one, ast.ClassDef) else [one]
        prefix = f"{one.name}::" if isinstance(one, ast.ClassDef) else ""
        functions = [each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        found |= {f"{prefix}{each.name}" for each in functions if each.name.startswith("test_")}
    return frozenset(found)


def entrances() -> list[str]:
    """Return the rows of all tables of entrances."""
    tables = text_of("security.md").split("\n| entrance |")[1:]
    return [line for table in tables for line in table.split("\n\n", 1)[0].splitlines()[2:] if line.startswith("|")]


def test_every_entrance_names_a_test() -> None:
    rows = entrances()
    assert len(rows) > 30
    for row in rows:
        files = _FILE.findall(row.rsplit("|", 2)[1])
        assert files, row
        assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("head", _HEADS)
def test_every_row_names_a_test(head: str) -> None:
    rows = table_rows(head)
    assert rows
    assert [row for row in rows if not _NODE.search(row.rsplit("|", 2)[1])] == []


def test_every_named_test_can_be_collected() -> None:
    named = sorted(set(_NODE.findall(text_of("security.md"))))
    lost = []
    for one in named:
        file, _, test = one.partition("::")
        if not (ROOT / file).exists() or test not in cases_of(file):
            lost.append(one)
    assert lost == []
