"""A number and its unit agree: *1 token*, *2 tokens*.

Sentences get both from ``plural`` or ``count_text``, and templates from ``pluralize``: no place says *1 tokens*.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.services import ROOT
from tests.source_files import source_files

UNITS: Final = (
    *("agents", "attempts", "branches", "bytes", "changes", "characters", "checks", "commands", "commits", "days"),
    *("directories", "entries", "errors", "events", "files", "hours", "items", "lines", "members", "messages"),
    *("minutes", "nodes", "others", "pages", "processes", "prompts", "repositories", "requests", "results", "rows"),
    *("runs", "seconds", "sessions", "starts", "steps", "tasks", "times", "tokens", "turns", "users", "versions"),
    *("warnings", "workflows"),
)
"""What is counted, as people read it."""
_UNIT = rf"(?:(?:more|other|further|last) )?(?:{'|'.join(UNITS)})\b"
_AFTER_VALUE = re.compile(f" {_UNIT}")
_FORMAT = re.compile(rf"\{{[^{{}}]*\}} {_UNIT}")
_TEMPLATE = re.compile(rf"\}}\}} {_UNIT}")
_SCRIPT = re.compile(rf"\$\{{[^{{}}]*\}} {_UNIT}")
_BOUND = re.compile(r"(at most|at least|more than|longer than|up to|between [^.]* and) $")
"""Words before a bound that the program sets, which is never 1."""
_WORDING = {"plural", "count_text"}
EXCEPTIONS: Final = {
    ("executors_app/machine/git/commit_log.py", "{} commits"): "1 is a case of its own",
    ("executors_app/wire/log_rate_limit.py", "{} more lines"): "1 is a case of its own",
    ("executors_app/repositories/branch_merge.py", "{} files"): "1 is a case of its own",
    ("executors_app/machine/git/rebuild_plan.py", "{} commits"): "1 is a case of its own",
    ("sessions_app/hosts/losses.py", "{} seconds"): "a constant",
    ("sessions_app/accounts/templates/accounts/login_throttled.html", "}} minutes"): "a constant",
    ("sessions_app/board/templates/board/board_columns.html", "}} tasks"): "more than are shown",
    ("sessions_app/demo/restart_demo.py", "{} processes"): "a server has several",
    ("sessions_app/notifications/delivery.py", "{} items"): "only for several",
    ("sessions_app/notifications/delivery.py", "{} tasks"): "only for several",
    ("sessions_app/sessions/rules/situation_texts.py", "{} attempts"): "only for several",
    ("sessions_app/sessions/templates/sessions/controls.html", "}} times"): "only for several",
    ("sessions_app/timeline/views.py", "{} characters"): "more than are shown",
    ("sessions_app/turns/interruptions.py", "{} times"): "only for several",
    ("sessions_app/workflows/run_command.py", "{} users"): "1 is taken without asking",
    ("sessions_app/workflows/loader/loading.py", "{} steps"): "more than are allowed",
    ("sessions_app/workflows/services/run_conditions.py", "{} steps"): "their names",
    ("sessions_app/workflows/services/trigger_confirmation.py", "{} minutes"): "compared with what was confirmed",
    ("sessions_app/workspace/services/workspace_notes.py", "{} files"): "the plural of a pair",
    ("sessions_app/usage/templates/usage/usage.html", "}} days"): "the periods are constants",
}
"""File and words, and why the number there is never 1, or why the words stay."""


def _is_constant(value: ast.expr) -> bool:
    """Whether an expression is made of constants of the program."""
    names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return all(name.isupper() for name in names) and not any(isinstance(node, ast.Call) for node in ast.walk(value))


def _in_python(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    worded = {
        id(part)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in _WORDING
        for part in ast.walk(call)
    }
    # A pair of singular and plural, which a caller chooses from.
    pairs = [node.elts for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 2]
    worded |= {id(pair[1]) for pair in pairs if str(getattr(pair[0], "value", "")).startswith("1 ")}
    for node in ast.walk(tree):
        if id(node) in worded:
            continue
        if isinstance(node, ast.JoinedStr):
            yield from _in_f_string(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in _FORMAT.finditer(node.value):
                if not _BOUND.search(node.value[: found.start()]):
                    yield re.sub(r"\{.*?\}", "{}", found[0])


def _in_f_string(node: ast.JoinedStr) -> Iterator[str]:
    for number, (value, text) in enumerate(zip(node.values, node.values[1:], strict=False)):
        if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
            continue
        before = node.values[number - 1] if number else None
        is_bound = isinstance(before, ast.Constant) and bool(_BOUND.search(str(before.value)))
        if (found := _AFTER_VALUE.match(str(text.value))) and not is_bound and not _is_constant(value.value):
            yield f"{{}}{found[0]}"


def _found_in(path: Path) -> list[str]:
    if path.suffix == ".py":
        return list(_in_python(path))
    pattern, text = _SCRIPT if path.suffix == ".js" else _TEMPLATE, path.read_text()
    found = [each for each in pattern.finditer(text) if not _BOUND.search(text[: each.start()])]
    return [re.sub(r"\$\{.*?\}", "{}", each[0]) for each in found]


def _product_files() -> list[Path]:
    folders = ("sessions_app", "executors_app", "kandev", "templates", "frontend/static")
    return [path for suffix in (".py", ".html", ".txt", ".js") for path in source_files(*folders, suffix=suffix)]


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    paths = [path for path in _product_files() if "migrations" not in path.parts]
    return {(str(path.relative_to(ROOT)), text) for path in paths for text in _found_in(path)}


def test_no_number_stands_before_a_plural_that_may_be_wrong(found: set[tuple[str, str]]) -> None:
    wrong = found - EXCEPTIONS.keys()
    assert wrong == set(), "use plural or count_text, or pluralize in a template"


def test_exceptions_exist(found: set[tuple[str, str]]) -> None:
    assert EXCEPTIONS.keys() - found == set()


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("a.py", 'f"{count} tokens"', True),
        ("a.py", 'f"{count:,} more lines of {source}"', True),
        ("a.py", '"{} tokens".format(count)', True),
        ("a.py", 'f"{MAX_FILES} files"', False),
        ("a.py", 'f"at most {limit} files"', False),
        ("a.py", 'plural(count, "1 token", "{} tokens")', False),
        ("a.py", 'WORDS = {"tokens": ("1 token", "{:,} tokens")}', False),
        ("a.html", "<p>{{ count }} sessions</p>", True),
        ("a.html", "<p>{{ count }} session{{ count|pluralize }}</p>", False),
        ("a.js", "note(`${count} more lines`)", True),
        ("a.js", "note(`${size} B`)", False),
        ("a.js", "note(`A prompt has at most ${most} files`)", False),
    ],
)
def test_wrong_plurals_are_found(name: str, text: str, wrong: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert bool(_found_in(path)) is wrong
