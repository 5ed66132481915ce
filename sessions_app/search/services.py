"""Search: what a user may find, in their own teams' conversations and tasks, and how far the index is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Count, F, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse

from sessions_app.kernel.locking import refuse_in_transaction
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import Conflict, Invalid
from sessions_app.models import TaskSession
from sessions_app.search import backends
from sessions_app.search.models import SearchDocument
from sessions_app.search.rules.documents import DocumentKind
from sessions_app.search.rules.queries import LONGEST_QUERY, SearchQuery, parse_query
from sessions_app.search.rules.snippets import Piece, snippet
from sessions_app.search.time_limit import SearchTooLong, limited_search

MOST_RESULTS: Final = 1000
"""Results of one search that can be paged through; further ones are not counted."""
PAGE_SIZE: Final = 20
LONGEST_AUTHOR: Final = 151
"""Characters of ``SearchFilter.who``: those of a user name, and one."""
BY_NAME: Final = "@"
"""Before the name of the user whose texts are searched."""
TOO_LONG: Final = "This search takes too long. Use more words or rarer ones, or search one session."
NO_INDEX: Final = "The index of the search is missing. An administrator can run “manage.py rebuild_search”."
SYSTEM_AUTHOR: Final = "Member"
"""Shown for a text whose author is not known, for example because the account was deleted."""


class Order(StrEnum):
    """The order of results."""

    NEWEST = "newest"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Where is searched; the default is everything that the user may read."""

    session: uuid.UUID | None = None
    task: uuid.UUID | None = None
    state: str = ""
    """The state of the task; empty: any."""
    who: str = ""
    """A ``DocumentKind``, or ``@`` and a user name; empty: any."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A text that matches. Nothing in it is escaped."""

    document: SearchDocument
    """With its task, its session and its author."""
    snippet: Sequence[Piece]

    @property
    def author(self) -> str:
        """Who wrote it: a user name, or the kind of writer."""
        kind = self.document.kind
        if kind == DocumentKind.AGENT:
            return "Agent"
        if kind == DocumentKind.TOOL:
            return "Tool call"
        if self.document.author is None:
            return SYSTEM_AUTHOR
        return self.document.author.get_username()

    @property
    def url(self) -> str:
        """The path of the page that shows it: of a message, the part of the conversation around it."""
        document = self.document
        if document.session_id is None:
            return reverse("task", args=(document.task_id,))
        page = reverse("session", args=(document.task_id, document.session_id))
        return f"{page}?at={document.seq}#m-{document.message_id}"


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far the index of some sessions is behind their logs."""

    behind: int = 0
    """Sessions with something that is not indexed yet."""
    indexed_up_to: datetime | None = None
    """Up to when all of them are indexed; None: nothing is behind, or a session is not indexed at all."""
    left_out: int = 0
    """Texts that are left out, because there are too many, or reading them is too expensive."""

    @property
    def sentence(self) -> str:
        """What people have to know about it; empty: everything is indexed."""
        if not self.behind:
            return ""
        return plural(
            self.behind,
            "1 session has newer text that is not searched yet.",
            "{} sessions have newer text that is not searched yet.",
        )


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of results."""

    query: SearchQuery
    results: Sequence[SearchResult] = ()
    count: int = 0
    is_complete: bool = True
    """Whether ``count`` covers all matches."""
    number: int = 1
    size: int = PAGE_SIZE
    index: IndexState = field(default_factory=IndexState)

    @property
    def next_page(self) -> int | None:
        """The number of the page after this one; None if there is none."""
        if self.number * self.size < self.count:
            return self.number + 1
        return None


def search(
    user: User, text: str, where: SearchFilter, order: Order = Order.NEWEST, *, number: int = 1, size: int = PAGE_SIZE
) -> SearchPage:
    """Return a page of what matches in the user's teams. Raises Invalid and Conflict; never writes.

    A constant number of queries, which the database gives up after ``time_limit.SECONDS``.
    """
    refuse_in_transaction()
    if len(text) > LONGEST_QUERY:
        raise Invalid(f"A search has at most {LONGEST_QUERY} characters.", field="q")
    query, index = parse_query(text), index_state(user, where.session)
    if not query.terms:
        return SearchPage(query, number=number, size=size, index=index)
    if not backends.has_index():
        raise Conflict(NO_INDEX)
    matching = backends.matching(_visible(user, where), query, best_first=order is Order.BEST)
    try:
        with limited_search():
            ids = list(matching.values_list("id", flat=True)[: MOST_RESULTS + 1])
    except SearchTooLong as error:
        raise Invalid(TOO_LONG, field="q") from error
    shown = ids[:MOST_RESULTS][(number - 1) * size : number * size]
    return SearchPage(
        query=query,
        results=_results(user, shown, query),
        count=min(len(ids), MOST_RESULTS),
        is_complete=len(ids) <= MOST_RESULTS,
        number=number,
        size=size,
        index=index,
    )


def _visible(user: User, where: SearchFilter) -> QuerySet[SearchDocument]:
    found: QuerySet[SearchDocument] = SearchDocument.objects.visible_to(user)
    if where.session is not None:
        found = found.filter(session=where.session)
    if where.task is not None:
        found = found.filter(task=where.task)
    if where.state:
        found = found.filter(task__state=where.state)
    if where.who.startswith(BY_NAME):
        return found.filter(author__username=where.who.removeprefix(BY_NAME))
    if where.who:
        if where.who not in set(DocumentKind):
            raise Invalid("Expected user, agent, tool, task, or @ and a user name.", field="who")
        return found.filter(kind=where.who)
    return found


_RESULT_COLUMNS: Final = (
    *("kind", "at", "seq", "text", "message_id", "task_id", "session_id", "author_id"),
    *("task__title", "task__state", "session__id", "author__username"),
)
"""What a result shows; a row of a session has sixty columns, and a task's description a megabyte."""


def _results(user: User, ids: Sequence[int], query: SearchQuery) -> list[SearchResult]:
    rows = SearchDocument.objects.visible_to(user).filter(id__in=ids)
    documents = rows.select_related("task", "session", "author").only(*_RESULT_COLUMNS).in_bulk()
    results = []
    for document_id in ids:
        document = documents.get(document_id)
        # A release without this index may have deleted the session.
        if document is not None and (document.kind == DocumentKind.TASK or document.session is not None):
            results.append(SearchResult(document, snippet(document.text, query)))
    return results


def index_state(user: User, session: uuid.UUID | None = None) -> IndexState:
    """Return how far the index of a session is, or of all sessions of the user's teams; one query."""
    sessions = TaskSession.objects.visible_to(user)
    if session is not None:
        sessions = sessions.filter(id=session)
    indexed = sessions.annotate(indexed_seq=Coalesce(F("search_cursor__seq"), 0))
    is_behind = Q(last_seq__gt=F("indexed_seq"))
    found = indexed.aggregate(
        behind=Count("id", filter=is_behind),
        unknown=Count("id", filter=is_behind & Q(search_cursor=None)),
        up_to=Min("search_cursor__indexed_at", filter=is_behind),
        left_out=Coalesce(Sum("search_cursor__left_out"), 0),
    )
    up_to = None if found["unknown"] else found["up_to"]
    return IndexState(found["behind"], up_to, found["left_out"])
