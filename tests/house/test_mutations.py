"""The list of mutations fits the code, and a fault that no test finds is reported."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.mutations.__main__ import Checkout, Result, find_problems
from tests.mutations.mutation import Mutation, load_mutations, source_of, to_toml
from tests.services import ROOT

MUTATIONS = load_mutations()
EXAMPLE = Mutation("example", "example.py", "return 1", "return 2", ("tests/test_example.py::test_one",))


@cache
def functions_of(file: Path) -> set[str]:
    return set(re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


def test_mutations_of_the_list_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) == 100
    assert len({(entry.path, entry.original, entry.mutated) for entry in MUTATIONS}) == 100


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_fits_the_code_and_its_tests_exist(mutation: Mutation) -> None:
    source = source_of(mutation)
    assert ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))
    assert mutation.tests
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert function in functions_of(ROOT / file), test


def test_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    copy = tmp_path / "mutations.toml"
    copy.write_text(to_toml(MUTATIONS))
    assert load_mutations(copy) == MUTATIONS


@pytest.mark.parametrize("source", ["return 3", "return 1\nreturn 1"], ids=["changed", "repeated"])
def test_code_that_is_not_found_exactly_once_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="contains the original"):
        EXAMPLE.apply(source)


def test_error_names_the_file_to_which_code_has_moved(tmp_path: Path) -> None:
    moved = tmp_path / "sessions_app" / "prompts" / "rules.py"
    moved.parent.mkdir(parents=True)
    moved.write_text("return 1")
    with pytest.raises(ValueError, match=r"sessions_app/prompts/rules\.py"):
        source_of(EXAMPLE, tmp_path)


def test_mutations_that_do_not_fit_are_all_named_before_any_is_tried(tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text("return 3")
    (tmp_path / EXAMPLE.path).write_text("return 1")
    changed, gone = replace(EXAMPLE, name="changed", path="changed.py"), replace(EXAMPLE, name="gone", path="gone.py")
    problems = find_problems([changed, EXAMPLE, gone], tmp_path)
    assert [problem.partition(":")[0] for problem in problems] == ["changed", "gone"]


class SmallCheckout(Checkout):
    """A copy with one file, whose tests end with a given exit code of pytest."""

    def __init__(self, root: Path, code: int | None):
        self.root, self.code, self.seen = root, code, ""
        (root / EXAMPLE.path).write_text("return 1")

    def run(self, tests: object, timeout: float) -> tuple[int | None, str]:
        """Return the exit code, and note what the tests would have seen."""
        self.seen = (self.root / EXAMPLE.path).read_text()
        return self.code, "output"


@pytest.mark.parametrize(
    ("code", "result"),
    [(1, Result.CAUGHT), (0, Result.SURVIVED), (None, Result.ERROR), (2, Result.ERROR), (4, Result.ERROR)],
    ids=["a test failed", "all passed", "too slow", "interrupted", "tests not found"],
)
def test_only_a_failed_test_counts_as_caught(tmp_path: Path, code: int | None, result: Result) -> None:
    checkout = SmallCheckout(tmp_path, code)
    assert checkout.try_mutation(EXAMPLE, 1.0)[0] is result
    assert checkout.seen == "return 2"
    assert (tmp_path / EXAMPLE.path).read_text() == "return 1"
