"""Empty the index and fill it again, if it is lost or damaged. Both take many short transactions."""

from __future__ import annotations

from django.db import connection, transaction

from sessions_app.search import backends
from sessions_app.search.indexer import Indexer
from sessions_app.search.models import SearchCursor, SearchDocument

_AT_ONCE = 500


def empty_index() -> None:
    """Remove all documents and cursors, and create the index of words again.

    The index of words goes first, because a damaged one might refuse deletions. Until it is there again, a supervisor
    that runs meanwhile writes nothing: its transactions fail, and are tried again.
    """
    with transaction.atomic():
        backends.drop_index(connection)
    while _remove_some():
        pass
    with transaction.atomic():
        SearchCursor.objects.all().delete()
        backends.create_index(connection)


def _remove_some() -> bool:
    with transaction.atomic():
        ids = list(SearchDocument.objects.order_by("id").values_list("id", flat=True)[:_AT_ONCE])
        SearchDocument.objects.filter(id__in=ids).delete()
    return bool(ids)


def fill_index() -> int:
    """Index everything that is not indexed; return the number of documents."""
    indexer = Indexer()
    while indexer.index_sessions() or indexer.index_tasks():
        pass
    return SearchDocument.objects.count()
