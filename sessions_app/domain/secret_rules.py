"""Patterns of secrets: the rules of detect-secrets, and key formats that it does not know.

Only its patterns are used. Its verification would send a suspected secret to the service that it belongs to. Two of
its rules are left out because they match too much: public IP addresses, and hexadecimal strings of high entropy,
which include every commit id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from detect_secrets.plugins.keyword import REGEX_BY_FILETYPE, KeywordDetector
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

_DETECTORS: Final[tuple[type[RegexBasedDetector], ...]] = (
    *(ArtifactoryDetector, AWSKeyDetector, AzureStorageKeyDetector, BasicAuthDetector, CloudantDetector),
    *(DiscordBotTokenDetector, GitHubTokenDetector, IbmCloudIamDetector, IbmCosHmacDetector, JwtTokenDetector),
    *(MailchimpDetector, NpmDetector, PrivateKeyDetector, SendGridDetector, SlackDetector, SoftlayerDetector),
    *(SquareOAuthDetector, StripeDetector, TwilioKeyDetector),
)
_UNKNOWN_TO_IT: Final = (
    r"\bgl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|imt)-[\w-]{20,80}",  # GitLab
    r"\bsk-(?:proj|ant|svcacct|admin|or)-[\w-]{20,200}",  # OpenAI, Anthropic, OpenRouter
    r"\bsk-[A-Za-z0-9]{32,64}\b",
    r"\bAIza[\w-]{35}",  # Google
    r"\bhf_[A-Za-z0-9]{30,40}\b",  # Hugging Face
    r"\bpypi-[\w-]{50,250}",
)
"""Keys recognizable by a vendor's prefix."""
RULES: Final[tuple[re.Pattern[str], ...]] = (
    *(rule for kind in _DETECTORS for rule in kind().denylist),
    *map(re.compile, _UNKNOWN_TO_IT),
)
_ENTROPY: Final = Base64HighEntropyString()
_KEYWORD: Final = KeywordDetector()
_NAMED: Final = REGEX_BY_FILETYPE[FileType.TERRAFORM]
"""Matches ``secret = "quoted"`` and ``SECRET=unquoted``, as in programs and shells."""


def find_named_secrets(line: str) -> Iterator[str]:
    """Yield the values in a line that its variable names, or their entropy, show to be secrets."""
    yield from _KEYWORD.analyze_string(line, denylist_regex_to_group=_NAMED)
    for secret in _ENTROPY.analyze_string(line):
        if _ENTROPY.calculate_shannon_entropy(secret) > _ENTROPY.entropy_limit:
            yield secret
