"""The demo agent's own change to a repository: a plan, thoughts, edits with diffs, a check, and a commit if allowed.

It really reads, writes and runs what it reports. Everything that is done already is left alone, so that the change can
be continued after an interruption. Like the agent it uses only the standard library.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from executors_app.demo_agent.agent import Turn

PAUSE: Final = 0.4
"""Seconds between two steps, so that a reader can follow."""
RUN_TIMEOUT: Final = 60
"""Seconds after which a command of a step is killed."""
OUTPUT_LIMIT: Final = 4000
"""Characters of a command's output that are reported."""
PROGRAM: Final = "greeting.py"
README: Final = "README.md"
PLAN: Final = ("Read the README", f"Add {PROGRAM}", "Mention it in the README", "Run it", "Commit the change")
PROGRAM_TEXT: Final = '''"""Greet someone: ``python greeting.py NAME``."""

import sys


def greeting(name: str) -> str:
    """Return a greeting for ``name``."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    print(greeting(sys.argv[1] if len(sys.argv) > 1 else "world"))
'''
README_SECTION: Final = """## Greeting

    python greeting.py Ada
"""
_AUTHOR: Final = ("-c", "user.name=Demo agent", "-c", "user.email=demo@kandev.invalid")


class Change:
    """One change to the repository in the working directory of a turn."""

    def __init__(self, turn: Turn):
        self.turn, self.cwd = turn, Path(turn.cwd)

    def make(self) -> None:
        """Play the whole turn, step by step."""
        self._plan(0)
        self.turn.think(f"I will read {README} first, so that the change fits the repository.")
        readme = self._read_readme()
        self._plan(1)
        self.turn.say(f"I will add a small program, `{PROGRAM}`, and mention it in the README.\n\n")
        self._edit(PROGRAM, PROGRAM_TEXT)
        self._plan(2)
        self._edit(README, _with_section(readme))
        self._plan(3)
        self.turn.think("Both files are written. I will run the program before I report that it works.")
        works = self._run([sys.executable, "-I", PROGRAM, "Ada"], "execute", f"Run {PROGRAM}")
        self._plan(4)
        committed = self._commit()
        self._plan(5)
        self.turn.say(_summary(works=works, committed=committed))

    def _plan(self, done: int) -> None:
        """Report the plan with ``done`` completed steps."""
        states = ["completed"] * done + ["in_progress"] + ["pending"] * len(PLAN)
        entries = [
            {"content": step, "priority": "medium", "status": state} for step, state in zip(PLAN, states, strict=False)
        ]
        self.turn.update("plan", entries=entries)
        self.turn.rest(PAUSE)

    def _read_readme(self) -> str:
        """Read the README as a tool call; empty if there is none."""
        path = self.cwd / README

        def run() -> str:
            if path.exists():
                return path.read_text(encoding="utf-8")
            return f"{README} does not exist yet."

        self.turn.tool(f"Read {README}", "read", run, locations=[{"path": str(path)}])
        return _read(path)

    def _edit(self, name: str, text: str) -> None:
        """Give a file this text as a tool call with a diff, unless it has it already."""
        path = self.cwd / name
        before = _read(path)
        if before == text:
            self.turn.say(f"`{name}` already contains the change.\n\n")
            return

        def run() -> str:
            path.write_text(text, encoding="utf-8")
            return f"Wrote {name}."

        diff = {"type": "diff", "path": str(path), "oldText": before or None, "newText": text}
        body = {"locations": [{"path": str(path)}], "rawInput": {"file": name}}
        self.turn.tool(f"Edit {name}", "edit", run, content=[diff], **body)
        self.turn.rest(PAUSE)

    def _run(self, argv: Sequence[str], kind: str, title: str) -> bool:
        """Run a command in the working directory as a tool call; returns whether it exited with 0."""

        def run() -> str:
            done = subprocess.run(
                argv, cwd=self.cwd, capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT, check=False
            )
            output = (done.stdout + done.stderr)[-OUTPUT_LIMIT:]
            if done.returncode:
                raise ValueError(f"{output}\n(exit code {done.returncode})")
            return output

        return self.turn.tool(title, kind, run, rawInput={"command": list(argv)})

    def _commit(self) -> bool | None:
        """Ask whether to commit, and commit; None if that was refused or there is nothing to commit."""
        if not self._has_changes():
            return None
        message = "Add a greeting"
        files = [PROGRAM, README]
        call = {"rawInput": {"command": ["git", "commit", "-m", message, "--", *files]}}
        if self.turn.request_permission(f"Commit {PROGRAM} and {README}", "execute", **call) != "allow":
            return None
        command = ["git", *_AUTHOR, "commit", "--quiet", "--no-gpg-sign", "-m", message, "--", *files]
        added = self._run(["git", "add", "--", *files], "execute", "Stage both files")
        return added and self._run(command, "execute", "Commit")

    def _has_changes(self) -> bool:
        """Whether git sees a change to one of the files; also True where it cannot be asked."""
        argv = ["git", "status", "--porcelain", "--", PROGRAM, README]
        try:
            done = subprocess.run(argv, cwd=self.cwd, capture_output=True, timeout=RUN_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return True
        return bool(done.returncode or done.stdout.strip())


def _with_section(readme: str) -> str:
    """Return the README with the section about the program; unchanged if it is there."""
    if README_SECTION in readme:
        return readme
    return f"{readme.rstrip()}\n\n{README_SECTION}".lstrip()


def _read(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _summary(*, works: bool, committed: bool | None) -> str:
    """Return the closing message in Markdown; it claims only what the steps have shown."""
    ran = "**failed**; its output is above"
    if works:
        ran = "printed its greeting"
    stored = {True: "committed", False: "**not committed**: git failed", None: "not committed by me"}[committed]
    return (
        f"### Done\n\n| step | result |\n| --- | --- |\n| `{PROGRAM}` | {ran} |\n| the change | {stored} |\n\n"
        f"Try it yourself in the terminal of this session:\n\n```sh\npython3 {PROGRAM} Ada\n```\n\n"
        "Next you can:\n\n- look at the diff under *Changes*\n- restart Kandev while I work: nothing is lost\n"
        "- use your own agent and repository\n"
    )
