"""Tests wait long enough for what must happen: a busy machine may need many seconds for anything."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Final

from tests.services import ROOT
from tests.source_files import source_files

MEASURING: Final = ("bench", "soak", "chaos", "agent_matrix", "hostile_load")
"""Areas that are programs, and choose their own limits."""
LEAST: Final = 60
AT_ONCE: Final = 0.5
"""Shorter limits are pauses that are meant to pass."""
LIMIT_AT: Final = {
    **dict.fromkeys(("eventually", "eventually_async", "wait_for"), 1),
    **dict.fromkeys(("wait", "join", "receive", "receive_json", "receive_str", "receive_output", "close_code"), 0),
}
"""Position of the limit among the arguments of each function that waits."""


def impatient_lines(source: str) -> Iterator[int]:
    """Yield the lines that wait for less than ``LEAST`` seconds, except where a timeout is expected."""
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    expected = {id(call) for block in ast.walk(tree) if _expects_timeout(block) for call in ast.walk(block)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and id(call) not in expected and AT_ONCE < _limit_of(call, constants) < LEAST:
            yield call.lineno


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the module's constants."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((ast.unparse(target), statement.value.value) for target in targets)


def _limit_of(call: ast.Call, constants: Mapping[str, object]) -> float:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in LIMIT_AT:
        return math.inf
    given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"] or call.args[LIMIT_AT[name] :]
    value = constants.get(given[0].id) if given and isinstance(given[0], ast.Name) else None
    if given and isinstance(given[0], ast.Constant):
        value = given[0].value
    return value if isinstance(value, int | float) else math.inf


def _expects_timeout(block: ast.AST) -> bool:
    return isinstance(block, ast.With) and "raises" in ast.unparse(block.items[0])


def test_tests_wait_long_enough() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files("tests")
        if path.relative_to(ROOT / "tests").parts[0] not in MEASURING
        for line in impatient_lines(path.read_text())
    ]
    assert found == [], "use tests.waiting.PATIENCE"


def test_impatience_is_found() -> None:
    source = """
SOON = 5
process.wait(5)
eventually(lambda: True, timeout=5)
asyncio.wait_for(task, 5)
process.wait(SOON)
process.wait(PATIENCE)
process.wait(60)
thread.join()
with pytest.raises(AssertionError):
    eventually(lambda: False, timeout=1)
"""
    assert list(impatient_lines(source)) == [3, 4, 5, 6]
