"""Environments of child processes, built from an allow-list so that no secret of ours reaches an agent.

The only reader of ``os.environ`` in agentctl. The control plane builds agentctl's own environment here, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from executors_app import crash_points
from executors_app.agentctl.protocol import EXECUTION_MARKER

AGENT_MARKER: Final = "KANDEV_AGENT_LAUNCH"
"""Marks the processes of one agent, unlike the shells and git calls of its agentctl."""
SHELL_MARKER: Final = "KANDEV_SHELL"
"""Marks the processes of one shell of the workspace."""
MARKERS: Final = frozenset({EXECUTION_MARKER, AGENT_MARKER, SHELL_MARKER})
"""Environment variables that mark our processes. They are not settings, so an unknown-setting check skips them."""

SESSION_VARIABLE: Final = "KANDEV_SESSION_ID"

CRASH_AT_VARIABLE: Final = "KANDEV_CRASH_AT"
CRASH_DIR_VARIABLE: Final = "KANDEV_CRASH_DIR"
"""For tests: these two name the crash point at which agentctl kills itself, and the directory of its mark."""

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
    """Build the environment of a child: the allowed part of ours, overridden by ``extra``, then by ``marker``."""
    return {**inherited_environment(), **extra, **marker}


def inherited_environment() -> dict[str, str]:
    """Return the allowed part of our own environment: paths, locale, proxies and certificates, no secrets."""
    return {name: value for name, value in os.environ.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)}


def arm_crash_point() -> None:
    """Arm the crash point that our environment names, if any; raises ValueError for an unknown one."""
    spec = os.environ.get(CRASH_AT_VARIABLE)
    if spec:
        crash_points.arm(spec, os.environ.get(CRASH_DIR_VARIABLE) or Path.cwd(), os.environ.get(SESSION_VARIABLE, ""))
