"""Pages can be followed: links resolve, named tests exist, and runnable snippets run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kandev.databases import EMBEDDED_NAME
from tests.docs.documents import DOCS, anchors, documents, links, snippets
from tests.migrated_database import copy_migrated
from tests.services import ROOT

PAGES = pytest.mark.parametrize("page", documents(), ids=lambda path: path.name)
RUNNABLE = [page for page in documents() if any("runnable" in snippet.words for snippet in snippets(page))]


@PAGES
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@PAGES
def test_link_with_the_name_of_a_file_leads_to_that_file(page: Path) -> None:
    named = re.findall(r"\[([\w/]+\.py)\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
    assert [(name, target) for name, target in named if not f"/{target}".endswith(f"/{name}")] == []


@PAGES
def test_tests_named_by_a_page_exist(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::\w+)*::(\w+)`", page.read_text(encoding="utf-8")):
        source = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        assert f"def {name}(" in source, f"{file}::{name}"


@PAGES
def test_files_shown_on_a_page_match_their_source(page: Path) -> None:
    for snippet in snippets(page):
        for word in snippet.words:
            if word.startswith("file="):
                shown = DOCS / word.removeprefix("file=")
                assert snippet.text == shown.read_text(encoding="utf-8"), f"{page.name} differs from {shown.name}"


def test_paths_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_paths_in_the_code_map_exist() -> None:
    (shown,) = [snippet.text for snippet in snippets(ROOT / "README.md") if "kandev/ " in snippet.text]
    folder, lost = ROOT, []
    for indent, words in re.findall(r"^( *)((?:[\w/]+(?:/|\.py) )+)", shown, re.MULTILINE):
        for word in words.split():
            path = (folder if indent else ROOT) / word
            lost += [] if path.exists() else [word]
        folder = folder if indent else ROOT / words.split()[0]
    assert lost == []


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda path: path.name)
def test_runnable_snippets_run(page: Path, tmp_path: Path) -> None:
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KANDEV_DATA_DIR": str(tmp_path / "data"),
    }
    (tmp_path / "data").mkdir(mode=0o700)
    copy_migrated(tmp_path / "data" / EMBEDDED_NAME)
    for snippet in snippets(page):
        if "runnable" in snippet.words:
            command = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-W", "error", "-c"]}
            argv = [*command[snippet.language], snippet.text]
            ran = subprocess.run(
                argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
            assert ran.returncode == 0, f"{snippet.text}\n{ran.stdout}{ran.stderr}"


@PAGES
def test_runnable_snippet_has_a_supported_language(page: Path) -> None:
    assert {snippet.language for snippet in snippets(page) if "runnable" in snippet.words} <= {"bash", "python"}
