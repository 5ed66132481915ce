"""What a request may say: one JSON object of bounded size and depth, without U+0000."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import IO, Any, Final

import orjson
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from sessions_app.api.errors import TooLarge

MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes: the longest prompt with every character escaped."""
MAX_DEPTH: Final = 32


class StrictJSONParser(BaseParser):
    """Reads a JSON object; anything else is a ParseError, and too much of it TooLarge.

    No relative of REST framework's JSONParser, whose bodies end at Django's limit for forms.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The object. JSON is UTF-8, whatever the request says."""
        try:
            value = orjson.loads(_body(stream))
        except orjson.JSONDecodeError as error:
            raise ParseError(f"This is not JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("A JSON object is wanted.")
        _check(value, MAX_DEPTH)
        return value


class FileParser(BaseParser):
    """Takes any other body for the content of a file; too much of it is TooLarge."""

    media_type = "*/*"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The content as a JSON object would have had it."""
        return {"content": base64.b64encode(_body(stream)).decode(), "encoding": "base64"}


def _body(stream: IO[bytes]) -> bytes:
    body = stream.read(MAX_BODY + 1)
    if len(body) > MAX_BODY:
        raise TooLarge
    return body


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ParseError("U+0000 cannot be stored in any text.")
    elif isinstance(value, (dict, list)):
        if depth == 0:
            raise ParseError(f"The JSON is nested more than {MAX_DEPTH} deep.")
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        for part in parts:
            _check(part, depth - 1)
