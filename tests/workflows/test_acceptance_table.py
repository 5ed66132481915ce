"""Every acceptance case has a test."""

from __future__ import annotations

import re

import pytest

from tests.services import ROOT
from tests.workflows.acceptance_table import CASES

WANTED = {*map(str, range(30, 60)), *"OPQRSTU"}


def test_table_has_every_acceptance_case() -> None:
    assert {case.split()[0] for case in CASES} == WANTED


@pytest.mark.parametrize("case", CASES)
def test_tests_in_the_table_exist(case: str) -> None:
    for named in CASES[case]:
        file, _, function = named.partition("::")
        found = re.search(rf"^(async )?def {function}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        assert found, named
