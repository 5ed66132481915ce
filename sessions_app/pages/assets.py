"""Which script and which style sheet a page loads: a bundle of ``frontend/build.mjs``, or the sources.

Bundles are one file each, minified and compressed, and browsers keep them for ever because their names change with
their contents. Without them, or if a source was changed since, pages load the sources, which import each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from django.conf import settings

PAGES: Final = "kandev/pages"


def asset_path(page: str, kind: str) -> str:
    """Return the path, below the static files, of what the page ``page`` loads; ``kind`` is ``js`` or ``css``."""
    source = f"{PAGES}/{page}.{kind}"
    return bundles().get(source, source)


@cache
def bundles() -> Mapping[str, str]:
    """Return the bundles by the paths of their sources; empty if there are none of today's sources."""
    return read_bundles(Path(settings.STATICFILES_DIRS[0]) / "kandev")


def read_bundles(sources: Path) -> Mapping[str, str]:
    """Return the bundles below the directory ``sources`` whose manifest names the sources that are there now."""
    try:
        manifest = json.loads((sources / "built" / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if manifest.get("sources") != fingerprint(sources):
        return {}
    files: dict[str, str] = manifest["files"]
    return files


def fingerprint(sources: Path) -> str:
    """Return the fingerprint that ``frontend/build.mjs`` writes: of names and contents of all sources."""
    found = [path for place in (sources, sources / "pages") for path in place.iterdir()]
    names = sorted(str(path.relative_to(sources)) for path in found if path.suffix in (".js", ".css"))
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode())
        digest.update((sources / name).read_bytes())
    return digest.hexdigest()
