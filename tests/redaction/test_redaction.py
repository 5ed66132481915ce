"""Redaction of secrets in text that another agent is given."""

from __future__ import annotations

import base64
import html
import json
import textwrap
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.redaction.encoded_text import decoded
from sessions_app.redaction.redactor import CONTEXT, redact, redact_part, without_cut_word
from sessions_app.redaction.secret_spans import MIN_SECRET_LENGTH, REDACTION_MARK

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


KEY_LINES: Final = [f"MIIEpAIBAAKCAQEA7bq{number:02d}ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijkl" for number in range(12)]
PRIVATE_KEY: Final = "\n".join(
    ["-----BEGIN ENCRYPTED PRIVATE KEY-----", *KEY_LINES, "-----END ENCRYPTED PRIVATE KEY-----"]
)
INNER: Final = json.dumps({"password": 'hunter2"horse', "token": "staple-battery"})
HIDDEN: Final = {
    "several of a rule": (
        '{"password": "hunter2", "token": "horse", "secret": "staple", "db_password": "battery"}',
        ("hunter2", "horse", "staple", "battery"),
    ),
    "several in comparisons": (
        "if 'hunter2' == password or 'horse-1' == token: 'staple' != secret",
        ("hunter2", "horse-1", "staple"),
    ),
    "several before semicolons": ('password "hunter2"; token "horse";', ("hunter2", "horse")),
    "several unquoted": ("PASSWORD=hunter2 'x' TOKEN=horse \"y\" PWD=staple", ("hunter2", "horse", "staple")),
    "several of an address": ("a?token=hunter2&password='x'&secret=horse", ("hunter2", "horse")),
    "several with recaptcha": ("recaptcha_key='hunter2' recaptcha_key='horse'", ("hunter2", "horse")),
    "several random ones": (
        'a("x7Kq9ZbR2mT4vW8yA1cD5eF"b"q8Lw3XnV6jH0sG2pU9tY4zB")',
        ("x7Kq9ZbR2mT4vW8yA1cD5eF", "q8Lw3XnV6jH0sG2pU9tY4zB"),
    ),
    "JSON in JSON": (json.dumps(INNER), ("hunter2", "horse", "staple")),
    "JSON in JSON in JSON": (json.dumps({"a": json.dumps(INNER)}), ("hunter2", "horse", "staple")),
    "quotes as escapes": (r"{\u0022password\u0022: \u0022hunter2\u0022}", ("hunter2",)),
    "HTML": ("{&quot;password&quot;: &quot;hunter2&quot;, &#x27;token&#x27;: &#39;horse&#39;}", ("hunter2", "horse")),
    "an address": ("%7B%22password%22%3A%22hunter2%22%2C%2522token%2522%253A%2522horse%2522", ("hunter2", "horse")),
    "escaped line ends": (r'"DB_PASSWORD=hunter2\nA=\"b\"\nTOKEN=horse\n"', ("hunter2", "horse")),
    "a quote in quotes": (r"""password = "hunter2\"horse" token: 'it"s-staple' """, ("hunter2", "horse", "staple")),
    "a quote without quotes": ("PASSWORD=hunter2's-horse\"staple next", ("hunter2", "horse", "staple")),
    "a long value": (f'"password": "{"hunter2 " * 200}horse"', ("hunter2", "horse")),
    "an open quote": ('"password": "hunter2 horse', ("hunter2", "horse")),
    "the word example before": ("An example: password='hunter2', token='horse'", ("hunter2", "horse")),
    "the word example behind": ("password='hunter2'  # for example", ("hunter2",)),
    "an address of examples": ("PASSWORD=hunter2 curl https://example.com", ("hunter2",)),
    "the word example in a value": ("password='hunter2-example'", ("hunter2",)),
    "a harmless name beside": ("secretName: 'x', password: 'hunter2', publicKeyToken='y'", ("hunter2",)),
    "a harmless name in another one": ("secretname_password='hunter2'", ("hunter2",)),
    "bearer": ("Authorization: Bearer hunter2", ("hunter2",)),
    "basic": ("curl -H 'Authorization: Basic YWRhOmh1bnRlcjI='", ("YWRhOmh1bnRlcjI",)),
    "another scheme": ("authorization: ApiKey-V2 hunter2horse", ("hunter2horse",)),
    "no scheme": ("authorization: hunter2horse", ("hunter2horse",)),
    "a proxy": ("Proxy-Authorization: basic aHVudGVyMg==\nHost: a", ("aHVudGVyMg",)),
    "header of a program": ("{'Authorization': f'token hunter2'}", ("hunter2",)),
    "header as JSON": (r"{\"Authorization\":\"Bearer hunter2\"}", ("hunter2",)),
    "header as a pair": ('["authorization", "Bearer hunter2"]', ("hunter2",)),
    "digest": ('Authorization: Digest username="ada", response="hunter2"', ("hunter2",)),
    "digest in a command": (
        """curl -H 'Authorization: Digest username="ada", response="hunter2", opaque=horse' x""",
        ("hunter2", "horse"),
    ),
    "digest in JSON": (
        json.dumps({"authorization": 'Digest username="ada", nonce="a\\b", response="hunter2"', "a": 1}),
        ("hunter2",),
    ),
    "digest with an open quote": ('Authorization: Digest nonce="a", response="hunter2', ("hunter2",)),
    "a signature of AWS": (
        "authorization: AWS4-HMAC-SHA256 Credential=hunter2/a, SignedHeaders=host;date, Signature=horse",
        ("hunter2", "horse"),
    ),
    "OAuth": ("Authorization: OAuth hunterhorse", ("hunterhorse",)),
    "curl -u": ("curl -u ada:hunter2 https://example.com", ("hunter2",)),
    "curl -u in one word": ("curl -sS -uada:hunter2 https://example.com", ("hunter2",)),
    "curl --user": ("curl \\\n  --user='ada:hunter:2' https://example.com", ("hunter:2",)),
    "curl of a proxy": ('curl --proxy-user "ada:hunter2" x', ("hunter2",)),
    "curl in JSON": (json.dumps({"command": ["curl", "-u", "ada:hunter2"]}), ("hunter2",)),
    "curl in JSON in JSON": (json.dumps({"command": json.dumps(["curl", "-u", "ada:hunter2"])}), ("hunter2",)),
    "httpie": ("http -a ada:hunter2 GET example.com", ("hunter2",)),
    "an address without a user": ("REDIS_URL=redis://:hunter2@cache:6379/0", ("hunter2",)),
    "an address with signs in the password": (
        "postgresql+psycopg://ada:h@nter2!$(horse)@db/x",
        ("h@nter2", "horse"),
    ),
    "an address of several hosts": ("mongodb+srv://ada:hunter2#1@a:1,b:2/x", ("hunter2#1",)),
    "an address in JSON": (json.dumps({"DATABASE_URL": "mysql://ada:hunter2,1@db"}), ("hunter2,1",)),
    "an address in an address": ("?url=amqp%3A%2F%2Fada%3Ahunter2%2Cx%40host%2F", ("hunter2",)),
    "bearer alone": ("sent Bearer a1b2c3d4e5f6g7h8i9 to it", ("a1b2c3d4e5f6g7h8i9",)),
    "X-Api-Key": ("X-Api-Key: hunter2", ("hunter2",)),
    "X-Auth-Token": ('"x-auth-token": "hunter2"', ("hunter2",)),
    "PRIVATE-TOKEN": ("curl --header 'PRIVATE-TOKEN: hunter2'", ("hunter2",)),
    "cookies": ("Cookie: sid=hunter2; csrf=horse", ("hunter2", "horse")),
    "a cookie that is set": ("set-cookie: sid=hunter2; Path=/; HttpOnly", ("hunter2",)),
    "YAML": ("db:\n  password: hunter2\n  user: ada", ("hunter2",)),
    "an option": ("mysql --user ada --password hunter2 --token 'horse22' x", ("hunter2", "horse22")),
    "a name and a value": ('{"name": "DB_PASSWORD", "value": "hunter2"}', ("hunter2",)),
    "a typed variable": ('password: str | None = "hunter2"', ("hunter2",)),
    "XML": ("<server><password>hunter2</password></server>", ("hunter2",)),
    "netrc": ("machine a login ada password hunter2", ("hunter2",)),
    "a hyphen": ('client-secret: "hunter2", --secret-key=horse', ("hunter2", "horse")),
    "a private key": (PRIVATE_KEY, KEY_LINES),
    "a private key in JSON": (json.dumps({"key": PRIVATE_KEY}), KEY_LINES),
    "an indented private key": (textwrap.indent(PRIVATE_KEY, "    "), KEY_LINES),
    "a private key with other line ends": (PRIVATE_KEY.replace("\n", "\r\n"), KEY_LINES),
    "a private key with numbers of lines": (
        "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(PRIVATE_KEY.splitlines(), 1)),
        KEY_LINES,
    ),
    "the end of a private key": (PRIVATE_KEY[60:], KEY_LINES[1:]),
    "a key of a new length": (f"sk-proj-{'a1' * 200} ghp_{'b2' * 40}", ("a1a1", "b2b2")),
    "GitHub": (f"github_pat_{'11ABCDEFG0' * 8}", ("11ABCDEFG0",)),
}
"""Texts, and what is secret in them."""


@pytest.mark.parametrize(("text", "secrets"), HIDDEN.values(), ids=list(HIDDEN))
def test_every_secret_of_a_text_is_redacted(text: str, secrets: Sequence[str]) -> None:
    clean, count = redact(f"first line\n{text}\nlast line")
    assert [secret for secret in secrets if secret in clean] == []
    assert count >= 1
    assert clean.startswith("first line\n")
    assert clean.endswith("\nlast line")


@pytest.mark.parametrize(
    "text",
    [
        "password = 'example'",
        '["token", "password", "secret", "authorization", "cookie"]',
        '{"token": "your-example-token", "password": "$PASSWORD", "secret": "${{ secrets.TOKEN }}"}',
        "Authorization: required for every address",
        "The Bearer authentication of the proxy, and cookies: none.",
        "x-ratelimit-remaining-tokens: 149984",
        "input_tokens: 123456",
        "secretName: db-credentials-v2\ntokenizer: bert-base-2\ntoken_ttl: 3600s\npassword_policy: level-2",
        "signing_key: ed25519\ntoken: v1beta1\nsecret: sha256\nencryption_key: aes-256-gcm\ntoken: 2024-05-01T10:00Z",
        "tokenType: jwt-rs256\ntoken_endpoint: auth2\nsecretRef: database2\npasswordless: login2",
        "docker run -u 1000:1000 -a stdin:1 image; git push -u origin main:main; sort -u a:b2",
        "curl https://example.com:8080/a?b=c@d http://localhost:3000?user=ada@example.com ssh://git@example.com:22/x.git",
        "https://$USER:$PASSWORD@example.com redis://:${REDIS_PASSWORD}@cache curl -u $USER:$PASSWORD x",
        "secretName: 'server-certificate'",
        "token: str\npassword: Optional[str]",
        "api_key: process.env.API_KEY_2",
        "use --token to pass one, or --token-file /run/secrets/token",
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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            'curl -H \'Authorization: Digest username="a", response="b"\' https://x && rm -rf /',
            "' https://x && rm -rf /",
        ),
        ('{"authorization": "Digest a=\\"b\\", c=d", "command": "rm -rf /"}', '", "command": "rm -rf /"}'),
        ("Authorization: OAuth abcdef; rm -rf /", "; rm -rf /"),
        ("curl -u ada:hunter2 https://x && rm -rf /", " https://x && rm -rf /"),
        ("psql postgres://ada:hunter2!@db/x && rm -rf /", "@db/x && rm -rf /"),
    ],
)
def test_what_follows_a_secret_stays(text: str, kept: str) -> None:
    clean, count = redact(text)
    assert count >= 1
    assert clean.endswith(kept)


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


KNOWN: Final = (
    'it\'s "hard" to/say+ä&b%41\\c',
    "correct horse battery",
    "-----BEGIN KEY-----\nhunter2\n-----END KEY-----\n",
)
ENCODINGS: Final = {
    "JSON": json.dumps,
    "JSON of letters": lambda value: json.dumps(value, ensure_ascii=False).replace("/", r"\/"),
    "JSON in JSON": lambda value: json.dumps({"a": json.dumps({"b": json.dumps(value)})}),
    "an address": quote,
    "a part of an address": lambda value: quote(value, safe=""),
    "an encoded address": lambda value: quote(quote(value, safe="")),
    "a form": quote_plus,
    "HTML": html.escape,
    "Base64": lambda value: base64.b64encode(value.encode()).decode(),
    "Base64 behind one byte": lambda value: base64.b64encode(f":{value}x".encode()).decode(),
    "Base64 behind two bytes": lambda value: base64.b64encode(f"a:{value}xy".encode()).decode(),
    "Base64 for addresses": lambda value: base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "Base64 in lines": lambda value: "\n".join(textwrap.wrap(base64.b64encode(f"ada:{value}".encode()).decode(), 10)),
    "Base64 in an address": lambda value: quote(base64.b64encode(value.encode()), safe=""),
    "Base64 in JSON": lambda value: json.dumps(base64.encodebytes(value.encode()).decode()),
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=list(ENCODINGS))
@pytest.mark.parametrize("value", KNOWN)
def test_known_secret_is_redacted_however_it_is_written(value: str, encode: Callable[[str], str]) -> None:
    written = encode(value)
    clean, count = redact(f"before {written} behind", [value])
    assert count >= 1
    assert clean.startswith("before ")
    assert clean.endswith(" behind")
    assert len(clean.replace(REDACTION_MARK, "")) <= len("before  behind") + 45, clean


@given(st.text(min_size=8, max_size=40), st.binary(max_size=20), st.binary(max_size=20))
def test_any_known_secret_is_found_in_base64(value: str, before: bytes, behind: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + behind).decode()
    assert redact(encoded, [value])[1] == 1


@given(st.text(min_size=8, max_size=40).filter(lambda value: len(decoded(value).text) >= MIN_SECRET_LENGTH))
def test_any_known_secret_is_found_in_json(value: str) -> None:
    clean, count = redact(json.dumps({"a": json.dumps([value])}), [value])
    assert count >= 1, clean


CUT_SECRETS: Final = {
    "a key": "ghp_1234567890abcdefghij1234567890abcdef",
    "a quoted value": 'password = "hunter2hunter2 hunter2hunter2hunter2"',
    "a header": "Authorization: Bearer 1234567890abcdefghij1234567890abcdef",
    "a known value": "open hunter2 sesame hunter2 open",
}


@pytest.mark.parametrize("secret", CUT_SECRETS.values(), ids=list(CUT_SECRETS))
def test_no_part_of_a_secret_survives_beside_a_cut(secret: str) -> None:
    text = f"{'words ' * 300}{secret} {'words ' * 300}"
    known = [CUT_SECRETS["a known value"]]
    begin = text.index(secret)
    for cut in range(begin, begin + len(secret) + 1):
        parts = (
            redact_part(text, 0, cut, known)[0],
            redact_part(text, cut, len(text), known)[0],
            redact_part(text[:cut], 0, cut, known, cut_after=True)[0],
        )
        for part in parts:
            assert "1234567890" not in part
            assert "hunter2" not in part
            assert part.count("words") >= 299


def test_end_of_a_key_survives_no_cut() -> None:
    key = CUT_SECRETS["a key"]
    for cut in range(len(key)):
        assert redact_part(f"{key[cut:]} and words", 0, 100, cut_before=True) == (" and words", 0)
        assert without_cut_word(f"words and {key[:cut]}") == "words and "


def test_part_of_a_text_that_is_not_cut_is_the_whole() -> None:
    text = "password = 'hunter2' and words"
    assert redact_part(text, 0, len(text)) == redact(text) == (f"password = '{REDACTION_MARK}' and words", 1)
    assert redact_part(text, -5, 500) == redact(text)


def test_long_word_beside_a_cut_is_shown_as_far_as_it_cannot_be_half_of_a_key() -> None:
    text = "x" * (2 * CONTEXT)
    assert redact_part(text, 0, 100) == ("x" * 100, 0)
    assert redact_part(text, len(text) - 100, len(text)) == ("x" * 100, 0)
