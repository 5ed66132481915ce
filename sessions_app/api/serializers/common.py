"""Shapes that belong to no one noun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers

from sessions_app.api.fields import Text

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Problem(serializers.Serializer[Any]):
    """What every error looks like; ``details`` of a validation error are lists of sentences by field."""

    code = serializers.CharField()
    message = serializers.CharField()
    details = serializers.DictField()


class KeptQuery(serializers.Serializer[Any]):
    """``?kept=true``: not from the workspace, but as the repository has kept it; read only, without agentctl."""

    kept = serializers.BooleanField(default=False)


class PathQuery(serializers.Serializer[Any]):
    """``?path=``, relative to the workspace."""

    path = Text(max_length=4096, trim_whitespace=False)


class FileQuery(PathQuery, KeptQuery):
    """A file, and of when."""


class ContentQuery(FileQuery):
    """A file, of when, and whether as HTML, too."""

    highlight = serializers.BooleanField(default=False)


class FolderQuery(KeptQuery):
    """``?path=``, relative to the workspace; without one the workspace itself."""

    path = Text(max_length=4096, trim_whitespace=False, allow_blank=True, default="")


def described(answers: dict[int, Any], *errors: int, **more: Any) -> Callable[[Handler], Handler]:
    """``extend_schema`` with the good answers by status, and the statuses an error may have.

    Too many wrong tokens are answered with 429. Whatever writes may be refused to those who only read, with 403;
    a list has pages that are none, 400, and pages behind the last, 404.
    """

    def describe(handler: Handler) -> Handler:
        of_all = (401, 429) if handler.__name__ == "get" else (401, 403, 429)
        of_lists = (400, 404) if any(isinstance(one, serializers.ListSerializer) for one in answers.values()) else ()
        responses = {**answers, **dict.fromkeys((*of_all, *of_lists, *errors), Problem)}
        described_so: Handler = extend_schema(responses=responses, **more)(handler)
        return described_so

    return describe
