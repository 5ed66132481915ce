"""What a page loads: one style sheet and one script, small, and of today's sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.test import Client

from sessions_app.pages.assets import fingerprint, read_bundles
from tests.pages.world import World, path_of
from tests.services import BUNDLES, ROOT, require
from tests.source_files import source_files

pytestmark = pytest.mark.any_database

SOURCES = ROOT / "frontend" / "static" / "kandev"
USED = re.compile(r"{% page_assets \"([a-z_]+)\" %}")
LINKED = re.compile(r'<(?:link rel="stylesheet" href|script type="module" src)="/static/([^"]+)"')
MOST = {"board": 100_000, "session": 140_000}
"""Bytes of the compressed style sheet and script of a page, with the page itself."""


def used_pages() -> set[str]:
    return {
        name
        for path in source_files("sessions_app", "templates", suffix=".html")
        for name in USED.findall(path.read_text())
    }


def test_every_page_that_templates_name_has_a_style_sheet_and_a_script_and_no_other_exists() -> None:
    found = {(path.stem, path.suffix) for path in (SOURCES / "pages").iterdir()}
    assert found == {(name, suffix) for name in used_pages() for suffix in (".css", ".js")}


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["board", "session"])
def test_page_loads_one_style_sheet_and_one_script(page: str, ada: Client, world: World) -> None:
    path = path_of(world.session()) if page == "session" else "/"
    linked = LINKED.findall(ada.get(path).text)
    assert [name.rsplit(".", 1)[1] for name in linked] == ["css", "js"]


@pytest.mark.parametrize("page", MOST)
def test_bundles_of_a_page_are_small_when_compressed(page: str) -> None:
    require("bundles")
    files = json.loads(BUNDLES.read_text())["files"]
    built = [SOURCES.parent / f"{files[f'kandev/pages/{page}.{kind}']}.gz" for kind in ("css", "js")]
    assert sum(path.stat().st_size for path in built) < MOST[page] * 0.8, "the rest is for the page itself"


def test_bundles_of_todays_sources_are_installed() -> None:
    require("bundles")
    assert read_bundles(SOURCES), "make setup bundles the pages again after a change of their sources"


def sources_of(place: Path) -> Path:
    (place / "pages").mkdir()
    (place / "pages" / "board.js").write_text("import '../board.js';")
    (place / "board.js").write_text("1;")
    (place / "built").mkdir()
    return place


def test_bundles_are_used_until_a_source_changes(tmp_path: Path) -> None:
    place = sources_of(tmp_path)
    files = {"kandev/pages/board.js": "kandev/built/board-ABCDEFGH.js"}
    (place / "built" / "manifest.json").write_text(json.dumps({"sources": fingerprint(place), "files": files}))
    assert read_bundles(place) == files
    (place / "board.js").write_text("2;")
    assert read_bundles(place) == {}


@pytest.mark.parametrize("manifest", [None, "", "{", "{}"])
def test_sources_are_used_without_a_usable_manifest(manifest: str | None, tmp_path: Path) -> None:
    place = sources_of(tmp_path)
    if manifest is not None:
        (place / "built" / "manifest.json").write_text(manifest)
    assert read_bundles(place) == {}


def test_bundles_in_use_until_an_upgrade_are_kept_after_it(tmp_path: Path) -> None:
    require("bundles")
    place = tmp_path / "static" / "kandev"
    (place / "pages").mkdir(parents=True)
    (tmp_path / "node_modules").symlink_to(ROOT / "frontend" / "node_modules")
    shutil.copy(ROOT / "frontend" / "build.mjs", tmp_path)
    page = place / "pages" / "board.js"
    old, unused = (place / "built" / name for name in (bundle_of("1", page), "board-00000000.js"))
    unused.write_text("0;")
    for path in place.joinpath("built").iterdir():
        os.utime(path, (0, 0))
    assert place / "built" / bundle_of("2", page) != old
    assert (old.exists(), unused.exists()) == (True, False)


def bundle_of(script: str, page: Path) -> str:
    """Bundle a page with this script, and return the name of the bundle."""
    page.write_text(f"console.log({script});")
    place = page.parents[3]
    subprocess.run(["node", "build.mjs"], cwd=place, check=True)
    files = json.loads((place / "static" / "kandev" / "built" / "manifest.json").read_text())["files"]
    return Path(files[f"kandev/pages/{page.name}"]).name
