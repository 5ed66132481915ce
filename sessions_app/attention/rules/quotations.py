"""Words of agents, members and providers within sentences of our own.

They are stored as they are, bounded, beside a sentence that has ``PLACEHOLDER`` in their place. Only when somebody
reads the sentence are they searched for secrets and put into it: their authors decide what that costs, so no
transaction does it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.redaction.redactor import CUT_WORD, redact, without_cut_beginning, without_cut_word
from sessions_app.redaction.visible_text import make_visible

PLACEHOLDER: Final = "[…]"
"""Stands in a stored sentence where a quotation belongs."""
LEFT_OUT: Final = "[left out, because it could not be searched for secrets]"
"""Is shown in place of such a quotation."""
EXCERPT_LIMIT: Final = 200
"""Maximum number of characters of other people's words in a sentence."""
WORDING_VERSION: Final = 2
"""Raise this when ``Quotation.show`` returns something else for the same quotation."""
_SEARCHED: Final = EXCERPT_LIMIT + CUT_WORD
"""Characters of a text that are searched for secrets, because a secret may end behind what a sentence shows."""
_SEARCHED_ENDS: Final = EXCERPT_LIMIT // 2 + CUT_WORD
"""The same of a beginning and an end, of which each is half as long."""
_READ: Final = 4 * EXCERPT_LIMIT
"""Characters of a text that are looked at for these: several blanks become one."""
_JSON_READ: Final = 10_000
"""Characters of a value's JSON that are written in order to quote its beginning, and to count it."""


@dataclass(frozen=True, slots=True)
class Quotation:
    """The beginning of a text, or its beginning and its end, as they are: never shown without ``show``."""

    begin: str
    end: str = ""
    gap: str = ""
    """How much is left out between beginning and end; empty: there is no end."""
    limit: int = EXCERPT_LIMIT
    """Maximum number of characters that are shown; 0: all."""
    is_whole: bool = True
    """Whether ``begin`` is the whole text."""

    def __bool__(self) -> bool:
        return bool(self.begin or self.end)

    def show(self, secrets: Iterable[str] = ()) -> str:
        """Return the quotation without secrets, and with invisible characters made visible.

        ``secrets`` are known ones, beside those that the rules find.
        """
        begin = _clear(self.begin, secrets)
        if self.gap:
            half = self.limit // 2
            return f"{begin[:half].rstrip()} … ({self.gap}) … {_clear(self.end, secrets)[-half:]}"
        if not self.limit or (self.is_whole and len(begin) <= self.limit):
            return begin
        return f"{begin[: self.limit - 1].rstrip()}…"


def _clear(text: str, secrets: Iterable[str]) -> str:
    safe, _ = redact(text, secrets)
    return make_visible(safe)


def quote(text: str) -> Quotation:
    """Quote the beginning of a text, on one line; nothing if it is blank."""
    plain = _on_one_line(text[:_READ])
    if len(plain) <= _SEARCHED and len(text) <= _READ:
        return Quotation(plain)
    return Quotation(without_cut_word(plain[:_SEARCHED]), is_whole=False)


def quote_ends(text: str) -> Quotation:
    """Quote beginning and end of a text, on one line, and say how much is left out between them.

    For what a person is asked to allow: the end of a command matters as much as its beginning.
    """
    if len(text) <= EXCERPT_LIMIT:
        return quote(text)
    return _quote_ends(text, text, _left_out(len(text)))


def quote_json(value: Any) -> Quotation:
    """Quote the ends of a value's JSON. Only so much of the value is read as is needed for that."""
    begin = "".join(_limited(_json_pieces(value), _JSON_READ + 1))
    if len(begin) <= _JSON_READ:
        return quote_ends(begin)
    end = "".join(reversed(list(_limited(_json_pieces(value, backwards=True), _READ))))
    return _quote_ends(begin, end, f"more than {_left_out(_JSON_READ)}")


def quote_lines(text: str, limit: int) -> Quotation:
    """Quote the last ``limit`` characters of a text, with its lines."""
    end = text[-limit:].replace("\0", "")
    cuts_line = len(text) > limit and text[-limit - 1] != "\n"
    if cuts_line:
        end = _without_cut_line(end)
    return Quotation(end, limit=0)


def shorten(text: str) -> str:
    """Return the beginning of a text that has no secrets, on one line, and with invisible characters made visible."""
    plain = make_visible(_on_one_line(text[:_READ]))
    if len(plain) <= EXCERPT_LIMIT:
        return plain
    return f"{plain[: EXCERPT_LIMIT - 1].rstrip()}…"


def _quote_ends(text: str, same_or_end: str, gap: str) -> Quotation:
    begin, end = _on_one_line(text[:_READ]), _on_one_line(same_or_end[-_READ:])
    if len(text) > _READ or len(begin) > _SEARCHED_ENDS:
        begin = without_cut_word(begin[:_SEARCHED_ENDS])
    if len(same_or_end) >= _READ or len(end) > _SEARCHED_ENDS:
        end = without_cut_beginning(end[-_SEARCHED_ENDS:])
    return Quotation(begin, end, gap)


def _without_cut_line(text: str) -> str:
    """Return a text whose beginning has been cut off from its first whole line on, if it has one soon.

    The rest of a line may be a value without its name.
    """
    line_end = text.find("\n", 0, len(text) // 4)
    if line_end < 0:
        return without_cut_beginning(text)
    return text[line_end + 1 :]


def _left_out(length: int) -> str:
    return f"{plural(length - EXCERPT_LIMIT, '1 character', '{} characters')} left out"


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())


def _limited(pieces: Iterable[str], limit: int) -> Iterator[str]:
    """Yield pieces until they have ``limit`` characters."""
    for piece in pieces:
        yield piece
        limit -= len(piece)
        if limit <= 0:
            return


class _Token(str):
    """A piece of JSON, where a plain ``str`` is a value."""

    __slots__ = ()


def _json_pieces(value: Any, *, backwards: bool = False) -> Iterator[str]:
    """Yield the JSON of a value in pieces, from its beginning or from its end.

    Of a long text only the beginning, or the end, is a piece: whoever reads that far needs no more.
    """
    remaining = [iter((value,))]  # not recursive: agents decide how deep a value is
    while remaining:
        for part in remaining[-1]:
            if isinstance(part, _Token):
                yield part
                continue
            if isinstance(part, (dict, list)) and part:
                remaining.append(_inner_parts(part, backwards=backwards))
                break
            yield _scalar(part, backwards=backwards)
        else:
            remaining.pop()


def _inner_parts(value: dict[str, Any] | list[Any], *, backwards: bool) -> Iterator[Any]:
    """Yield the tokens and the values of an object or an array."""
    first, last = "[", "]"
    if isinstance(value, dict):
        first, last = "{", "}"
    if backwards:
        first, last = last, first
    yield _Token(first)
    separator = ""
    for member in _members(value, backwards=backwards):
        yield _Token(separator)
        yield from member
        separator = ", "
    yield _Token(last)


def _members(value: dict[str, Any] | list[Any], *, backwards: bool) -> Iterator[Sequence[Any]]:
    """Yield the members of an object or an array, each as the tokens and the value that it consists of."""
    if isinstance(value, list) and backwards:
        yield from zip(reversed(value))
    elif isinstance(value, list):
        yield from zip(value)
    elif backwards:
        for name, member in reversed(value.items()):
            yield member, _Token(f"{_scalar(name, backwards=True)}: ")
    else:
        for name, member in value.items():
            yield _Token(f"{_scalar(name, backwards=False)}: "), member


def _scalar(value: Any, *, backwards: bool) -> str:
    if not isinstance(value, str) or len(value) <= _JSON_READ:
        return json.dumps(value, ensure_ascii=False, default=str)
    if backwards:
        return json.dumps(value[-_READ:], ensure_ascii=False)[1:]
    return json.dumps(value[: _JSON_READ + 1], ensure_ascii=False)[:-1]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of our own with quotations in it; ``str`` returns it with placeholders."""

    parts: tuple[str | Quotation, ...]

    def __str__(self) -> str:
        return "".join(part if isinstance(part, str) else PLACEHOLDER for part in self.parts)

    def places(self) -> list[list[Any]]:
        """Return where each placeholder begins, and its quotation, as JSON values."""
        found: list[list[Any]] = []
        length = 0
        for part in self.parts:
            if isinstance(part, Quotation):
                found.append([length, *astuple(part)])
                length += len(PLACEHOLDER)
            else:
                length += len(part)
        return found


def text(*parts: str | Quotation | Text) -> Text:
    """Join texts and quotations."""
    joined: list[str | Quotation] = []
    for part in parts:
        if isinstance(part, Text):
            joined += part.parts
        else:
            joined.append(part)
    return Text(tuple(joined))


def encode_quotations(texts: Mapping[str, str | Text]) -> str:
    """Return the quotations of texts by name, as they are stored; empty if there are none."""
    places = {name: words.places() for name, words in texts.items() if isinstance(words, Text)}
    quoted = {name: found for name, found in places.items() if found}
    if quoted:
        return json.dumps(quoted)
    return ""


def show_quotations(quoted: str, secrets: Sequence[str]) -> list[str]:
    """Return stored quotations without secrets, in their order. It takes as long as their authors want it to take."""
    places = json.loads(quoted)
    return [Quotation(*fields).show(secrets) for found in places.values() for _, *fields in found]


def fill_in(texts: Mapping[str, str], quoted: str, shown: Sequence[str] | None) -> dict[str, str]:
    """Return the texts that have quotations, with what is shown of them in their places.

    None: they could not be searched for secrets, so ``LEFT_OUT`` is shown. A text that was written by another release,
    without these placeholders, is returned as it is.
    """
    places: dict[str, list[list[Any]]] = json.loads(quoted)
    remaining = iter(shown or ())
    filled = {}
    for name, found in places.items():
        words = [(int(place[0]), next(remaining, LEFT_OUT)) for place in found]
        filled[name] = _fill_in(texts[name], words)
    return filled


def _fill_in(template: str, words: Sequence[tuple[int, str]]) -> str:
    if not all(template.startswith(PLACEHOLDER, at) for at, _ in words):
        return template
    parts, end = [], 0
    for at, shown in words:
        parts += [template[end:at], shown]
        end = at + len(PLACEHOLDER)
    return "".join([*parts, template[end:]])
