"""Match answers against regular expressions of agents, in a process with limits: a hostile one may take for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_CPU_SECONDS: Final = 1
_MEMORY: Final = 256 * 2**20
"""Bytes."""
_TIMEOUT: Final = 5.0
"""Seconds, for a machine that is too busy to give the process its second."""
_PROGRAM: Final = f"""
import json, re, resource, sys, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_CPU, ({_CPU_SECONDS}, {_CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
found = []
for pattern, text in json.load(sys.stdin):
    try:
        found.append(re.search(pattern, text) is not None)
    except (re.error, OverflowError, RecursionError):
        found.append(None)
json.dump(found, sys.stdout)
"""


def match_patterns(pairs: Sequence[tuple[str, str]]) -> list[bool | None] | None:
    """Return for each pattern and text whether the pattern occurs in the text; None if all of them take too long.

    The entry of a pattern that Python does not understand is None, because agents write those of JavaScript.
    """
    if not pairs:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=json.dumps(pairs),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    found: list[bool | None] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found
