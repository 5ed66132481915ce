"""How much pages move while they load, as browsers measure it."""

from __future__ import annotations

from typing import Any, Final

from playwright.sync_api import Page

MAX_SHIFT: Final = 0.05
"""Limit of the layout shift of a page while it loads."""
_OBSERVE: Final = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { hadRecentInput, value, sources } of list.getEntries())
    if (!hadRecentInput)
      window.shifts.push([value, ...sources.map(({ node }) => `${node?.nodeName}.${node?.className}`)]);
}).observe({ type: "layout-shift", buffered: true });
"""
_DRAWN: Final = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def observe_shifts(page: Page) -> None:
    """Collect what moves in the pages that are opened from now on."""
    page.add_init_script(_OBSERVE)


def shifts_of(page: Page) -> list[list[Any]]:
    """Return what has moved: how much, and which elements; empty if that is less than the limit, or not observed."""
    page.evaluate(_DRAWN)
    shifts: list[list[Any]] = page.evaluate("window.shifts ?? []")
    if sum(value for value, *_ in shifts) < MAX_SHIFT:
        return []
    return shifts
