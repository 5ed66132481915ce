"""The text of a workflow as plain data, with the line of everything in it.

YAML is read from its events, without objects, tags or merging, by the rules of YAML 1.2 (so ``yes`` and ``y`` are
words); aliases are counted as often as they are used. A key that stands twice is an error, in JSON too.
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
"""Lines that begin with %TAG. libyaml compares each with all before it, and no tag is allowed anyway."""
_STANDARD_TAGS: Final = ("!", "tag:yaml.org,2002:str")


def read_text(text: str | bytes, name: str) -> ParsedText:
    """Read YAML, or JSON where the text begins with a brace. Raises InvalidWorkflow with one problem."""
    plain = decode_text(text, name)
    return _read_json(plain, name) if plain.lstrip().startswith("{") else _YamlBuilder(plain, name).source()


def decode_text(text: str | bytes, name: str) -> str:
    """The text of a file, without a byte order mark. Raises InvalidWorkflow for one that is too long, or is no text."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        raise invalid_workflow(
            name, 0, "too_large", f"the file has more than {MAX_BYTES >> 10} KiB", "Move parts to components."
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise invalid_workflow(name, line, "not_text", "the file is not UTF-8", "Save it as UTF-8.") from error


def _read_json(text: str, name: str) -> ParsedText:
    try:
        data = json.loads(text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        try:
            return _YamlBuilder(text, name).source()  # a flow mapping of YAML begins with a brace as well
        except InvalidWorkflow:
            raise invalid_workflow(name, error.lineno, "syntax", f"this is not JSON: {error.msg}", "") from error
    except RecursionError as error:
        raise _too_deep(name, 0) from error
    except ValueError as error:
        raise invalid_workflow(name, 0, "syntax", str(error), "") from error
    _check_size(data, name)
    try:
        # Only the lines are taken from this: tabs and surrogates are nothing that YAML would read alike.
        lines = _YamlBuilder(_SURROGATE.sub(r"\\uFFFD", text.replace("\t", " ")), name).source().lines
    except InvalidWorkflow:
        lines = {}
    return ParsedText(name, data, lines)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key “{key}” stands twice")
        found[key] = value
    return found


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _check_size(data: Any, name: str) -> None:
    """Refuse what is too deep or too much, or cannot be kept as text."""
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
            raise _no_such_number(name, 0)


def _check_text(value: str, name: str, line: int) -> str:
    if "\0" in value or not _is_unicode(value):
        raise invalid_workflow(name, line, "not_text", "a text holds characters that cannot be kept", "Leave them out.")
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _YamlBuilder:
    """Makes data of the events of a YAML text."""

    def __init__(self, text: str, name: str):
        self._name = name
        self._text = text
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_PARSER))
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._lines: dict[PathInFile, int] = {}
        self._count = self._characters = 0

    def source(self) -> ParsedText:
        """Read the one document there is."""
        if len(_TAG_DIRECTIVE.findall(self._text)) > MAX_TAG_DIRECTIVES:
            raise invalid_workflow(
                self._name, 0, "tag", "tags are not allowed", "Remove the lines that begin with %TAG."
            )
        try:
            return ParsedText(self._name, self._document(), self._lines)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            raise invalid_workflow(self._name, line, "syntax", f"this is not YAML: {error.problem}", "") from error
        except yaml.YAMLError as error:
            raise invalid_workflow(
                self._name, 0, "not_text", "the file holds characters that YAML forbids", ""
            ) from error

    def _document(self) -> Any:
        data: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    line = _line_of_event(event)
                    raise invalid_workflow(
                        self._name, line, "syntax", "a second document begins", "Put it into its own file."
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
            raise invalid_workflow(self._name, line, "tag", f"the tag {tag} is not allowed", "Write the plain value.")
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
            raise invalid_workflow(
                self._name, line, "alias", f"*{event.anchor} names nothing before it", "Write the value out."
            )
        value, size, characters = self._anchors[event.anchor]
        self._count += size
        self._characters += characters
        if self._count > MAX_VALUES:
            raise _too_many(self._name, line)
        if self._characters > MAX_CHARACTERS:
            message = f"its texts have more than {MAX_CHARACTERS >> 20} MiB, aliases written out"
            raise invalid_workflow(self._name, line, "too_large", message, "Use fewer aliases.")
        return value

    def _mapping(self, place: PathInFile) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line_of_event(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise invalid_workflow(
                    self._name, line, "key", "a key is not a word", "Write a plain word before the colon."
                )
            key = _check_text(event.value, self._name, line)
            self._characters += len(key)
            if key in found:
                raise invalid_workflow(
                    self._name, line, "duplicate_key", f"the key “{key}” stands twice", "Remove one of them."
                )
            if key == "<<" and not event.style:
                raise invalid_workflow(
                    self._name, line, "merge", "merging with << is not supported", "Write the keys out."
                )
            found[key] = self._value(self._next_node(), (*place, key))
        return found

    def _next_node(self) -> yaml.NodeEvent:
        event = next(self._events)
        assert isinstance(event, yaml.NodeEvent)  # noqa: S101  (a key has a value)
        return event

    def _sequence(self, place: PathInFile) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            assert isinstance(event, yaml.NodeEvent)  # noqa: S101  (nothing else is in a sequence)
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
    return event.start_mark.line + 1 if event.start_mark else 0


def _too_deep(name: str, line: int) -> InvalidWorkflow:
    return invalid_workflow(
        name, line, "too_deep", f"values lie within each other more than {MAX_DEPTH} deep", "Flatten it."
    )


def _too_many(name: str, line: int) -> InvalidWorkflow:
    return invalid_workflow(
        name, line, "too_many", f"there are more than {MAX_VALUES} values", "Write less, or use components."
    )


def _no_such_number(name: str, line: int) -> InvalidWorkflow:
    return invalid_workflow(name, line, "number", "a number is too large", "Write it as a text in quotes.")
