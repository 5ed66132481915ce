"""Find values whose names show that they are secrets, in one pass over a whole text.

The rules of detect-secrets miss a value that contains quotes, is written in a JSON text within another one, continues
behind the line's other quotes, or is longer than what they see at once. They are not meant to remove a secret, only to
find that there is one. What is found here is the whole value, with its end as its quotes define it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

_NAMES: Final = (
    r"(?:api|auth|access|service|account|db|database|priv|private|client|secret|signing|encryption|master|ssh)[_.-]?key"
    r"|recaptcha_(?=\w{0,40}key)|nessus_?key|key_?pass|db_?pass|database_?pass|_pass\b"
    r"|password|passwd|passphrase|pwd|secret|token|contraseña|contrasena"
)
_CLOSING: Final = r"(?:\\*+[\]'\"`]){0,2}+"
_VALUE_OF_PAIR: Final = r",\s*+\\*+['\"]?+value\\*+['\"]?+\s*+[:=]"
_QUOTED: Final = re.compile(
    rf"(?:{_NAMES})[\w.-]*+(?:"
    rf"(?:{_CLOSING}\s*+(?::\s*+[\w.\[\]| ]{{1,60}}+(?==))?"
    rf"(?:=>|:=|={{1,3}}|:|!==?|{_VALUE_OF_PAIR})|\()"
    r"\s*+[frbu@$]{0,2}+(?P<escapes>\\*+)(?P<quote>['\"`])(?:(?P=quote){2})?+|)",
    re.IGNORECASE,
)
"""Up to the opening quote: ``password = "``, ``\\"password\\": \\"``, ``"name": "PASSWORD", "value": "``, and the like.

Like the other two patterns it also matches a name without a value: another name in the same word has none either.
"""
_VALUE: Final = r"[^\s'\"`\\]*+(?:['\"`](?=\w)[^\s'\"`\\]*+)*+"
_UNQUOTED: Final = re.compile(
    rf"(?:{_NAMES})[\w-]*+(?:\s*+={{1,3}}+[ \t]*+(?P<value>(?=[^\s'\"`\\]){_VALUE})|)", re.IGNORECASE
)
"""An assignment of a shell or of an address, whose value may contain quotes."""
_MIXED: Final = re.compile(
    rf"(?:{_NAMES})(?P<tail>[\w-]*+)(?::[ \t]++(?P<value>[^\s'\"`\\,;]++)|)"
    r"|(?<![\w-])--?(?P<option>[a-z][\w-]{1,60}+)[ \t]++(?:\\*+['\"])?+(?P<argument>[^\s'\"`\\-][^\s'\"`\\]*+)"
    r"|\blogin\s++\S++\s++password\s++(?P<login>\S++)"
    rf"|<[\w:.-]{{0,40}}?(?:{_NAMES})[\w:.-]*+>(?P<element>[^<>\r\n]++)</",
    re.IGNORECASE,
)
"""YAML, an option of a command, a file of logins, XML. Ordinary words may stand there too, so most values count only
with letters and digits."""
_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
_DESCRIBING_TAIL: Final = re.compile(
    r"[\w-]*?(?:name|ref|reference|type|kind|format|version|path|file|dir|url|uri|endpoint|host|provider|policy|algorithm"
    r"|class|count|length|limit|size|ttl|expiry|expires|expiration|age|period|interval|timeout|backend|store|mode)s?"
    r"|i[sz]\w*|less\w*|arial|ary|aries",
    re.IGNORECASE,
)
"""The end of a name by which its value describes a secret and is none: ``secretName``, ``token_ttl``, ``tokenizer``."""
_DESCRIBING_VALUE: Final = re.compile(
    r"v\d+(?:(?:alpha|beta|rc)\d*)?|(?:sha|hs|rs|es|ps|rsa|md|ed|aes|p|x|utf|base|oauth)[-_]?\d+(?:[-_][a-z0-9]{1,7})*"
    r"|\d+(?:\.\d+)*(?:ms|s|m|h|d|w|y|b|ki?b?|mi?b?|gi?b?|secs?|seconds|min|minutes|hours|days|weeks|bits?|bytes)"
    r"|\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?",
    re.IGNORECASE,
)
"""A version, an algorithm, a duration, a size or a date: unquoted, it is no secret, whatever it is called."""
_AUTHORITY: Final = re.compile(r"(?i)\b[a-z][a-z0-9+.-]{0,30}+://(?P<authority>[^\s'\"`<>\\/]++)")
"""The part of an address that has user, password and host. A password with a slash has to be encoded there."""
_PORT: Final = re.compile(r"[0-9]{1,5}(?:[?#].*|)", re.DOTALL)
_CREDENTIALS: Final = re.compile(
    r"\b(?P<client>curl|wget|https?|xh|lftp|smbclient|rclone|snmpwalk|ldapsearch)\b(?!:)"
    r"|(?<![\w-])(?:--(?:proxy-)?user|--auth|-[uUa])(?:\\*+['\"],?|[ \t=])*+(?:\\*+['\"])?+"
    r"[^\s:'\"`\\,]{1,100}+:(?P<password>[^\s'\"`\\]++)"
)
"""A program, and an option with a user and a password for it, as in ``curl -u ada:hunter2``. For other programs, as
in ``docker run -u 1000:1000``, such an option means something else."""
_CLIENT_DISTANCE: Final = 1000
"""Characters after the name of a program in which its options are searched."""
_MIN_MIXED: Final = 6
_LETTER: Final = re.compile(r"[^\W\d_]")
_DIGIT: Final = re.compile(r"\d")
_WORD_CHARACTER: Final = re.compile(r"[^\W_]")
_NO_VALUE: Final = re.compile(
    r"\$\{[^{}]*\}|\$\w+|\$\([^()]*\)|\$\{\{[^{}]*\}\}|\{\{[^{}]*\}\}|\{[\w.!]*\}|%\w|%\(\w+\)s|<[^<>]*>"
    r"|[~.]{0,2}(?:/[a-z0-9_.-]+)+|\[REDACTED\].*"
)
"""Variables, placeholders and paths, and what is already redacted."""
_CODE: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(.*)?|.*://.*")
"""The attribute of an object, as in ``process.env.KEY_2``, and an address: its own rules find a password in it."""
HARMLESS_NAMES: Final = frozenset(
    {
        *("publickeytoken", "tokenendpoint", "secretname", "keyvaultsecretname", "maxinvalidpasswordattempts"),
        *("passwordtype", "forwardwindowsauthtoken", "savebootstraptokens", "antixsrftokenkey", "savepwd"),
    }
)
"""Names whose values are no secrets, from detect-secrets, which keeps everything in a line with one of them."""
_LONGEST_HARMLESS: Final = max(map(len, HARMLESS_NAMES))
_REST_OF_WORD: Final = re.compile(r"\w*+")
_EXAMPLE: Final = re.compile(
    r"(?:(?:an?|my|your)[-_ ])?example(?:[-_ ](?:password|secret|token|key|value))?", re.IGNORECASE
)
_JUDGED: Final = 200
"""Characters of a value by which it is judged; a longer one is none of the exceptions."""
_QUOTES: Final = re.compile(r"(?<!\\)(\\*+)(['\"`])")
_DEEPEST: Final = 15
"""Backslashes before the quotes of a JSON text within four others."""
_LINE_END: Final = re.compile("[\n\r]")


def assigned_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each value."""
    yield from _quoted_values(text)
    for found in _UNQUOTED.finditer(text):
        if found["value"] and is_secret(found["value"][:_JUDGED]):
            yield found.span("value")
    for found in _MIXED.finditer(text):
        if found.lastgroup not in (None, "tail"):
            yield from _mixed_value(found, found.lastgroup)
    yield from address_passwords(text)
    yield from _passwords_of_clients(text)


def address_passwords(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each password in an address, whatever its scheme: ``redis://:hunter2@host``."""
    for found in _AUTHORITY.finditer(text):
        credentials, at, _ = found["authority"].rpartition("@")
        user, colon, password = credentials.partition(":")
        if at and colon and is_secret(password[:_JUDGED]) and not _PORT.fullmatch(password):
            begin = found.start("authority") + len(user) + 1
            yield begin, begin + len(password)


def _passwords_of_clients(text: str) -> Iterator[tuple[int, int]]:
    client = -_CLIENT_DISTANCE
    for found in _CREDENTIALS.finditer(text):
        if found["client"]:
            client = found.end()
        elif found.start() - client < _CLIENT_DISTANCE and is_secret(found["password"][:_JUDGED]):
            yield found.span("password")


def is_example(value: str) -> bool:
    """Whether a value says itself that it is only an example."""
    return _EXAMPLE.fullmatch(value) is not None


def is_harmless_name(text: str, at: int) -> bool:
    """Whether the whole word around a place is one of the names whose values are no secrets."""
    begin = at
    while begin > max(0, at - _LONGEST_HARMLESS) and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
        begin -= 1
    word = _REST_OF_WORD.match(text, begin, at + _LONGEST_HARMLESS)
    return word is not None and word[0].lower() in HARMLESS_NAMES


def is_secret(value: str) -> bool:
    """Whether a value behind a secret's name is none of the usual exceptions."""
    return _WORD_CHARACTER.search(value) is not None and not _NO_VALUE.fullmatch(value) and not is_example(value)


def _mixed_value(found: re.Match[str], kind: str) -> Iterator[tuple[int, int]]:
    value = found[kind][:_JUDGED]
    is_certain = kind in ("login", "element")
    if kind == "argument" and not _NAME.search(found["option"]):
        return
    if kind == "value" and (_DESCRIBING_TAIL.fullmatch(found["tail"]) or _DESCRIBING_VALUE.fullmatch(value)):
        return
    if is_secret(value) and (is_certain or _is_mixed(value)):
        yield found.span(kind)


def _is_mixed(value: str) -> bool:
    has_both = _LETTER.search(value) is not None and _DIGIT.search(value) is not None
    return has_both and len(value) >= _MIN_MIXED and not _CODE.fullmatch(value)


def _quoted_values(text: str) -> Iterator[tuple[int, int]]:
    quotes = _QuotedText(text)
    for found in _QUOTED.finditer(text):
        if not found["quote"] or is_harmless_name(text, found.start()):
            continue
        begin = found.end()
        end = quotes.end_of_value(begin, found["quote"], len(found["escapes"]))
        value = text[begin : min(end, begin + _JUDGED)]
        if is_secret(value):
            yield begin, end


class _QuotedText:
    """The quotes and line ends of a text, found once, so that many values with a distant end cost no more than few."""

    def __init__(self, text: str) -> None:
        self._length = len(text)
        self._line_ends = [found.start() for found in _LINE_END.finditer(text)]
        self._quotes = [(found.start(), len(found[1]), found[2]) for found in _QUOTES.finditer(text)]
        self._closing: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def end_of_value(self, begin: int, quote: str, escapes: int) -> int:
        """Return where a value ends: before the quote that closes it, or else with its line."""
        depth = min(escapes, _DEEPEST + 1)
        if (quote, depth) not in self._closing:
            self._closing[quote, depth] = self._find_closing(quote, depth)
        closing = self._closing[quote, depth]
        end = self._end_of_line(begin)
        number = bisect_left(closing, begin, key=lambda each: each[1])
        if number < len(closing):
            return min(end, closing[number][0])
        return end

    def _find_closing(self, quote: str, depth: int) -> list[tuple[int, int]]:
        """Return begin and end of each quote that closes a value at this depth, with its backslashes."""
        found = []
        for start, run, kind in self._quotes:
            if kind == quote and _closes(run, depth):
                found.append((start + max(0, run - depth), start + run))
        return found

    def _end_of_line(self, begin: int) -> int:
        number = bisect_left(self._line_ends, begin)
        if number < len(self._line_ends):
            return self._line_ends[number]
        return self._length


def _closes(run: int, depth: int) -> bool:
    """Whether a quote behind ``run`` backslashes ends a value whose opening quote is behind ``depth`` of them.

    In a JSON text within another one, a quote behind one backslash ends a value, one behind three is a part of it, and
    one behind none ends the outer text.
    """
    return run < depth or run % (2 * (depth + 1)) == depth or depth > _DEEPEST
