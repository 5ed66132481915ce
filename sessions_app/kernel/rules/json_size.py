"""The size of JSON values."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_size(value: Any) -> int:
    """Return the bytes of a JSON value."""
    try:
        return len(orjson.dumps(value))
    except (TypeError, ValueError):  # such as a lone surrogate, which ``orjson`` refuses
        return len(json.dumps(value, default=str))
