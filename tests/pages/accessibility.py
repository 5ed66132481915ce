"""The accessibility of pages, which axe checks."""

from __future__ import annotations

from typing import Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

OPTIONS: Final = {"preload": False, "resultTypes": ["violations"]}
"""Every rule is checked as usual. What passed is not described, which took longer than the checks; and no style sheets
are fetched, because no rule uses them: axe would look for those that others import beside the page."""
TRANSITIONS_ENDED: Final = """() => Promise.allSettled(
    document.getAnimations().filter(one => one instanceof CSSTransition).map(one => one.finished))"""


def accessibility_problems(page: Page, where: str = "the page") -> list[str]:
    """Return axe's findings once transitions have ended: colours between two states lack contrast."""
    page.evaluate(TRANSITIONS_ENDED)
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return [f"{where}: {one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
