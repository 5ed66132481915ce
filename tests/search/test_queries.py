"""Whatever is typed becomes terms; nothing of it is syntax of a database."""

from __future__ import annotations

import pytest

from sessions_app.search.rules import words
from sessions_app.search.rules.queries import MOST_TERMS, fts5_query, parse_query, tsquery
from sessions_app.search.rules.snippets import CUT, SNIPPET_LENGTH, WORDS_COMPARED, Piece, snippet
from sessions_app.search.rules.words import folded_text


@pytest.mark.parametrize(
    ("typed", "sqlite", "postgresql"),
    [
        ("", "", ""),
        ("  ... ", "", ""),
        ("mend", '"mend" *', "('mend':*)"),
        ("m", '"m"', "('m')"),
        ("Mend fen", '"Mend" AND "fen" *', "('mend') & ('fen':*)"),
        ("module_03", '"module 03" *', "('module' <-> '03':*)"),
        ('"two words"', '"two words"', "('two' <-> 'words')"),
        ('"never closed', '"never closed"', "('never' <-> 'closed')"),
        ('a"b', '"a" AND "b"', "('a') & ('b')"),
        ("x' OR 1=1; --", '"x" AND "OR" AND "1 1"', "('x') & ('or') & ('1' <-> '1')"),
        ("NEAR(a b) -c text:d^2*", '"NEAR a" AND "b" AND "c" AND "text d 2"', None),
        ("a & !b | c:*", '"a" AND "b" AND "c"', "('a') & ('b') & ('c')"),
        ("Straße", '"Straße" *', "('strasse':*)"),
        ("CAFE\u0301s", '"CAFÉs" *', "('cafes':*)"),
        ("\x00a\\'b", '"a b"', "('a' <-> 'b')"),
    ],
)
def test_text_becomes_terms(typed: str, sqlite: str, postgresql: str | None) -> None:
    query = parse_query(typed)
    assert fts5_query(query) == sqlite
    assert postgresql is None or tsquery(query) == postgresql


def test_terms_beyond_the_limit_are_left_out_and_said() -> None:
    query = parse_query(" ".join(f"word{number}" for number in range(MOST_TERMS + 1)))
    assert (len(query.terms), query.is_cut) == (MOST_TERMS, True)
    assert not query.terms[-1].is_beginning


def test_words_are_compared_without_case_and_accents() -> None:
    assert folded_text("Über-Änderung, ﬁle_Name İ ①½ 日本語") == "uber anderung file name i 112 日本語"


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        ("Mend the fence", "fen", [("Mend the ", False), ("fence", True)]),
        ("a module_03.py b", "module_03", [("a ", False), ("module_03", True), (".py b", False)]),
        ("<b>bold</b> words", "bold", [("<b>", False), ("bold", True), ("</b> words", False)]),
        ("one two one", "one", [("one", True), (" two ", False), ("one", True)]),
        ("aa ab", '"aa" ab', [("aa", True), (" ", False), ("ab", True)]),
        ("nothing of it", "else", [("nothing of it", False)]),
        ("a wired red wire", "wire", [("a ", False), ("wired", True), (" red ", False), ("wire", True)]),
        ("rewire it", "wire", [("rewire it", False)]),
        ("Der Fuß ist FUSS", "fuss", [("Der Fuß ist ", False), ("FUSS", True)]),
        ("the big big dog", '"big dog" big', [("the ", False), ("big", True), (" ", False), ("big dog", True)]),
    ],
)
def test_snippet_marks_what_matches(text: str, typed: str, expected: list[tuple[str, bool]]) -> None:
    assert snippet(text, parse_query(typed)) == [Piece(*piece) for piece in expected]


def test_snippet_of_a_long_text_is_around_the_match() -> None:
    text = "before " * 100 + "needle " + "after " * 100
    pieces = snippet(text, parse_query("needle"))
    assert (pieces[0].text, pieces[-1].text) == (CUT, CUT)
    assert [piece.text for piece in pieces if piece.marked] == ["needle"]
    assert sum(len(piece.text) for piece in pieces) <= SNIPPET_LENGTH + 2


HOSTILE = ("a ", "\N{LATIN SMALL LETTER E WITH ACUTE} ", "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM} ", "zz'")


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("typed", ["zebra", "a " * 12, '"' + "a " * 90 + 'b"', '"zz b"'])
def test_snippet_compares_a_limited_number_of_words(unit: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def fold(word: str) -> str:
        compared.append(word)
        return word

    monkeypatch.setattr(words, "fold", fold)
    snippet(unit * 8_000, parse_query(typed))
    assert len(compared) <= WORDS_COMPARED + MOST_TERMS * 100


def test_match_far_behind_the_beginning_is_marked() -> None:
    pieces = snippet("so " * 5_000 + "needle", parse_query("Needle"))
    assert [piece.text for piece in pieces if piece.marked] == ["needle"]


def test_snippet_of_a_text_without_spaces_is_bounded() -> None:
    pieces = snippet("a" * 20_000, parse_query("aa"))
    assert sum(len(piece.text) for piece in pieces) <= SNIPPET_LENGTH + 1
