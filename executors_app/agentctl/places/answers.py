"""How an HTTP answer of something that should be agentctl is judged; no I/O.

*Unreachable* is no judgement at all, *foreign* means it is not this execution's agentctl, and
*refused* is agentctl's own no. Of the three, none says that an execution is dead (rule 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from executors_app.agentctl.protocol import PROTOCOL_VERSION, Code, is_understood
from executors_app.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration

MAX_ANSWER: Final = 64 * 1024 * 1024
NOT_OURS: Final = "not_ours"
"""The reason of an answer that takes our token for a wrong one."""
_GATEWAY: Final = frozenset({502, 503, 504})


def read_json(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of a good answer; raises the error that any other answer stands for."""
    if not 200 <= status < 300:
        raise error_of(status, body)
    answer = _object(body)
    if answer is None:
        raise AgentctlForeign("What answered is not agentctl: no JSON object came.", reason="no_json")
    return answer


def check_execution(status: Mapping[str, Any], execution_id: str) -> None:
    """Alive means: it named our execution (rule 3), in words that we understand (rule 24); raises AgentctlForeign."""
    if status.get("execution_id") != execution_id:
        raise AgentctlForeign("Another execution's agentctl answered.", reason="other_execution")
    version = status.get("version", PROTOCOL_VERSION)
    if not is_understood(version):
        message = f"This agentctl speaks version {version!r} of our protocol, and we speak {PROTOCOL_VERSION}."
        raise AgentctlForeign(message, reason="protocol_version")


def error_of(status: int, body: bytes) -> ExecutorError:
    """The error that an answer other than 2xx stands for."""
    if status in {401, 403}:
        return AgentctlForeign(f"agentctl does not know us (HTTP {status}).", reason=NOT_OURS, status=status)
    answer = _object(body)
    code = answer.get("code") if answer else None
    if answer is None or not isinstance(code, str):
        if status in _GATEWAY:
            return AgentctlUnreachable(f"Something between us and agentctl failed (HTTP {status}).", reason="gateway")
        return AgentctlForeign(f"What answered is not agentctl (HTTP {status}).", reason="no_json", status=status)
    if code == Code.INSTANCE_UNREACHABLE:
        return AgentctlUnreachable(str(answer.get("message") or ""), reason="gateway")
    kind = StaleGeneration if code == Code.STALE_GENERATION else AgentctlRefused
    return kind(str(answer.get("message") or ""), status=status, refusal=code, answer=answer)


def too_large() -> AgentctlForeign:
    """The error of an answer above ``MAX_ANSWER``."""
    return AgentctlForeign("What answered sends more than agentctl would.", reason="too_large")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
