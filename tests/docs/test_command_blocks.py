"""Every block of commands on the pages for operators runs here, or says why it cannot.

The line before other blocks than runnable ones is ``<!-- runs: NAME -->``, with the name of a preparation below, or
``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.services import ROOT

PAGES: Final = (
    "deploy.md",
    "operate.md",
    *sorted(f"operate/{path.name}" for path in (ROOT / "docs" / "operate").glob("*.md")),
    "recovery.md",
    "runtimes.md",
)
LANGUAGES: Final = {"bash", "sh", "shell", "console"}
RUNNABLE: Final = "runnable"
"""After the language of a block that ``test_pages`` runs."""
SHORTEST_REASON: Final = 25
"""Characters of a sentence that says something."""


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of a page, with what its mark says."""

    page: str
    line: int
    commands: str
    runs: str
    reason: str


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the blocks of commands of a page."""
    found, lines = list[Block](), text.splitlines()
    at = 0
    while at < len(lines):
        fence = re.fullmatch(r"\s*```(\w*)(.*)", lines[at])
        if fence is None:
            at += 1
            continue
        end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
        if fence[1] in LANGUAGES and fence[2].strip() != RUNNABLE:
            found.append(read_block(page, lines, at, end))
        at = end + 1
    return found


def read_block(page: str, lines: list[str], at: int, end: int) -> Block:
    mark = re.fullmatch(r"\s*<!-- (runs|not run): (.+) -->", lines[at - 1])
    marks = {mark[1]: mark[2]} if mark else {}
    return Block(page, at + 1, "\n".join(lines[at + 1 : end]), marks.get("runs", ""), marks.get("not run", ""))


BLOCKS: Final = [block for page in PAGES for block in blocks_of(page, (ROOT / "docs" / page).read_text())]
RUN: Final = [block for block in BLOCKS if block.runs]


def manage(folder: Path, *arguments: str) -> None:
    """Run a management command on the database of the test."""
    command = [sys.executable, "manage.py", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment(folder), check=True, capture_output=True, timeout=300)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "HOME": str(folder), "KANDEV_DATA_DIR": str(folder / "data")}


def prepare_database(folder: Path) -> Path:
    (folder / "data").mkdir(mode=0o700)
    manage(folder, "migrate")
    return ROOT


def prepare_host(folder: Path) -> Path:
    prepare_database(folder)
    host = "from sessions_app.models import Host; from django.utils import timezone; "
    manage(folder, "shell", "-c", f"{host}Host.objects.create(name='build-1', first_seen_at=timezone.now())")
    return ROOT


def prepare_snapshots(folder: Path) -> Path:
    """Make a repository with a snapshot and the record of a turn, as Kandev stores them."""
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "One"]
    (folder / "a.txt").write_text("saved\n")
    for arguments in (
        ["init", "--quiet"],
        ["add", "a.txt"],
        commit,
        ["update-ref", "refs/kandev/recovery/ID", "HEAD"],
        ["update-ref", "refs/kandev/turns/ID", "HEAD"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, env=environment(folder), check=True, capture_output=True)
    (folder / "a.txt").write_text("lost\n")
    return folder


PREPARATIONS: Final[Mapping[str, Callable[[Path], Path]]] = {
    "drain a host": prepare_host,
    "look at the keys": prepare_database,
    "accept the loss of secrets": prepare_database,
    "handle snapshots with git": prepare_snapshots,
}
"""By name: make what a block needs, and return where it runs."""


def test_every_block_runs_or_says_why_it_cannot() -> None:
    unmarked = [f"docs/{block.page}:{block.line}" for block in BLOCKS if not block.runs and not block.reason]
    assert not unmarked, "write <!-- runs: NAME --> or <!-- not run: REASON --> before these blocks"
    assert {block.runs for block in RUN} == set(PREPARATIONS)
    assert all(len(block.reason) >= SHORTEST_REASON for block in BLOCKS if not block.runs)


def test_files_that_a_reason_names_exist() -> None:
    for block in BLOCKS:
        for name in re.findall(r"\b(?:tests|deploy)/[\w/.-]*\w", block.reason):
            assert (ROOT / name).exists(), f"docs/{block.page}:{block.line}"


def test_block_without_a_mark_is_found() -> None:
    text = "Words.\n\n```bash\nls\n```\n\n<!-- not run: it is not needed -->\n```sh\nls\n```\n\n```python\nx\n```\n"
    assert [(block.line, block.reason) for block in blocks_of("x.md", text)] == [(3, ""), (8, "it is not needed")]


@pytest.mark.parametrize("block", RUN, ids=[block.runs for block in RUN])
def test_block_runs_without_an_error(block: Block, tmp_path: Path) -> None:
    where = PREPARATIONS[block.runs](tmp_path)
    script = block.commands.replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=where,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if block.runs == "handle snapshots with git":
        assert (tmp_path / "a.txt").read_text() == "saved\n"
