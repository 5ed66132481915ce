"""The rewritten patterns of secrets find what the maintained ones find, in time proportional to the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from detect_secrets.plugins.keyword import KeywordDetector
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessions_app.redaction import secret_rules, secret_spans
from sessions_app.redaction.redactor import redact
from sessions_app.redaction.secret_spans import REDACTION_MARK
from tests.growth import FLOOR_OF_CALLS, assert_costs_at_most, measure_growth

_REPOSITORY: Final = Path(__file__).parents[2]
_KEYWORD: Final = KeywordDetector()
_FRAGMENTS: Final = (
    *("key", "KEY", "\u212aey", "token", "to\u212aen", "password", "pa\u017fs", "pwd", "_pass", "db_pass", "secret"),
    *("recaptcha_", "recaptcha_key", "api_key", "nessus_key", "contraseña", "publickeytoken", "example", ".assign"),
    *("aws", "AWS", "ibm", "cloudant", "cl", "sl", "softlayer", "cos", "artif", "JFROG", "AP0", "APA", "AKC", "AKIA"),
    *('"', "'", "`", "=", "==", "===", "!=", "!==", "=>", ":", ":=", "::", " ", "   ", " " * 20, "\t", "\n", "\x0b"),
    *(",", ";", ")", "(", "[", "]", "[1]", "@", "/", "\\", "+", ".", "-", "_", "a", "b1", "x" * 8, "\u2028", "ñ"),
    *("0123456789abcdef" * 4, "abcdefghijklmnopqrstuvwx", "IOSFODNN7EXAMPLE", "A" * 36, "x" * 95, "." * 99, "w " * 50),
    *(
        "eyJ",
        "eyJhbGci",
        "eyJ.",
        "https://",
        "://",
        "u:p@",
        ".cloudant.com",
        "data.put(",
        "SG.",
        "xoxb-",
        "12-",
        "ghp_",
    ),
    *("BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "END", "NPM_TOKEN", "sk-", "glpat-", "hf_", "x7Kq9ZbR2mT4"),
)
"""Parts of what the rules look for, and characters whose case or class is special."""
TEXTS: Final = st.lists(st.sampled_from(_FRAGMENTS), max_size=25).map("".join)
FRAGMENTS_OR_ANY: Final = TEXTS | st.text(max_size=80)


def missed_by_us(text: str) -> list[str]:
    """Return what the maintained patterns find in a text, as they are, and ``redact`` leaves wholly or in part.

    ``redact`` finds more: they stop at the first match in a line, and know neither headers nor escapes. So the two are
    compared in one direction, by the places in the text. What it may find beyond that is bounded by the
    texts in ``tests/redaction/test_redaction.py`` that have to stay as they are.
    """
    ours = {place for span in secret_spans.find_secret_spans(text) for place in range(*span)}
    return [text[slice(*span)] for span in _find_with_maintained_rules(text) if not ours.issuperset(range(*span))]


def _find_with_maintained_rules(text: str) -> Iterator[tuple[int, int]]:
    for rule in secret_rules.MAINTAINED_RULES:
        yield from (match.span() for match in rule.finditer(text))
    at = 0
    for line in text.splitlines(keepends=True):
        for start, stop in secret_spans._named_spans(line, _find_named_by_maintained_rules):
            yield at + start, at + stop
        at += len(line)


def _find_named_by_maintained_rules(line: str) -> list[str]:
    entropy = secret_rules._ENTROPY
    return [
        *_KEYWORD.analyze_string(line, denylist_regex_to_group=dict(secret_rules.MAINTAINED_NAMED)),
        *(
            secret
            for secret in entropy.analyze_string(line)
            if entropy.calculate_shannon_entropy(secret) > entropy.entropy_limit
        ),
    ]


@given(FRAGMENTS_OR_ANY)
@settings(max_examples=300)
@example("artif" + "x" * 95 + "\n" + "y" * 100 + '\n"APA0123456789 ')
@example("artif" + "x" * 150 + "\n AP01234567890 AP91234567890")
@example("eyJeyJ.a eyJhbGci.eyJb.c+/=")
@example("recaptcha_a keyx b key: 'v' recaptcha_key='w'")
@example("'a' == recaptcha_ recaptcha_key `b` != secret `c` == pwd")
@example("secret `a` pwd`b`;")
@example("pwd`a`; token'b`'; secret`c,`;")
@example("key:  =  " + "a" * 44)
def test_everything_that_the_maintained_rules_find_is_redacted(text: str) -> None:
    assert missed_by_us(text[:600]) == []


@pytest.mark.parametrize("number", range(len(secret_rules.MAINTAINED_RULES)))
def test_each_rewritten_rule_has_the_matches_of_the_maintained_one(number: int) -> None:
    ours, maintained = secret_rules.RULES[number], secret_rules.MAINTAINED_RULES[number]

    @given(FRAGMENTS_OR_ANY)
    @settings(max_examples=60 if ours != maintained else 1)
    def check(text: str) -> None:
        found = [match.span() for match in ours.finditer(text) if match.lastgroup != "skipped"]
        assert found == [match.span() for match in maintained.finditer(text[:400])] or len(text) > 400

    check()


@given(FRAGMENTS_OR_ANY)
@settings(max_examples=300)
@example("publickeytoken='a'")
def test_first_match_of_each_rule_for_names_is_that_of_the_maintained_one(text: str) -> None:
    """The maintained rules report no other match of a line, and none at all in a line with certain words."""
    line = text[:400].replace("\n", " ")
    first: dict[int, tuple[int, int]] = {}
    numbers = {rule: number for number, rule in enumerate(secret_rules._NAMED)}
    for rule, group, match in secret_rules.find_named(line):
        first.setdefault(numbers[rule], match.span(group))
    searched = {
        number: (rule.search(line), group) for number, (rule, group) in enumerate(secret_rules.MAINTAINED_NAMED.items())
    }
    assert first == {number: match.span(group) for number, (match, group) in searched.items() if match}


def test_everything_that_the_maintained_rules_find_in_documents_and_tests_is_found() -> None:
    found = 0
    for path in (*_REPOSITORY.glob("docs/*.md"), *_REPOSITORY.glob("tests/redaction/test_*.py")):
        text = path.read_text(encoding="utf-8")[:40_000]
        assert missed_by_us(text) == [], path
        found += redact(text)[1]
    assert found > 20


def test_every_rule_that_is_known_to_be_slow_is_rewritten() -> None:
    """A new version of detect-secrets with other patterns needs another look at their running time."""
    ours = [rule.pattern for rule in secret_rules.RULES]
    rewritten = [rule.pattern for rule in secret_rules.MAINTAINED_RULES if rule.pattern not in ours]
    assert len(rewritten) == 7
    assert not set(secret_rules.MAINTAINED_NAMED) & set(secret_rules._NAMED)


NAMED_SECRETS: Final = {
    "unquoted": ("password=hunter2-horse-staple", "hunter2-horse-staple"),
    "quoted": ('"db_password": "x7Kq9ZbR2mT4vW8y"', "x7Kq9ZbR2mT4vW8y"),
    "spaced": ("secret   =   'correct horse battery'", "correct horse battery"),
    "long": (f"password={'Zx9' * 60}", "Zx9" * 60),
}
"""A name with its value, and the value."""


@pytest.mark.parametrize("filler", ["w ", "w"], ids=["words", "no spaces"])
@pytest.mark.parametrize("named", NAMED_SECRETS.values(), ids=list(NAMED_SECRETS))
def test_secret_is_found_wherever_a_long_line_is_cut(named: tuple[str, str], filler: str) -> None:
    text, value = named
    line = (filler * 1000)[:1000]
    missed = [
        offset for offset in range(300, 900) if value[-8:] in redact(f"{line[:offset]} {text} {line[offset:]}")[0]
    ]
    assert missed == []


def test_value_longer_than_what_the_rules_see_is_redacted_as_a_whole() -> None:
    assert redact(f"password={'Zx9' * 2000} and words") == (f"password={REDACTION_MARK} and words", 1)


ATTACKS: Final = {
    "spaces after a name": ("key", " "),
    "names and spaces": ("", "key   "),
    "artifactory without a token": ("", "artif"),
    "artifactory with almost a token": ("", 'artif "APA'),
    "aws names": ("", "/pwdaws"),
    "aws names and keys": ("", "awskeykey/a/"),
    "azure key of one character too many": ("", "a" * 89),
    "basic auth without an end": ("", "://a:"),
    "cloudant addresses": ("", "https://a:" + "0" * 64 + "@a."),
    "discord tokens": ("", "M"),
    "json web tokens without a dot": ("", "eyJ"),
    "mailchimp keys": ("", "0123456789abcdef" * 2 + "-u"),
    "npm tokens": ("", "_authToken"),
    "private keys": ("BEGIN PRIVATE KEY", "-"),
    "private keys without an end": ("BEGIN PRIVATE KEY", "abc\n"),
    "putty keys": ("", "PuTTY-User-Key-File-2:"),
    "slack tokens": ("xoxb-", "1-"),
    "slack addresses": ("", "https://hooks.slack.com/services/T"),
    "keys of one character too many": ("", "sk-" + "a" * 65 + " "),
    "pypi tokens": ("", "pypi-"),
    "a name with many keys": ("", "recaptcha_key"),
    "names with many keys": ("", "recaptcha_`key`"),
    "names": ("", "token"),
    "names and backquotes": ("", "pwd`"),
    "names, backquotes and semicolons": ("", "pwd` ,`;"),
    "names, colons and backquotes": ("", "pwd:`"),
    "backquotes": ("", "`_"),
    "backquotes and comparisons": ("", "`_==recaptcha_"),
    "quotes": ("", "'\""),
    "assignments": ("", "secret="),
    "data": ("", 'data.put("recaptcha_key'),
    "equals signs": ("x", "="),
    "short lines": ("", "\n"),
    "values that continue": ("", "pwd=" + "x" * 396),
    "a value that continues": ("pwd=", "x"),
    "strings of high entropy": ("", '"x7Kq9ZbR2mT4vW8y"'),
    "names and quotes": ("", 'pwd="'),
    "names and opening quotes": ("", 'pwd="'),
    "names and escaped quotes": ("", r"pwd\":\""),
    "names and quotes of growing depth": ("", "".join(f'pwd={chr(92) * depth}"' for depth in range(1, 60))),
    "backslashes": ("pwd", "\\"),
    "backslashes and quotes": ("", "\\" * 40 + '"'),
    "escapes of addresses": ("", "%25"),
    "escapes of letters": ("", "%C3%A4"),
    "escapes of HTML": ("", "&amp;"),
    "names that look like headers": ("", "x-"),
    "headers": ("", "authorization: "),
    "headers that authenticate": ("", "authorization: bearer 1"),
    "cookies": ("", "cookie: a="),
    "a long cookie": ("cookie: ", "a=b;"),
    "options": ("", "--token "),
    "elements": ("", "<token"),
    "an element": ("<", "token"),
    "key lines": ("BEGIN PRIVATE KEY-----\n", "a" * 64 + "\n"),
    "key lines of no key": ("", "a" * 15 + " "),
    "beginnings of keys": ("", "BEGIN "),
    "bearers": ("", "bearer "),
    "logins": ("", "login a "),
    "addresses": ("", "a://"),
    "addresses with passwords": ("", "a://b:c@d "),
    "an address with many signs": ("a://b:", "@:"),
    "schemes": ("", "a+"),
    "clients": ("", "curl "),
    "options of clients": ("curl ", "-u a:"),
    "options without a value": ("curl ", "-u "),
    "users of clients": ("curl -u ", "a"),
    "digests": ("", "authorization: digest "),
    "parameters": ("authorization: digest ", "a=b,"),
    "quoted parameters": ("authorization: digest ", 'a="b",'),
    "parameters and backslashes": ('authorization: digest a="', "\\a"),
    "describing tails": ("", "tokenname"),
    "a describing tail": ("token", "name"),
}
"""A beginning, and what is repeated behind it: texts that take long, some of them found by hill climbing."""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_time_grows_in_proportion_to_the_text(attack: tuple[str, str]) -> None:
    begin, repeated = attack

    def shape(size: int) -> str:
        return (begin + repeated * (size // len(repeated) + 1))[:size]

    growth = measure_growth(redact, shape, pools=(), floor=FLOOR_OF_CALLS)
    growth.assert_bounded()
    growth.assert_within(growth.sizes[-1] * 70e-6)  # ten times what was measured


@pytest.mark.parametrize("rule", [*secret_rules.RULES, *secret_rules._NAMED], ids=lambda rule: rule.pattern[-40:])
def test_no_rule_is_slow_on_any_attack(rule: re.Pattern[str]) -> None:
    """Rules for names see at most 401 characters, the others a whole text."""
    size = 400 if rule in secret_rules._NAMED else 8000
    for begin, repeated in ATTACKS.values():
        text = (begin + repeated * size)[:size]
        assert_costs_at_most(size * 200e-6, lambda text=text: list(rule.finditer(text)))  # type: ignore[misc]


def test_many_known_values_cost_no_more_than_one() -> None:
    text = "some words about a deployment " * 1000
    growth = measure_growth(
        lambda values: list(secret_spans.find_known_values(text, values)),
        lambda count: [f"correct-horse-{number}" for number in range(count)],
        sizes=(1, 100, 10_000),
        pools=(),
        floor=0.02,
    )
    growth.assert_bounded(max_slope=0.25)


def test_text_is_searched_for_secrets_in_few_places_whose_cost_is_known() -> None:
    """A new place needs a limit of its text, and belongs outside of transactions: see docs/security.md."""
    searching = {"redact", "redact_part", "build_injection"}
    found = set()
    for path in (_REPOSITORY / "sessions_app").rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        if any(alias.name in searching for node in imports for alias in node.names):
            found.add(str(path.relative_to(_REPOSITORY / "sessions_app")))
    assert found == {
        "attention/rules/quotations.py",
        "recovery/rules/history.py",
        "rendering/operations/histories.py",
        "rendering/operations/__init__.py",
        "remotes/pushing.py",  # what a server answered to a push: at most 4000 characters
        "search/rules/documents.py",  # the beginning of a message, before it is indexed
        "agents/services/mcp_servers.py",
    }
