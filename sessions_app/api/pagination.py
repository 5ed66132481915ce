"""Pagination by page number or by ``seq``; every page is ``{count, next, previous, results}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination, PageNumberPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from sessions_app.kernel.rules.json_size import json_size

MAX_SEQ: Final = 2**63 - 1
_CHUNK: Final = 50
"""Rows that are read at once."""


class NumberedPagination(PageNumberPagination):
    """``?page=`` and ``?page_size=``. A page after the last is a 404; one that is not a number is a 400."""

    page_size_query_param = "page_size"
    max_page_size = 200

    def get_page_number(self, request: Request, paginator: Any) -> int | str:
        """Return the page number. Raises ValidationError."""
        page = request.query_params.get(self.page_query_param, "1")
        if page not in self.last_page_strings and not (page.isascii() and page.isdigit()):
            raise ValidationError({self.page_query_param: ["Must be a page number."]})
        return super().get_page_number(request, paginator)


class SequencePagination(BasePagination):
    """``?after=SEQ&limit=``: rows with a greater ``seq``, oldest first. ``next`` continues after the last of them."""

    default_limit = 200
    max_limit = 1000
    max_bytes = 4 << 20
    """Size of a page; it ends with the row that reaches this size, so it always has at least one."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Return the rows of this page. Raises ValidationError for parameters that are not numbers."""
        self.after = _parse_number(request, "after", 0, 0, MAX_SEQ)
        limit = _parse_number(request, "limit", self.default_limit, 1, self.max_limit)
        later = queryset.filter(seq__gt=self.after).order_by("seq")
        self.request, self.count = request, later.count()
        rows = self._take_page(later[:limit])
        self.more = self.count > len(rows)
        self.last = self.after
        if rows:
            self.last = rows[-1].seq
        return rows

    def size_of(self, row: Any) -> int:
        """Return the bytes that a row counts for."""
        return json_size(row.payload)

    def _take_page(self, rows: QuerySet[Any]) -> list[Any]:
        """Return rows up to ``max_bytes``; in chunks, because a thousand rows may be a gigabyte."""
        page, size = [], 0
        for row in rows.iterator(chunk_size=_CHUNK):
            page.append(row)
            size += self.size_of(row)
            if size >= self.max_bytes:
                break
        return page

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page in the shape of every list; ``count`` covers all rows after ``after``."""
        next_url = None
        if self.more:
            next_url = replace_query_param(self.request.build_absolute_uri(), "after", str(self.last))
        return Response({"count": self.count, "next": next_url, "previous": None, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of numbered pages, which has the same shape."""
        described: dict[str, Any] = PageNumberPagination().get_paginated_response_schema(schema)
        return described

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Describe both query parameters."""
        return [
            _query_parameter(
                "after", "Return only entries with a greater `seq`.", {"type": "integer", "minimum": 0, "default": 0}
            ),
            _query_parameter(
                "limit",
                "Maximum number of results.",
                {"type": "integer", "minimum": 1, "maximum": self.max_limit, "default": self.default_limit},
            ),
        ]


def _query_parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _parse_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ValidationError({name: [f"Must be a whole number from {least} to {most}."]})
    return int(text)


def paginate(rows: Sequence[Any] | QuerySet[Any], view: Any) -> tuple[list[Any], BasePagination]:
    """Return one page of ``rows`` by the view's ``pagination_class``, and the paginator that builds the response."""
    paginator: BasePagination = view.pagination_class()
    found = paginator.paginate_queryset(rows, view.request, view=view)
    return list(found or []), paginator
