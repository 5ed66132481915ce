"""Read the text of a workflow as plain data, with the line of every value.

YAML is read from its event stream, without objects, tags or merge keys, by the rules of YAML 1.2 (so ``yes`` and
``y`` are strings). An alias counts each time it is used, so that a small file cannot expand without bound. A duplicate
key is an error, in JSON too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from sessions_app.workflows.language.diagnostics import InvalidWorkflow, ParsedText, PathInFile, invalid_workflow
from sessions_app.workflows.language.limits import MAX_BYTES, MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES

_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}\Z")
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,2})?\Z")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_TAG_DIRECTIVE: Final = re.compile("(?:^|[\r\n\x85\u2028\u2029])%TAG")
MAX_TAG_DIRECTIVES: Final = 16
"""Lines that begin with %TAG. libyaml compares each with all before it (quadratic time), and no tag is allowed."""
_STANDARD_TAGS: Final = ("!", "tag:yaml.org,2002:str")


def read_text(text: str | bytes, name: str) -> ParsedText:
    """Read YAML, or JSON if the text begins with a brace. Raises InvalidWorkflow with one diagnostic."""
    plain = decode_text(text, name)
    if plain.lstrip().startswith("{"):
        return _read_json(plain, name)
    return _YamlBuilder(plain, name).source()


def decode_text(text: str | bytes, name: str) -> str:
    """Return the text of a file, without a byte order mark. Raises InvalidWorkflow if it is too large, or not UTF-8."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        raise invalid_workflow(
            name,
            0,
            "too_large",
            f"the file is larger than {MAX_BYTES >> 10} KiB",
            "Move parts of it to component files.",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise invalid_workflow(
            name, line, "not_text", "the file is not valid UTF-8", "Save it with the encoding UTF-8."
        ) from error


def _read_json(text: str, name: str) -> ParsedText:
    try:
        data = json.loads(text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        try:
            return _YamlBuilder(text, name).source()  # a YAML flow mapping begins with a brace, too
        except InvalidWorkflow:
            raise invalid_workflow(
                name, error.lineno, "syntax", f"this is not valid JSON: {error.msg}", "Correct the syntax."
            ) from error
    except RecursionError as error:
        raise _too_deep(name, 0) from error
    except ValueError as error:
        raise invalid_workflow(name, 0, "syntax", str(error), "Correct it.") from error
    _check_size(data, name)
    try:
        # YAML provides only the line numbers, because it treats tabs and surrogates differently from JSON.
        lines = _YamlBuilder(_SURROGATE.sub(r"\\uFFFD", text.replace("\t", " ")), name).source().lines
    except InvalidWorkflow:
        lines = {}
    return ParsedText(name, data, lines)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key “{key}” occurs twice")
        found[key] = value
    return found


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _check_size(data: Any, name: str) -> None:
    """Refuse data that is nested too deeply, has too many values, or contains text that cannot be stored."""
    count = 0
    left: list[tuple[Any, int]] = [(data, 0)]
    while left:
        value, depth = left.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise _too_deep(name, 0)
        if count > MAX_VALUES:
            raise _too_many(name, 0)
        if isinstance(value, dict):
            left += ((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list):
            left += ((part, depth + 1) for part in value)
        elif isinstance(value, str):
            _check_text(value, name, 0)
        elif isinstance(value, int | float) and not abs(value) < 1e100:
            raise invalid_workflow(name, 0, "number", "a number is too large", "Write it as text, in quotes.")


def _check_text(value: str, name: str, line: int) -> str:
    if "\0" in value or not _is_unicode(value):
        raise invalid_workflow(
            name,
            line,
            "not_text",
            "a text contains a zero byte or a lone surrogate, which cannot be stored",
            "Remove it.",
        )
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _YamlBuilder:
    """Builds data from the events of a YAML text."""

    def __init__(self, text: str, name: str):
        self._name = name
        self._text = text
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_PARSER))
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._lines: dict[PathInFile, int] = {}
        self._count = self._characters = 0

    def source(self) -> ParsedText:
        """Read the only document of the text."""
        if len(_TAG_DIRECTIVE.findall(self._text)) > MAX_TAG_DIRECTIVES:
            raise self._refusal(0, "tag", "YAML tags are not allowed", "Remove the lines that begin with %TAG.")
        try:
            return ParsedText(self._name, self._document(), self._lines)
        except yaml.MarkedYAMLError as error:
            line = 0
            if error.problem_mark:
                line = error.problem_mark.line + 1
            raise self._refusal(
                line, "syntax", f"this is not valid YAML: {error.problem}", "Correct the syntax."
            ) from error
        except yaml.YAMLError as error:
            raise self._refusal(
                0, "not_text", "the file contains characters that YAML forbids", "Remove control characters."
            ) from error

    def _refusal(self, line: int, code: str, message: str, fix: str) -> InvalidWorkflow:
        return invalid_workflow(self._name, line, code, message, fix)

    def _document(self) -> Any:
        data: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    line = _line_of_event(event)
                    raise self._refusal(
                        line, "syntax", "the file contains a second YAML document", "Move it to a file of its own."
                    )
            elif isinstance(event, yaml.NodeEvent):
                data = self._value(event, ())
        return data

    def _value(self, event: yaml.NodeEvent, place: PathInFile) -> Any:
        line = _line_of_event(event)
        self._lines[place] = line
        self._count += 1
        if self._count > MAX_VALUES:
            raise _too_many(self._name, line)
        if len(place) > MAX_DEPTH:
            raise _too_deep(self._name, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        tag = getattr(event, "tag", None)
        if tag not in (None, *_STANDARD_TAGS):
            raise self._refusal(line, "tag", f"the YAML tag {tag} is not allowed", "Write the plain value.")
        before = self._count, self._characters
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self._scalar(event, line)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(place)
        else:
            value = self._sequence(place)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._count - before[0] + 1, self._characters - before[1])
        return value

    def _alias(self, event: yaml.AliasEvent, line: int) -> Any:
        if event.anchor not in self._anchors:
            raise self._refusal(
                line, "alias", f"the alias *{event.anchor} has no anchor before it", "Write the value instead."
            )
        value, size, characters = self._anchors[event.anchor]
        self._count += size
        self._characters += characters
        if self._count > MAX_VALUES:
            raise _too_many(self._name, line)
        if self._characters > MAX_CHARACTERS:
            message = f"the texts of the file, with every alias expanded, are longer than {MAX_CHARACTERS >> 20} MiB"
            raise self._refusal(line, "too_large", message, "Use fewer aliases.")
        return value

    def _mapping(self, place: PathInFile) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line_of_event(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refusal(line, "key", "a key is not plain text", "Write a plain word before the colon.")
            key = _check_text(event.value, self._name, line)
            self._characters += len(key)
            if key in found:
                raise self._refusal(line, "duplicate_key", f"the key “{key}” occurs twice", "Remove one of the two.")
            if key == "<<" and not event.style:
                raise self._refusal(line, "merge", "the merge key << is not supported", "Write the merged keys.")
            found[key] = self._value(self._next_node(), (*place, key))
        return found

    def _next_node(self) -> yaml.NodeEvent:
        event = next(self._events)
        assert isinstance(event, yaml.NodeEvent)  # noqa: S101  (every key has a value)
        return event

    def _sequence(self, place: PathInFile) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            assert isinstance(event, yaml.NodeEvent)  # noqa: S101  (a sequence contains only nodes)
            found.append(self._value(event, (*place, len(found))))
        return found

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        text = _check_text(event.value, self._name, line)
        self._characters += len(text)
        if event.style or event.tag:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            return int(text)
        if _NUMBER.match(text):
            return float(text)
        return text


def _line_of_event(event: yaml.Event) -> int:
    if event.start_mark:
        return event.start_mark.line + 1
    return 0


def _too_deep(name: str, line: int) -> InvalidWorkflow:
    return invalid_workflow(
        name, line, "too_deep", f"values are nested more than {MAX_DEPTH} levels deep", "Reduce the nesting."
    )


def _too_many(name: str, line: int) -> InvalidWorkflow:
    return invalid_workflow(
        name,
        line,
        "too_many",
        f"the file has more than {MAX_VALUES} values",
        "Shorten it, or move parts to component files.",
    )
