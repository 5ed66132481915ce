"""Patterns of secrets: the rules of detect-secrets, and key formats that it does not know.

Only its patterns are used. Its verification would send a suspected secret to the service that it belongs to. Two of
its rules are left out because they match too much: public IP addresses, and hexadecimal strings of high entropy,
which include every commit id.

The time that some of its patterns take grows with the cube of a text's length: ``key`` and 8,000 spaces would keep a
processor busy for most of an hour. These patterns are rewritten: where one could give back characters that nothing
after them can match, it no longer tries to (``*+`` instead of ``*``), and where two repetitions can share the same
characters in many ways, it tries one of them. What they match stays the same. ``tests/redaction/test_secret_rules.py``
compares them with the maintained patterns, ``MAINTAINED_RULES`` and ``MAINTAINED_NAMED`` are for
these tests.

They find more than the package does. It tells of a line that it contains a secret; here every secret has to go. So each
rule for names finds all of its matches, not only the first one of a line, and no word disables it: only a value that
is itself an example is kept. The rules for headers and the rules of ``assigned_values`` find what
the package does not look for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from detect_secrets.plugins.artifactory import ArtifactoryDetector
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.basic_auth import BasicAuthDetector
from detect_secrets.plugins.cloudant import CloudantDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.high_entropy_strings import Base64HighEntropyString
from detect_secrets.plugins.ibm_cloud_iam import IbmCloudIamDetector
from detect_secrets.plugins.ibm_cos_hmac import IbmCosHmacDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.keyword import REGEX_BY_FILETYPE
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.softlayer import SoftlayerDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector
from detect_secrets.util.filetype import FileType

from sessions_app.redaction.assigned_values import is_example, is_harmless_name

_DETECTORS: Final[tuple[type[RegexBasedDetector], ...]] = (
    *(ArtifactoryDetector, AWSKeyDetector, AzureStorageKeyDetector, BasicAuthDetector, CloudantDetector),
    *(DiscordBotTokenDetector, GitHubTokenDetector, IbmCloudIamDetector, IbmCosHmacDetector, JwtTokenDetector),
    *(MailchimpDetector, NpmDetector, PrivateKeyDetector, SendGridDetector, SlackDetector, SoftlayerDetector),
    *(SquareOAuthDetector, StripeDetector, TwilioKeyDetector),
)
_KEYS: Final = (
    r"\bgl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|imt)-[\w-]{20,}+",  # GitLab
    r"\bsk-(?:proj|ant|svcacct|admin|or)-[\w-]{20,}+",  # OpenAI, Anthropic, OpenRouter
    r"\bsk-[A-Za-z0-9]{32,}+",
    r"\bgithub_pat_\w{20,}+",
    r"\bAIza[\w-]{35}",  # Google
    r"\bya29\.[\w-]{20,}+",
    r"\bhf_[A-Za-z0-9]{30,}+",  # Hugging Face
    r"\bgsk_[A-Za-z0-9]{30,}+",  # Groq
    r"\bpypi-[\w-]{50,}+",
    r"\bxapp-[\w-]{20,}+",  # Slack
    r"\bwhsec_[\w+/=-]{20,}+",  # webhooks of Stripe, and ours
    r"\bkdv_[\w-]{20,}+",  # ours
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}+",
)
"""Keys recognizable by a vendor's prefix."""
_KEY_LINES: Final = (
    r"(?:[^A-Za-z0-9+/=]{0,16}+(?:[0-9]{1,6}[^A-Za-z0-9+/=]{1,4}+)?[A-Za-z0-9+/=]{16,}+)++"
    r"(?:[^A-Za-z0-9+/=]{0,16}+[A-Za-z0-9+/=]++(?=[^A-Za-z0-9]{0,16}-----))?+"
)
"""Lines of a private key, also where they are indented, numbered or escaped."""
_KEY_HEADERS: Final = r"(?:\s*+(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash):[^\r\n\\]*+)*+"
_PRIVATE_KEYS: Final = (
    rf"BEGIN[A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-*+{_KEY_HEADERS}(?P<secret>{_KEY_LINES})",
    rf"Private-Lines:[ ]*+[0-9]++(?P<secret>{_KEY_LINES})",  # PuTTY
    # A key whose beginning has been cut off.
    rf"(?<![A-Za-z0-9+/=])(?P<secret>{_KEY_LINES})(?:[^A-Za-z0-9]{{0,16}}END[\dA-Z ]{{0,40}}PRIVATE KEY|(?P<skipped>))",
)
_AFTER_HEADER: Final = r"(?:\\*+[\"'`]\s*+[:=,]|\s*+[:=])\s*+(?:[frbu]{0,2}\\*+[\"'`])?+"
"""A colon, also that of a JSON object, an assignment, or the comma of a pair; and an opening quote."""
_CHARACTER: Final = r"[^\s\\\"'`,;<>{}()$\[\]]"
_AUTHENTICATING: Final = (
    r"\b(?:x-[\w-]{0,40}?(?:key|token|auth|secret|password)|(?:api|private|job|deploy|auth|access)-?(?:key|token))"
    r"[\w-]{0,20}+"
)
_SCHEME: Final = r"(?:bearer|basic|token|apikey|bot|negotiate|ntlm)\s++"
_SCHEME_OF_PARTS: Final = r"(?:digest|aws4-hmac-sha256|hawk|oauth|signature)\s++"
_UNKNOWN_SCHEME: Final = rf"(?:[a-z][\w-]*+[ ]++)?+(?={_CHARACTER}{{0,200}}?[0-9])"
_COOKIES: Final = r"(?:[^\s=;,\"'`\\]++=[^\s;\"'`\\]*+(?:;[ ]*+)?+)++"
_QUOTED_PARAMETER: Final = r"\\*+\"(?:[^\"\\\r\n]|\\++(?![\"\\]))*+(?:\\*+\")?+"
_PARAMETERS: Final = rf"(?:[\w-]++[ \t]*+=[ \t]*+(?:{_QUOTED_PARAMETER}|[^\s,\"'`\\]++)(?:[ \t]*+,[ \t]*+)?+)++"
"""``name="value", name=value``, also where the quotes are escaped; the last quote may be missing."""
_HEADERS: Final = (
    # The value of one of these has several parts; what follows them belongs to the command or the text around it.
    rf"(?i)authorization{_AFTER_HEADER}{_SCHEME_OF_PARTS}(?P<secret>{_PARAMETERS}|{_CHARACTER}{{4,}}+)",
    rf"(?i)authorization{_AFTER_HEADER}{_SCHEME}(?P<secret>{_CHARACTER}{{4,}}+)",
    rf"(?i)authorization{_AFTER_HEADER}(?P<secret>{_UNKNOWN_SCHEME}{_CHARACTER}{{8,}}+)",
    rf"(?i){_AUTHENTICATING}{_AFTER_HEADER}(?P<secret>(?![0-9]++\b){_CHARACTER}{{6,}}+)",
    rf"(?i)(?<!\w)(?:set-)?cookie2?{_AFTER_HEADER}(?P<secret>{_COOKIES})",
    r"(?i)\bbearer\s++(?P<secret>(?=[\w.~+/-]{0,60}?[0-9])[\w.~+/-]{16,}+=*+)",
)
"""Headers of HTTP that authenticate, and the same names and values in JSON and in programs."""
_UNKNOWN_TO_IT: Final = (*_KEYS, *_PRIVATE_KEYS, *_HEADERS)

_REWRITTEN_RULES: Final[Mapping[str, str]] = {
    # Spaces around an assignment: three repetitions could share one run of spaces.
    r"(?: *)(?:=|:|:=|=>| +|::)(?: *)": r"(?: *+(?:=|:|:=|=>|::) *+| ++)",
    # Up to two lines of a hundred characters each, which may also be one of two hundred.
    r"(?:.{0,100}\n?){0,2}": r"(?:.{0,100}\n.{0,100}\n?|.{0,200}\n?)",
    r"[a-zA-Z0-9]{8,200})(?:\s": r"[a-zA-Z0-9]{8,200}+)(?:\s",
    # If no dot follows the run of characters after the first ``eyJ``, none follows it after another ``eyJ`` in it.
    r"eyJ[A-Za-z0-9-_=]+\.[A-Za-z0-9-_=]+\.?[A-Za-z0-9-_.+/=]*": (
        r"eyJ[A-Za-z0-9-_=]++\.[A-Za-z0-9-_=]++\.?[A-Za-z0-9-_.+/=]*+|(?P<skipped>eyJ[A-Za-z0-9-_=]*+)"
    ),
}
_REWRITTEN_NAMED: Final[Mapping[str, str]] = {
    r"(api[_\.\-]?key|": r"(?P<name>api[_\.\-]?key|",
    # What follows a name cannot begin with a character of the name.
    r"\w*([]": r"\w*+([]",
    r"\w*[^\s]{0,50}?": r"\w*+[^\s]{0,50}?",
    r"\w*[\'" + r'"`]\s*,': r"\w*+[\'" + r'"`]\s*,',
    # Any ``key`` of a word leads to the end of that word, so it is enough to find one in each word.
    r"recaptcha_.*key": r"recaptcha_(?:.*[^\w\n]|)(?=\w*key)\w++",
    # Always true.
    r"(?=[^\v\'\"]*)": "",
}
_NAME_LAST: Final = r"nessus_?key)\w*"
"""The end of the rule in which the name follows the secret."""
_SKIPPED_QUOTE: Final = r"|(?P<skipped>`(?=[a-zA-Z0-9_!@#%^&])[^\v'" + r'"]*+)'
"""If no backquote ends a secret that begins at another one, none ends a secret that begins at the next one."""


def _rewrite(rule: re.Pattern[str], changes: Mapping[str, str]) -> re.Pattern[str]:
    pattern = rule.pattern
    for old, new in changes.items():
        pattern = pattern.replace(old, new)
    if pattern.endswith(_NAME_LAST):
        pattern += _SKIPPED_QUOTE
    return re.compile(pattern, rule.flags)


MAINTAINED_RULES: Final[tuple[re.Pattern[str], ...]] = tuple(rule for kind in _DETECTORS for rule in kind().denylist)
RULES: Final[tuple[re.Pattern[str], ...]] = (
    *(_rewrite(rule, _REWRITTEN_RULES) for rule in MAINTAINED_RULES),
    *map(re.compile, _UNKNOWN_TO_IT),
)
"""A match of the group ``skipped``, which two of them have, is no secret. Where there is a group ``secret``, only that
is one."""
_ENTROPY: Final = Base64HighEntropyString()
MAINTAINED_NAMED: Final[Mapping[re.Pattern[str], int]] = REGEX_BY_FILETYPE[FileType.TERRAFORM]
_NAMED: Final[Mapping[re.Pattern[str], int]] = {
    _rewrite(rule, _REWRITTEN_NAMED): group for rule, group in MAINTAINED_NAMED.items()
}
"""Matches ``secret = "quoted"`` and ``SECRET=unquoted``, as in programs and shells; with the group of the secret."""
_RANDOM: Final = re.compile(rf"['\":=]\s*([{re.escape(_ENTROPY.charset)}]++)(?=['\"]|$)")
"""The package's pattern, in which a quote that ends a string may begin the next one."""
_WHOLE_LINE: Final = 2
"""The secret's group in the rules in which more than one ``recaptcha_`` counts: something precedes the name."""
_QUOTED_BEFORE_SEMICOLON: Final = 3
"""The secret's group in the rule for ``private_key "something";``."""
_UNQUOTED: Final = re.compile(r"[^\v'" + r'"]+')
_LAST_SEMICOLON: Final = re.compile(r".*[^,`]`;", re.DOTALL)
_RECAPTCHA: Final = re.compile("recaptcha_", re.IGNORECASE)
_NO_RECAPTCHA: Final = "x_________"


def find_named_secrets(line: str) -> Iterator[str]:
    """Yield the values in a line that its variable names, or their entropy, show to be secrets."""
    for _, group, match in find_named(line):
        if not _is_no_secret(line, match, group):
            yield line[slice(*match.span(group))]
    for found in _RANDOM.finditer(line):
        if _ENTROPY.calculate_shannon_entropy(found[1]) > _ENTROPY.entropy_limit:
            yield found[1]


def find_named(line: str) -> Iterator[tuple[re.Pattern[str], int, re.Match[str]]]:
    """Yield each rule for names with its group of the secret and each of its matches, also those that overlap."""
    shortened = _hide_later_recaptchas(line)
    for rule, group in _NAMED.items():
        searched = line if group == _WHOLE_LINE else shortened
        if group == _QUOTED_BEFORE_SEMICOLON:
            searched = _hide_useless_backquotes(searched)
        match = rule.search(searched)
        while match is not None:
            if match.lastgroup == "skipped":
                match = rule.search(searched, match.end())
                continue
            yield rule, group, match
            # A value that is not quoted reaches to the end, and may contain the next name.
            match = rule.search(searched, match.start() + 1)


def _is_no_secret(line: str, match: re.Match[str], group: int) -> bool:
    return is_example(line[slice(*match.span(group))]) or is_harmless_name(line, match.start("name"))


def _hide_later_recaptchas(line: str) -> str:
    """Replace all but the first ``recaptcha_``, by as many characters.

    Any ``key`` can follow it in ``recaptcha_.*key``. If none of those behind the first one leads to a match, none of
    them does behind a later one, but each would be tried again.
    """
    first = _RECAPTCHA.search(line)
    if first is None:
        return line
    return line[: first.end()] + _RECAPTCHA.sub(_NO_RECAPTCHA, line[first.end() :])


def _hide_useless_backquotes(line: str) -> str:
    """Replace backquotes behind which no backquote with a semicolon ends a secret, by a comma.

    For the rule, a comma differs from a backquote only in that it begins and ends no secret. Otherwise each name would
    try each of the backquotes that follow it.
    """
    if "`" in line:
        return _UNQUOTED.sub(_hide_backquotes_at_the_end, line)
    return line


def _hide_backquotes_at_the_end(match: re.Match[str]) -> str:
    text = match[0]
    kept = _LAST_SEMICOLON.match(text)
    end = kept.end() if kept else 0
    return text[:end] + text[end:].replace("`", ",")
