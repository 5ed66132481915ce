"""No acceptance case is without its test."""

from __future__ import annotations

import re

import pytest

from tests.services import ROOT
from tests.workflows.cases import CASES

WANTED = {*map(str, range(30, 60)), *"OPQRSTU"}


def test_every_case_is_in_the_table() -> None:
    assert {case.split()[0] for case in CASES} == WANTED


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_are_there(case: str) -> None:
    for named in CASES[case]:
        file, _, function = named.partition("::")
        found = re.search(rf"^(async )?def {function}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        assert found, named
