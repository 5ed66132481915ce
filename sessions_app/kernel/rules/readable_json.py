"""Values of strangers as indented JSON, of bounded length."""

from __future__ import annotations

import json
from typing import Any, Final

_ENCODER: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


def readable_json(value: Any, limit: int) -> str:
    """Return a value as indented JSON. A text longer than ``limit`` characters ends somewhere behind them.

    Each line of a nested value is indented by its depth: 800 kB of nested lists would become 240 MB.
    """
    parts, length = [], 0
    try:
        for part in _ENCODER.iterencode(value):
            parts.append(part)
            length += len(part)
            if length > limit:
                break
    except RecursionError:  # more nested than Python can indent
        return json.dumps(value, ensure_ascii=False)
    return "".join(parts)
