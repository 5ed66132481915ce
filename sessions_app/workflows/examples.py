"""The shipped examples of workflows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django.conf import settings

from sessions_app.workflows.loader.loading import load_workflow


@dataclass(frozen=True, slots=True)
class WorkflowExample:
    """A shipped example. ``slug`` is its name in URLs and the stem of its file."""

    slug: str
    name: str
    about: str
    text: str


DEFAULT_EXAMPLE: Final = WorkflowExample(
    "",
    "",
    "",
    """\
version: 3
metadata:
  name: A new workflow
nodes:
  - id: trigger
    type: trigger
    data: { label: Start, triggerType: manual }
  - id: hello
    type: shell
    data:
      label: Say hello
      script: echo "Hello, {{ trigger.text }}"
edges:
  - { source: trigger, target: hello }
""",
)
EXAMPLES: Final = (
    ("fix-until-tests-pass", "An agent works until the tests pass, and gets their output while they fail."),
    (
        "review-until-approved",
        "A coder keeps its conversation and a reviewer starts over, until the review approves.",
    ),
    ("pattern-a", "One session through two loops: review, then tests."),
    ("pattern-b", "A gate sends work back if it fails its checks."),
)
_DIRECTORY: Final = Path(settings.BASE_DIR) / "docs" / "examples" / "workflows"


@cache
def find_example(slug: str) -> WorkflowExample:
    """Return the example with this slug, or the small default workflow."""
    about = dict(EXAMPLES).get(slug)
    path = _DIRECTORY / f"{slug}.yaml"
    if about is None or not path.is_file():
        return DEFAULT_EXAMPLE
    text = path.read_text(encoding="utf-8")
    workflow = load_workflow(text).workflow
    name = workflow.name if workflow else slug
    return WorkflowExample(slug, name, about, text)


def shipped_examples() -> list[WorkflowExample]:
    """Return the examples whose files are there."""
    examples = [find_example(slug) for slug, _ in EXAMPLES]
    return [example for example in examples if example is not DEFAULT_EXAMPLE]
