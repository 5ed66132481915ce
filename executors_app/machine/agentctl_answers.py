"""Read answers of agentctl: each is a JSON object, or the error that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    StaleGeneration,
)
from executors_app.wire.protocol import PROTOCOL_VERSION, Code, is_supported_version

MAX_ANSWER: Final = 64 * 1024 * 1024
NOT_OURS: Final = "not_ours"
"""The reason if our token was rejected."""
_GATEWAY_STATUSES: Final = frozenset({502, 503, 504})


def read_json(status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object of a successful answer; raises the matching error for any other."""
    if not 200 <= status < 300:
        raise error_for_status(status, body)
    answer = _parse_object(body)
    if answer is None:
        raise AgentctlForeign("What answered is not agentctl: it sent no JSON object.", reason="no_json")
    return answer


def check_execution(status: Mapping[str, Any], execution_id: str) -> None:
    """Check that a status names our execution in a protocol version we support; raises AgentctlForeign.

    Only then does the execution count as alive.
    """
    if status.get("execution_id") != execution_id:
        raise AgentctlForeign("Another execution's agentctl answered.", reason="other_execution")
    version = status.get("version", PROTOCOL_VERSION)
    if not is_supported_version(version):
        message = f"This agentctl speaks protocol version {version!r}; this Kandev speaks version {PROTOCOL_VERSION}."
        raise AgentctlForeign(message, reason="protocol_version")


def error_for_status(status: int, body: bytes) -> ExecutorError:
    """Return the error for an answer other than 2xx."""
    if status in {401, 403}:
        return AgentctlForeign(f"agentctl rejected our token (HTTP {status}).", reason=NOT_OURS, status=status)
    answer = _parse_object(body) or {}
    code = answer.get("code")
    if not isinstance(code, str):
        if status in _GATEWAY_STATUSES:
            return AgentctlUnreachable(f"A proxy in front of agentctl failed (HTTP {status}).", reason="gateway")
        return AgentctlForeign(f"What answered is not agentctl (HTTP {status}).", reason="no_json", status=status)
    if code == Code.INSTANCE_UNREACHABLE:
        return AgentctlUnreachable(str(answer.get("message") or ""), reason="gateway")
    message = str(answer.get("message") or "")
    if code == Code.STALE_GENERATION:
        return StaleGeneration(message, status=status, refusal=code, answer=answer)
    return AgentctlRefused(message, status=status, refusal=code, answer=answer)


def answer_too_large() -> AgentctlForeign:
    """Return the error for an answer larger than ``MAX_ANSWER``."""
    return AgentctlForeign("What answered is not agentctl: its answer is too large.", reason="too_large")


def _parse_object(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(answer, dict):
        return answer
    return None
