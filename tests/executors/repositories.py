"""Repositories for tests, created with git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_IDENTITY = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")


def run_git(directory: Path, *arguments: str, stdin: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(directory), *_IDENTITY, *arguments],
        env=environment,
        input=stdin.read_bytes() if stdin else None,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode(errors="surrogateescape").strip()


def make_repository(path: Path, name: str = "README", text: str = "hello\n") -> Path:
    """Create a repository with one commit of one file."""
    path.mkdir()
    run_git(path, "init", "--quiet")
    commit(path, name, text)
    return path


def commit(path: Path, name: str, text: str) -> str:
    (path / name).write_text(text)
    run_git(path, "add", name)
    run_git(path, "commit", "--quiet", "-m", f"Write {name}")
    return run_git(path, "rev-parse", "HEAD")
