"""Text and figures of agents, as users see them."""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

import pytest

from sessions_app.redaction.visible_text import escape_invisible, make_visible, refer_to_invisible
from sessions_app.stream.rules.usage import parse_usage, usage_lines

ARABIC_SIGNS: Final = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Format characters that have a shape."""
PLAIN_TEXT: Final = Path(__file__).parents[2] / "frontend/static/kandev/plain_text.js"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("Zoë 日本 👩‍💻 مرحبا", "Zoë 日本 👩‍💻 مرحبا"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;t\x07", "␛[2J␛]0;t␇"),
        ("\0\x08\x7f\x9b", "␀␈␡⟦9B⟧"),
        ("a\u202eb\u202cc\u2066d\u2069", "a⟦RLO⟧b⟦PDF⟧c⟦LRI⟧d⟦PDI⟧"),
        ("zero\u200bwidth\ufeff", "zero⟦ZWSP⟧width⟦BOM⟧"),
        ("hidden \U000e0041", "hidden ⟦E0041⟧"),
        ("soft\u00adhyphen\u2028line", "soft⟦SHY⟧hyphen⟦LS⟧line"),
        ("filler\u3164 \ufffbend \ufe00a", "filler⟦3164⟧ ⟦FFFB⟧end ⟦FE00⟧a"),
        ("con\u200cfig \u200d/etc a\ufe0f", "con⟦ZWNJ⟧fig ⟦ZWJ⟧/etc a⟦VS16⟧"),
        ("می‌خواهم क्‍ष ❤️ 1️⃣ 🏳️‍🌈", "می‌خواهم क्‍ष ❤️ 1️⃣ 🏳️‍🌈"),
        ("a" + "\u0301\u0323" * 50 + "b", "a" + "\u0301\u0323" * 15 + "⟦+70 marks⟧b"),
        ("─" * 80 + "\u0301" * 31, "─" * 80 + "\u0301" * 30 + "⟦+1 marks⟧"),
        ("─" * 80 + " 🙂" * 40, "─" * 80 + " 🙂" * 40),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert make_visible(text) == shown
    assert make_visible(shown) == shown
    assert json.loads(escape_invisible(json.dumps(text, ensure_ascii=False))) == text


def test_form_sends_any_number_of_marks_back_unchanged() -> None:
    text = "a" + "\u0301" * 100
    html = refer_to_invisible(escape(text))
    assert unescape(make_visible(html)) == text


def test_no_invisible_character_survives() -> None:
    invisible = [chr(code) for code in range(0x110000) if _is_invisible(chr(code))]
    survivors = [each for each in invisible if each in make_visible(f"a{each}b")]
    assert survivors == []


def _is_invisible(character: str) -> bool:
    if character in "\t\n" or character in ARABIC_SIGNS or 0xD800 <= ord(character) <= 0xDFFF:
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")


def test_browser_shows_the_same_as_the_server() -> None:
    texts = [f"a{chr(code)}b" for code in range(0x110000) if _is_invisible(chr(code))]
    texts += ["a" + "\u0301\u0e34" * 50 + "b\u200d", "─" * 80 + "\u20dd" * 31 + "\ufe0f"]
    texts += ["می‌خواهم ❤️ 1️⃣ 🏳️‍🌈 a\u200db a\ufe0f\ufe00 \u3164", "\x1b[31mred\x1b[0m \r\n\r"]
    script = (
        f"import {{ visible }} from {json.dumps(PLAIN_TEXT.as_uri())}; import {{ readFileSync }} from 'node:fs';"
        "console.log(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map(visible)))"
    )
    node = shutil.which("node") or pytest.skip("node is not installed")
    completed = subprocess.run(
        [node, "--input-type=module", "--eval", script],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(completed.stdout) == [make_visible(text) for text in texts]


@pytest.mark.parametrize(
    ("values", "figures", "words"),
    [
        (
            {"inputTokens": 1200, "outputTokens": 34, "totalTokens": 1234},
            {"input_tokens": 1200, "output_tokens": 34, "total_tokens": 1234},
            [("Tokens in", "1,200"), ("Tokens out", "34")],
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 4, "total_cost_usd": 0.0123},
            {"input_tokens": 5, "cached_tokens": 4, "cost": 0.0123, "currency": "USD"},
            [("Tokens in", "5"), ("Tokens read from a cache", "4"), ("Cost", "0.0123 USD")],
        ),
        ({"prompt_tokens": 3, "completion_tokens": 2}, {"input_tokens": 3, "output_tokens": 2}, None),
        ({"total_tokens": 9}, {"total_tokens": 9}, [("Tokens", "9")]),
        (
            {"used": 50, "size": 200, "cost": {"amount": 2, "currency": "EUR"}},
            {"context_used": 50, "context_size": 200, "cost": 2.0, "currency": "EUR"},
            [("Context in use", "25% of 200 tokens"), ("Cost", "2.00 EUR")],
        ),
        ({"used": "many", "input_tokens": -1, "output_tokens": True, "size": 10**40, "cost": 3}, {}, []),
        ({}, {}, []),
    ],
)
def test_usage_of_every_agent_is_normalised(
    values: dict[str, Any], figures: dict[str, Any], words: list[tuple[str, str]] | None
) -> None:
    assert parse_usage(values) == figures
    if words is not None:
        assert usage_lines(figures) == words
