"""Searches in a large index, beside the bare query of the database's own index; and what indexing writes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from itertools import accumulate
from time import process_time
from typing import Final

from django.db import connection, transaction
from django.utils import timezone

from sessions_app.models import TaskSession
from sessions_app.search import backends
from sessions_app.search.indexer import MESSAGES_PER_PASS as WRITTEN
from sessions_app.search.models import SearchDocument
from sessions_app.search.rules.queries import fts5_query, parse_query, tsquery
from sessions_app.search.rules.words import folded_text
from sessions_app.search.services import MOST_RESULTS, PAGE_SIZE, SearchFilter, search
from tests.bench.figures import Figure
from tests.bench.world import AT_ONCE, World
from tests.support.fake_agentctl import plan_fleet

SESSIONS: Final = 50
WORDS_OF_TEXT: Final = 40
VOCABULARY: Final = 20_000
QUERIES: Final = {"a rare word": "zebra", "two usual words": "word7 word11", "a word of most messages": "word0"}
LIMIT: Final = 3.0
"""Maximum, as a multiple of the bare query of the index, and what Django takes to read what a page shows besides."""


def of_messages(world: World, messages: int, rounds: int, *, limited: bool) -> Iterator[Figure]:
    """Measure what a transaction of the indexer takes, then searches in ``messages`` indexed messages."""
    yield Figure(f"{WRITTEN} messages into the index, CPU of the longest", _fill(world, messages), "half a second", 0.5)
    for name, text in QUERIES.items():
        ours, floor = [], []
        for _ in range(rounds):
            ours.append(_cpu_of_search(world, text))
            floor.append(_cpu_of_floor(text))
        row, limit = f"search of {name} in {messages:,} messages, CPU", LIMIT if limited else None
        yield Figure(
            row, min(ours), "the bare query; its rows and a count of sessions by Django", min(floor), limit=limit
        )


def _cpu_of_search(world: World, text: str) -> float:
    began = process_time()
    assert search(world.user, text, SearchFilter()).count
    return process_time() - began


def _cpu_of_floor(text: str) -> float:
    began = process_time()
    shown = _bare_query(text)[:PAGE_SIZE]
    rows = SearchDocument.objects.filter(id__in=shown).select_related("task", "session", "author")
    assert len(rows) == len(shown)
    assert TaskSession.objects.count() == SESSIONS
    return process_time() - began


def _bare_query(text: str) -> list[int]:
    query = parse_query(text)
    if connection.vendor == "postgresql":
        condition, given = "search_documents.vector @@ %s::tsquery", tsquery(query)
        tables = "search_documents"
    else:
        condition, given = "search_index MATCH %s AND search_index.rowid = search_documents.id", fts5_query(query)
        tables = "search_index, search_documents"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM {tables} WHERE {condition} ORDER BY at DESC LIMIT {MOST_RESULTS}",  # noqa: S608
            [given],
        )
        ids = [row_id for (row_id,) in cursor.fetchall()]
    assert ids
    return ids


def _fill(world: World, count: int) -> float:
    """Index messages of random words, as frequent as those of a language; return the CPU of the longest transaction."""
    world.fill(plan_fleet(SESSIONS, "127.9.0.1", 9))
    sessions = list(TaskSession.objects.order_by("id").values_list("id", "task"))
    chosen = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY)]
    weights = list(accumulate(1 / (number + 1) for number in range(VOCABULARY)))
    began = timezone.now() - timedelta(days=30)
    largest = 0.0
    for start in range(0, count, WRITTEN):
        rows = []
        for number in range(start, min(start + WRITTEN, count)):
            session_id, task_id = sessions[number % len(sessions)]
            text = " ".join(chosen.choices(words, cum_weights=weights, k=WORDS_OF_TEXT))
            if number % 20_000 == 0:
                text += " zebra"
            at = began + timedelta(seconds=number)
            row = SearchDocument(kind="agent", task_id=task_id, session_id=session_id, seq=number, at=at, text=text)
            rows.append(row)
        words_of_rows = [folded_text(row.text) for row in rows]
        before = process_time()
        with transaction.atomic():
            SearchDocument.objects.bulk_create(rows, batch_size=AT_ONCE)
            backends.add_words([row.id for row in rows], words_of_rows)
        largest = max(largest, process_time() - before)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return largest
