"""The routes of all pages, from the authorization matrix, so that new ones are included automatically."""

from __future__ import annotations

import re
from typing import Final

from tests.rights.matrix import PAGES

_NO_PAGES: Final = re.compile(
    r"live/$|/replace/$|/earlier/$|/count/$|/prompt-history/$|\.png$|^metrics$|^healthz$|^readyz$|^login/|^settings/$"
    r"|^sessions/list/$"
)
"""Page fragments, pictures and machine-readable responses; login pages have their own test."""
PAGE_ROUTES: Final = [
    route
    for route, methods in PAGES.items()
    if "get" in methods and not _NO_PAGES.search(route) and 200 in methods["get"].statuses
]
