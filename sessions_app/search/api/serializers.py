"""Serializers of the search."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from sessions_app.api.serializers.common import TASK_STATES, choice_field, values_of
from sessions_app.search.rules.documents import DocumentKind
from sessions_app.search.rules.queries import LONGEST_QUERY
from sessions_app.search.services import LONGEST_AUTHOR, MOST_RESULTS, PAGE_SIZE, Order

DOCUMENT_KINDS: Final = values_of(DocumentKind)
ORDERS: Final = values_of(Order)
MOST_ON_PAGE: Final = 100


class SearchQuerySerializer(serializers.Serializer[Any]):
    """What is searched, and where."""

    q = serializers.CharField(
        max_length=LONGEST_QUERY,
        allow_blank=True,
        default="",
        help_text="Words, all of which a text has to contain; quoted, they have to follow each other. The last may go "
        "on.",
    )
    session = serializers.UUIDField(required=False)
    task = serializers.UUIDField(required=False)
    state = choice_field(TASK_STATES, required=False, help_text="The state of the task.")
    who = serializers.CharField(
        required=False,
        max_length=LONGEST_AUTHOR,
        help_text="Who wrote it: `user`, `agent`, `tool` (titles and commands of tool calls), `task` (titles and texts "
        "of tasks), or `@` and a user name.",
    )
    order = choice_field(ORDERS, default=Order.NEWEST.value)
    page = serializers.IntegerField(min_value=1, max_value=MOST_RESULTS, default=1)
    page_size = serializers.IntegerField(min_value=1, max_value=MOST_ON_PAGE, default=PAGE_SIZE)


class SnippetPieceSerializer(serializers.Serializer[Any]):
    """A piece of a snippet: plain text, not HTML."""

    text = serializers.CharField()
    marked = serializers.BooleanField(help_text="Whether it was searched for.")


class SearchResultSerializer(serializers.Serializer[Any]):
    """A text that matches."""

    kind = choice_field(DOCUMENT_KINDS, source="document.kind")
    task_id = serializers.UUIDField(source="document.task_id")
    task_title = serializers.CharField(source="document.task.title")
    task_state = choice_field(TASK_STATES, source="document.task.state")
    session_id = serializers.UUIDField(source="document.session_id", allow_null=True)
    message_id = serializers.UUIDField(source="document.message_id", allow_null=True)
    seq = serializers.IntegerField(source="document.seq", help_text="Of the message; 0 for a task.")
    author = serializers.CharField(help_text="A user name, `Agent`, `Tool call`, or `Member` for an unknown one.")
    at = serializers.DateTimeField(source="document.at")
    snippet = SnippetPieceSerializer(many=True)
    url = serializers.CharField(help_text="The path of the page that shows it.")


class IndexStateSerializer(serializers.Serializer[Any]):
    """How far the index is behind the logs of the sessions that were searched."""

    behind = serializers.IntegerField(help_text="Sessions with text that is not searched yet.")
    indexed_up_to = serializers.DateTimeField(
        allow_null=True, help_text="Up to when these are indexed; null if none is behind, or it is not known."
    )
    left_out = serializers.IntegerField(help_text="Texts that are never found: beyond the limits, or unreadable.")


class SearchPageSerializer(serializers.Serializer[Any]):
    """One page of results."""

    count = serializers.IntegerField(help_text=f"Results, at most {MOST_RESULTS}.")
    is_complete = serializers.BooleanField(help_text="Whether there are no more than those that are counted.")
    next_page = serializers.IntegerField(allow_null=True)
    results = SearchResultSerializer(many=True)
    index = IndexStateSerializer()
