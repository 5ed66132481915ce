"""The two kinds of patches that the stand-in understands."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.standin.answers import Refused
from tests.kubernetes.standin.store import Object


def merged(found: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7396)."""
    if not isinstance(patch, dict) or not isinstance(found, dict):
        return patch
    result = dict(found)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def json_patched(found: Object, patch: list[Object]) -> Object:
    """Return the result of the operations of a JSON patch on objects and whole lists (RFC 6902)."""
    result = copy.deepcopy(found)
    for step in patch:
        *way, last = [word.replace("~1", "/").replace("~0", "~") for word in step["path"].split("/")[1:]]
        here: Any = result
        for word in way:
            here = here[int(word)] if isinstance(here, list) else here[word]
        place: Any = int(last) if isinstance(here, list) and last != "-" else last
        if step["op"] == "test":
            if here[place] != step["value"]:
                raise Refused(422, "Invalid", f"the server rejected our request: testing path {step['path']} failed")
        elif step["op"] == "remove":
            del here[place]
        elif last == "-":
            here.append(step["value"])
        else:
            here[place] = step["value"]
    return result
