"""What a child process gets to see of our environment: an allow-list (rule 28).

The only reader of ``os.environ`` in agentctl; the control plane builds agentctl's own environment here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from executors_app import crash_points
from executors_app.agentctl.protocol import EXECUTION_MARKER

AGENT_MARKER: Final = "KANDEV_AGENT_LAUNCH"
"""Marks the processes of one agent, as against the shells and git calls of its agentctl."""
SHELL_MARKER: Final = "KANDEV_SHELL"
"""Marks what one shell of the workspace has started."""
MARKERS: Final = frozenset({EXECUTION_MARKER, AGENT_MARKER, SHELL_MARKER})
"""The environment variables that mark our processes; they are no settings (rule 43)."""

SESSION_VARIABLE: Final = "KANDEV_SESSION_ID"

CRASH_AT_VARIABLE: Final = "KANDEV_CRASH_AT"
CRASH_DIR_VARIABLE: Final = "KANDEV_CRASH_DIR"
"""For tests: at which of ``crash_points.POINTS`` agentctl dies, and where it leaves a file then."""

_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_ALLOWED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *_PROXIES,
        *(name.upper() for name in _PROXIES),
    }
)
_ALLOWED_PREFIX: Final = "LC_"


def build_environment(extra: Mapping[str, str], marker: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: what is allowed of ours, then ``extra``, and ``marker`` above all."""
    return {**inherited_environment(), **extra, **marker}


def inherited_environment() -> dict[str, str]:
    """What is allowed of our own environment: where things are and how to speak, no secrets."""
    return {name: value for name, value in os.environ.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)}


def arm_crash_point() -> None:
    """Arm the crash point that our environment names, if it names one; ValueError for an unknown one."""
    spec = os.environ.get(CRASH_AT_VARIABLE)
    if spec:
        crash_points.arm(spec, os.environ.get(CRASH_DIR_VARIABLE) or Path.cwd(), os.environ.get(SESSION_VARIABLE, ""))
