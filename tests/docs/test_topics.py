"""Each package of ``sessions_app`` is a topic with a README, a promise and modules that say what they contain."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from scripts.documents.topics import topic_readme, topics
from tests.services import ROOT

APP: Final = ROOT / "sessions_app"
LOOSE_MODULES: Final = {
    *("__init__.py", "admin.py", "apps.py", "events.py", "jobs.py", "journal.py", "models.py", "open_waits.py"),
    "routing.py",
    "tasks.py",  # the former paths of jobs
}
"""What brings all topics together, where Django and Channels look for it."""


@pytest.mark.parametrize("name", topics())
def test_topic_says_what_it_promises(name: str) -> None:
    assert ast.get_docstring(ast.parse((APP / name / "__init__.py").read_text()))


@pytest.mark.parametrize("name", topics())
def test_readme_of_a_topic_lists_every_module_that_has_contents(name: str) -> None:
    readme = topic_readme(name)
    modules = [path for path in (APP / name).rglob("*.py") if "migrations" not in path.parts and path.stat().st_size]
    missing = [path.name for path in modules if f"({path.relative_to(APP / name)})" not in readme]
    assert missing == ["__init__.py"]


def test_every_other_module_brings_topics_together() -> None:
    assert {path.name for path in APP.glob("*.py")} == LOOSE_MODULES


def test_every_template_lies_in_the_folder_named_after_its_topic() -> None:
    misplaced = [
        path.relative_to(APP).as_posix()
        for path in APP.glob("*/templates/**/*.html")
        if path.relative_to(APP).parts[2] != path.relative_to(APP).parts[0]
    ]
    assert misplaced == []


def test_shared_templates_are_layouts_error_pages_shared_parts_and_the_admin() -> None:
    names = [path.relative_to(ROOT / "templates") for path in (ROOT / "templates").rglob("*.html")]
    shared = {name.parts[0] for name in names if not name.stem.removesuffix("_csrf").isdigit()}
    assert shared == {"admin", "base.html", "parts", "plain.html"}
