"""The demo agent that ships with agentctl: one command for it, whatever machine or container this is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl.protocol import BUILT_IN_AGENT

_SCRIPT: Final = Path(__file__).resolve().parent.parent / "demo_agent.py"


def resolve(argv: Sequence[str]) -> list[str]:
    """``argv`` as it can be run here: the command of the built-in agent is replaced by its program beside agentctl.

    The control plane cannot know that path: it may be on another machine, in a container, or of another release.
    """
    if not argv or argv[0] != BUILT_IN_AGENT:
        return list(argv)
    return [sys.executable, "-I", str(_SCRIPT), *argv[1:]]
