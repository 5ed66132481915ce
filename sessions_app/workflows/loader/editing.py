"""Change single settings of a node in the text of a workflow, and keep every other character as it is.

Comments, order and spaces belong to the author, so only the changed value is written. The result is read again, and
refused unless exactly that one value has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from sessions_app.workflows.language.diagnostics import InvalidWorkflow, PathInFile, value_at
from sessions_app.workflows.language.reader import read_text
from sessions_app.workflows.nodes.agent import FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT

_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*\Z")
_NO_PLAIN: Final = re.compile(r"(true|false|null|yes|no|on|off|[yn])\Z", re.IGNORECASE)
_EMPTY_VALUE: Final = re.compile(r"\s*(#|\Z)")
SESSION_PORTS: Final = (FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT)
"""Inputs of an agent that keeps its session: its first prompt, and its prompt in later iterations."""


class EditNotPossible(Exception):
    """A form cannot make the change; users see the message."""


def find_node_paths(text: str) -> dict[str, PathInFile]:
    """Return the place of each node by id, including those of components; the first of two with the same id.

    The result is empty for a text that is not a workflow.
    """
    try:
        data = read_text(text, "workflow").data
    except InvalidWorkflow:
        return {}
    bodies: list[PathInFile] = [()]
    components = value_at(data, ("components",))
    if isinstance(components, dict):
        bodies += [("components", name) for name in components]
    found: dict[str, PathInFile] = {}
    for body in bodies:
        nodes = value_at(data, (*body, "nodes"))
        if not isinstance(nodes, list):
            continue
        for index, node in enumerate(nodes):
            if isinstance(node, dict) and isinstance(node.get("id"), str):
                found.setdefault(node["id"], (*body, "nodes", index))
    return found


def node_data(text: str, node: str) -> dict[str, Any]:
    """Return the ``data`` of a node, with its ``type``. Raises EditNotPossible if there is no such node."""
    place = _node_path(text, node)
    written = value_at(read_text(text, "workflow").data, place)
    data: dict[str, Any] = {}
    if isinstance(written.get("data"), dict):
        data.update(written["data"])
    data["type"] = data.get("nodeType") or written.get("type") or ""
    return data


def apply_settings(text: str, node: str, changes: Mapping[str, Any]) -> str:
    """Return the text with changed settings under ``data`` of a node; None removes one. Raises EditNotPossible."""
    for key, value in changes.items():
        text = _apply_checked(text, (*_node_path(text, node), "data", key), value)
    return text


def apply_changes(text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None) -> str:
    """Apply ``apply_settings``, and ``set_session_kept`` unless that is None. Raises EditNotPossible."""
    text = apply_settings(text, node, settings)
    if session_kept is None:
        return text
    return set_session_kept(text, node, kept=session_kept)


def set_session_kept(text: str, node: str, *, kept: bool) -> str:
    """Return the text in which an agent keeps its session between iterations or starts over.

    Raises EditNotPossible.
    """
    data = node_data(text, node)
    if not kept:
        if "resumable" in data:
            text = apply_settings(text, node, {"resumable": None})
        for name in SESSION_PORTS:
            text = _without_port(text, node, name)
        return text
    if data.get("resumable") is not True:
        text = apply_settings(text, node, {"resumable": True})
    required = list(SESSION_PORTS)
    ports = data.get("inputs")
    if not isinstance(ports, list):
        ports = []
        required += ["prompt", "sessionId"]
    names = [port.get("name") for port in ports if isinstance(port, dict)]
    added = [{"name": name, "type": "string"} for name in required if name not in names]
    if added:
        return apply_settings(text, node, {"inputs": ports + added})
    return text


def _without_port(text: str, node: str, name: str) -> str:
    ports = node_data(text, node).get("inputs")
    if not isinstance(ports, list):
        return text
    kept = [port for port in ports if not isinstance(port, dict) or port.get("name") != name]
    if kept == ports:
        return text
    return apply_settings(text, node, {"inputs": kept})


def _node_path(text: str, node: str) -> PathInFile:
    place = find_node_paths(text).get(node)
    if place is None:
        raise EditNotPossible(f"The text has no step “{node}”. Choose another one.")
    return place


def _apply_checked(text: str, place: PathInFile, value: Any) -> str:
    """Return the changed text, after reading it again to verify that only this value has changed."""
    # A deep copy, in which values shared by aliases are separate.
    expected = json.loads(json.dumps(read_text(text, "workflow").data))
    _set_value(expected, place, value)
    for candidate in _edit_candidates(text, place, value):
        try:
            if read_text(candidate, "workflow").data == expected:
                return candidate
        except InvalidWorkflow:
            continue
    raise EditNotPossible(f"The form cannot change “{place[-1]}” as it is written here. Change it in the text.")


def _set_value(data: Any, place: PathInFile, value: Any) -> None:
    *steps, key = place
    for step in steps:
        if isinstance(data, dict):
            data = data.setdefault(step, {})
        else:
            data = data[step]
    if value is None:
        data.pop(key, None)
    else:
        data[key] = value


def _edit_candidates(text: str, place: PathInFile, value: Any) -> Iterable[str]:
    """Yield ways to write the change, the most natural first."""
    plain = text.removeprefix("\ufeff")
    byte_order_mark = text[: len(text) - len(plain)]
    is_json = plain.lstrip("\ufeff \n").startswith("{")
    root = yaml.compose(plain, Loader=_PARSER)
    owner = _yaml_node_at(root, place[:-1])
    if isinstance(owner, yaml.MappingNode):
        candidates = _edit_candidates_in_mapping(plain, owner, str(place[-1]), value, strict=is_json)
    else:
        node = _yaml_node_at(root, place[:-2])
        data = f"{{{json.dumps(place[-1])}: {json.dumps(value, ensure_ascii=False)}}}"
        candidates = _add_pair(plain, node, "data", data, strict=is_json)
    for candidate in candidates:
        yield byte_order_mark + candidate


def _edit_candidates_in_mapping(text: str, owner: Any, key: str, value: Any, *, strict: bool) -> Iterable[str]:
    """Return ways to change a key of a mapping."""
    column = None
    if not owner.flow_style:
        column = owner.value[0][0].start_mark.column
    for known, old in owner.value:
        if known.value != key:
            continue
        if value is None:
            return [_remove_pair(text, owner, known)]
        if getattr(old, "flow_style", False) is True:
            column = None
        return [
            _replace_value(text, old, _dump_value(value, column, strict)),
            _replace_value(text, old, json.dumps(value)),
        ]
    if value is None:
        return [text]
    return _add_pair(text, owner, key, _dump_value(value, column, strict), strict=strict)


def _yaml_node_at(root: Any, place: PathInFile) -> Any:
    for step in place:
        if isinstance(root, yaml.MappingNode):
            root = next((value for key, value in root.value if key.value == step), None)
        elif isinstance(root, yaml.SequenceNode) and isinstance(step, int):
            root = root.value[step]
        else:
            return None
    return root


def _end_of_value(text: str, node: Any) -> int:
    """Return where a value ends, without the empty lines and comments after it."""
    begin, end = int(node.start_mark.index), int(node.end_mark.index)
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        while begin < end:
            line = max(text.rfind("\n", begin, end) + 1, begin)
            if not _EMPTY_VALUE.match(text, line, end):
                break
            end = max(line - 1, begin)
    return begin + len(text[begin:end].rstrip())


def _replace_value(text: str, old: Any, written: str) -> str:
    end = _end_of_value(text, old)
    begin = len(text[: old.start_mark.index].rstrip())
    space = "" if written.startswith("\n") else " "
    changed = f"{text[:begin]}{space}{written}{text[end:]}"
    if changed.endswith("\n") or not text.endswith("\n"):
        return changed
    return f"{changed}\n"


def _add_pair(text: str, owner: Any, key: str, written: str, *, strict: bool) -> Iterable[str]:
    """Yield texts with a new key, after the first key that takes one line, or else before all others."""
    if not isinstance(owner, yaml.MappingNode):
        return
    name = json.dumps(key) if strict else key
    if not owner.value:
        at = owner.start_mark.index + 1
        yield f"{text[:at]} {name}: {written} {text[at:]}"
        return
    first = owner.value[0][0]
    if owner.flow_style:
        at = _end_of_value(text, owner.value[-1][1])
        yield f"{text[:at]}, {name}: {written}{text[at:]}"
        return
    space = " " * first.start_mark.column
    for known, value in owner.value:
        if known.start_mark.line == value.end_mark.line:
            at = text.find("\n", _end_of_value(text, value))
            if at >= 0:
                yield f"{text[:at]}\n{space}{name}: {written}{text[at:]}"
            else:
                yield f"{text}\n{space}{name}: {written}\n"
            break
    at = first.start_mark.index
    yield f"{text[:at]}{name}: {written}\n{space}{text[at:]}"


def _remove_pair(text: str, owner: Any, key: Any) -> str:
    pairs = owner.value
    index = next(number for number, (known, _) in enumerate(pairs) if known is key)
    begin, end = key.start_mark.index, _end_of_value(text, pairs[index][1])
    if index == 0 and len(pairs) > 1:
        return text[:begin] + text[pairs[1][0].start_mark.index :]
    if owner.flow_style:
        if index:
            begin = _end_of_value(text, pairs[index - 1][1])
        return text[:begin] + text[end:]
    line_begin = max(text.rfind("\n", 0, begin), 0)
    line_end = text.find("\n", end)
    if line_end < 0:
        return text[:line_begin] + "\n"
    return text[:line_begin] + text[line_end:]


def _dump_value(value: Any, column: int | None, strict: bool) -> str:
    """Return a value as people write it. ``column`` is that of its key; None within braces, where it is one line."""
    if strict or not isinstance(value, str | list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return _dump_text(value, column)
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key}: {_dump_value(part, None, False)}' for key, part in value.items())} }}"
    parts = [_dump_value(part, None, False) for part in value]
    if column is None or not parts:
        return f"[{', '.join(parts)}]"
    space = " " * (column + 2)
    return "".join(f"\n{space}- {part}" for part in parts)


def _dump_text(value: str, column: int | None) -> str:
    if _PLAIN.match(value) and not _NO_PLAIN.match(value):
        return value
    if column is None or not _is_block_text(value):
        return json.dumps(value, ensure_ascii=False)
    space = " " * (column + 2)
    head = "|" if value.endswith("\n") else "|-"
    lines = value.removesuffix("\n").split("\n")
    indented = [f"{space}{line}" if line else "" for line in lines]
    return "\n".join([head, *indented])


def _is_block_text(value: str) -> bool:
    """Return whether a text is easier to read as a block, and can be written as one."""
    has_special = re.search(r'[\n"\\]', value) is not None
    is_unfit = re.search(r"[^\S\n ]|\A\s|\n\n\Z", value) is not None
    return has_special and not is_unfit and value.strip() != ""
