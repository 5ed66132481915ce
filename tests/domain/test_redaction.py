"""Redaction of secrets in text that another agent is given."""

from __future__ import annotations

import pytest

from sessions_app.domain.sanitizing import REDACTION_MARK, redact

SECRETS = [
    ("export AWS_ACCESS_KEY_ID={}", "AKIAIOSFODNN7EXAMPLE"),
    ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("git clone with {} now", "ghp_1234567890abcdefghij1234567890abcdef"),
    ("slack: {}", "xoxb-123456789012-123456789012-abcdefghijklmnopqrstuvwx"),
    ("https://ada:{}@example.com/x.git", "hunter2pass"),
    (
        "Authorization: Bearer {}",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    ),
    ("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA7bqabcdefghijklmnop"),
    ('password = "{}"', "correct-horse-battery"),
    ("DB_PASSWORD={}", "s3cr3t-hunter-22"),
    ('{{"api_key": "{}"}}', "abcdef-123456-xyz"),
    ("OPENAI_API_KEY={}", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"),
    ("ANTHROPIC_API_KEY={}", "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789-abcdefghij"),
    ("stripe {}", "sk_live_abcdefghijklmnopqrstuvwx"),
    ("SG {}", "SG.abcdefghijklmnopqrstuv.abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"),
    ("use {} for it", "glpat-" + "aB3dE5fG7hJ9kL1mN3pQ"),
    ("use {} for it", "sk-proj-" + "a1b2c3d4e5-f6g7_h8i9j0k1l2m3n4o5"),
    ("use {} for it", "sk-ant-" + "api03-a1b2c3d4e5f6g7h8i9j0k1l2"),
    ("use {} for it", "sk-" + "0123456789abcdefghijABCDEFGHIJ0123456789"),
    ("use {} for it", "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"),
    ("use {} for it", "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"),
    ("use {} for it", "pypi-" + "AgEIcHlwaS5vcmcCJ" + "0123456789abcdef" * 4),
]


@pytest.mark.parametrize(("frame", "secret"), SECRETS, ids=[secret[:8] for _, secret in SECRETS])
def test_secret_is_redacted(frame: str, secret: str) -> None:
    text, count = redact(f"first line\n{frame.format(secret)}\nlast line")
    assert secret not in text
    assert REDACTION_MARK in text
    assert count >= 1
    assert text.startswith("first line\n")
    assert text.endswith("\nlast line")


@pytest.mark.parametrize(
    "text",
    [
        "Fix the parser, please. The password field must be masked.",
        'commit "3f5a2b1c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a"',
        '{"path": "/srv/projects/kandev/sessions_app/domain/history"}',
        "def token(self):\n    return self.secret\n",
        "127.0.0.1:8000 answered 200",
        "",
        "\n\n",
    ],
)
def test_plain_text_is_unchanged(text: str) -> None:
    assert redact(text) == (text, 0)


def test_known_secret_is_redacted_everywhere_unless_it_is_a_word() -> None:
    assert redact("say abcdefgh-ijkl twice: abcdefgh-ijkl", ["abcdefgh-ijkl", "say"]) == (
        f"say {REDACTION_MARK} twice: {REDACTION_MARK}",
        2,
    )


def test_overlapping_known_secrets_are_redacted_with_all_their_characters() -> None:
    known = ["abcdefgh-ijkl", "ijkl-mnopqrs", "abcdefgh"]
    assert redact("x abcdefgh-ijkl-mnopqrs y abcdefgh.", known) == (f"x {REDACTION_MARK} y {REDACTION_MARK}.", 2)
    assert redact("ijkl-mnopqrs", known) == (REDACTION_MARK, 1)
    assert redact("ijkl-mnopqr", known) == ("ijkl-mnopqr", 0)
