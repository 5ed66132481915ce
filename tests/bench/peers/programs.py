"""Programs of other systems, run by the Python of ``make peers``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.services import PYTHON_OF_PEERS


def command(program: Path, *words: str) -> list[str]:
    """Return the command line; ``-P`` hides the modules beside the program, which have names of packages."""
    return [str(PYTHON_OF_PEERS), "-P", str(program), *words]


def run_until_report(home: Path, program: Path, *words: str) -> dict[str, Any]:
    """Run a program until it prints a line of JSON, kill it with SIGKILL, and return the parsed line."""
    log = home / f"{program.stem}.log"
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with (
        log.open("ab") as stderr,
        subprocess.Popen(command(program, *words), cwd=home, stdin=quiet, stdout=pipe, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line, f"{program.stem} ended: {log.read_text(errors='replace')[-2000:]}"
    document: dict[str, Any] = json.loads(line)
    return document
