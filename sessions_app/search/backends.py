"""The two indexes of words behind one interface: FTS5 of SQLite, and a ``tsvector`` with a GIN index of PostgreSQL.

Both index the texts of ``search_documents``. SQLite's index is a table of its own without a copy of the texts, and a
trigger removes from it what is deleted from there, in the same transaction and however it is deleted: words of a
deleted session stay in no index. PostgreSQL's index is a column. Neither is filled by a trigger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from sessions_app.search.rules.queries import SearchQuery, fts5_query, tsquery

_AT_ONCE: Final = 500

_FTS5_TABLE: Final = """
CREATE VIRTUAL TABLE IF NOT EXISTS search_index USING fts5(
    text, content='search_documents', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='2 3'
)
"""
_FTS5_REMOVAL: Final = """
CREATE TRIGGER IF NOT EXISTS search_index_deleted AFTER DELETE ON search_documents
WHEN EXISTS (SELECT 1 FROM search_index_docsize WHERE id = old.id) BEGIN
    INSERT INTO search_index(search_index, rowid, text) VALUES ('delete', old.id, old.text);
END
"""
"""FTS5 is damaged by the removal of what it does not have, so what has not been indexed is left alone."""
SQLITE_CREATE: Final = (_FTS5_TABLE, _FTS5_REMOVAL)
SQLITE_DROP: Final = ("DROP TRIGGER IF EXISTS search_index_deleted", "DROP TABLE IF EXISTS search_index")
POSTGRESQL_CREATE: Final = (
    "ALTER TABLE search_documents ADD COLUMN IF NOT EXISTS vector tsvector",
    "CREATE INDEX IF NOT EXISTS search_document_vector ON search_documents USING gin (vector)",
)
POSTGRESQL_DROP: Final = ("ALTER TABLE search_documents DROP COLUMN IF EXISTS vector",)


def create_index(opened: Any) -> None:
    """Create what indexes the words, where it is missing. Raises RuntimeError without FTS5."""
    _execute_all(opened, POSTGRESQL_CREATE if opened.vendor == "postgresql" else SQLITE_CREATE)


def drop_index(opened: Any) -> None:
    """Drop what indexes the words."""
    _execute_all(opened, POSTGRESQL_DROP if opened.vendor == "postgresql" else SQLITE_DROP)


def _execute_all(opened: Any, statements: Sequence[str]) -> None:
    with opened.cursor() as cursor:
        for statement in statements:
            try:
                cursor.execute(statement)
            except DatabaseError as error:
                if "no such module: fts5" in str(error):
                    raise RuntimeError(NO_FTS5) from error
                raise


NO_FTS5: Final = (
    "This Python's SQLite was built without FTS5, which the search of Kandev needs. Use a Python whose SQLite has it "
    "(those of python.org, Debian, Ubuntu, Fedora and Homebrew do), or PostgreSQL."
)


def has_index() -> bool:
    """Whether the index of words exists."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM information_schema.columns"
                " WHERE table_name = 'search_documents' AND column_name = 'vector' AND table_schema = current_schema()"
            )
        else:
            cursor.execute("SELECT count(*) FROM sqlite_master WHERE name = 'search_index'")
        (count,) = cursor.fetchone()
    return bool(count)


def add_words(ids: Sequence[int], words: Sequence[str]) -> None:
    """Index documents that were inserted in this transaction. ``words`` are those of each, as ``folded_text``."""
    with connection.cursor() as cursor:
        for start in range(0, len(ids), _AT_ONCE):
            some = list(ids[start : start + _AT_ONCE])
            if connection.vendor == "postgresql":
                cursor.execute(
                    "UPDATE search_documents SET vector = to_tsvector('simple', new.words)"
                    " FROM unnest(%s::bigint[], %s::text[]) AS new(id, words) WHERE search_documents.id = new.id",
                    [some, list(words[start : start + _AT_ONCE])],
                )
            else:
                marks = ", ".join(["%s"] * len(some))
                cursor.execute(
                    "INSERT INTO search_index(rowid, text)"  # noqa: S608  (placeholders only)
                    f" SELECT id, text FROM search_documents WHERE id IN ({marks})",
                    some,
                )


def matching(documents: QuerySet[Any], query: SearchQuery, *, best_first: bool) -> QuerySet[Any]:
    """Return those of ``documents`` that match, newest or best first."""
    found: QuerySet[Any]
    if connection.vendor == "postgresql":
        wanted = tsquery(query)
        found = documents.extra(where=["search_documents.vector @@ %s::tsquery"], params=[wanted])
        if best_first:
            rank = RawSQL("ts_rank_cd(search_documents.vector, %s::tsquery, 1)", [wanted])
            return _by_rank(found, rank, "-rank")
        newest: QuerySet[Any] = found.order_by("-at", "-id")
        return newest
    found = documents.extra(
        tables=["search_index"],
        where=["search_index.rowid = search_documents.id", "search_index MATCH %s"],
        params=[fts5_query(query)],
    )
    if best_first:
        return _by_rank(found, RawSQL("search_index.rank", []), "rank")
    return found.order_by("-at", "-id")


def _by_rank(documents: QuerySet[Any], rank: RawSQL, order: str) -> QuerySet[Any]:
    """Return documents by their rank; the newest first of those with the same one."""
    ranked: QuerySet[Any] = documents.annotate(rank=rank).order_by(order, "-at", "-id")
    return ranked
