"""Browser tests wait for the state of the page that they need, with the helpers that know how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.services import ROOT
from tests.source_files import source_files

ONLY_IN: Final = {
    "Axe().run": "tests/pages/accessibility.py",  # which waits for the end of transitions
    "wait_for_function": "tests/pages/browsers.py",  # which says why it does not work
    'route("**/live/**", lambda route: None)': "tests/pages/browsers.py",  # which waits for what is on its way
}


@pytest.mark.parametrize(("code", "place"), ONLY_IN.items())
def test_helper_takes_the_place_of_what_does_not_wait(code: str, place: str) -> None:
    others = [path for path in source_files("tests") if path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in others if code in path.read_text()] == [place]


def test_tests_in_a_browser_have_its_mark() -> None:
    """Without it, `make test` would run them, and they would run again on PostgreSQL, where they do the same."""
    tests = [path for path in source_files("tests") if path.name.startswith("test_")]
    in_browser = [path for path in tests if re.search(r"\b(visit: Any|browser: Browser)\b", path.read_text())]
    assert in_browser
    assert [str(path.relative_to(ROOT)) for path in in_browser if "mark.browser" not in path.read_text()] == []
