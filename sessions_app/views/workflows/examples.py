"""The workflows that are shipped: a start for one's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django.conf import settings

from sessions_app.workflows.loading import load


@dataclass(frozen=True, slots=True)
class Example:
    """One of them; ``slug`` is what an address calls it, and the name of its file."""

    slug: str
    name: str
    about: str
    text: str


EMPTY: Final = Example(
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
    (
        "review-until-approved",
        "A coder whose conversation goes on and a reviewer who begins anew, until it is approved.",
    ),
    ("pattern-a", "One session through two loops: review, then tests."),
    ("pattern-b", "A gate that sends back what fails its checks."),
    ("test-resumable-claude-code", "One session of Claude Code that counts from 42 to 52 over a loop."),
    ("test-resumable-codex", "The same with Codex."),
    ("test-resumable-openai", "The same with a model of OpenAI."),
)
_DIRECTORY: Final = Path(settings.BASE_DIR) / "docs" / "examples" / "workflows"


@cache
def example(slug: str) -> Example:
    """The example of this name; the empty one for any other."""
    about = dict(EXAMPLES).get(slug)
    path = _DIRECTORY / f"{slug}.yaml"
    if about is None or not path.is_file():
        return EMPTY
    text = path.read_text(encoding="utf-8")
    loaded = load(text).workflow
    return Example(slug, loaded.name if loaded else slug, about, text)


def examples() -> list[Example]:
    """All that are there."""
    return [found for slug, _ in EXAMPLES if (found := example(slug)).slug]
