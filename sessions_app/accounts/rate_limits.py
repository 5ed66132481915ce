"""Rate limits.

Attempts counted in the database (secrets) or in the shared cache (costly requests), and those of logins.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import unicodedata
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Final

from django.core import signing
from django.core.cache import cache
from django.utils import timezone

from sessions_app.accounts.models import AttemptCount
from sessions_app.services.errors import Throttled


@dataclass(frozen=True, slots=True)
class AttemptLimit:
    """At most ``most`` attempts of one kind within ``wait`` seconds, for each caller."""

    name: str
    most: int
    wait: int

    def admits(self, who: str) -> bool:
        """Count an attempt of ``who`` before it is made; whether it may be made."""
        if self.is_exhausted(who):
            return False  # a read alone: who has to wait costs no write
        return AttemptCount.add(attempt_key(self.name, who), timedelta(seconds=self.wait)) <= self.most

    def require(self, who: str) -> None:
        """Count an attempt of ``who``; Throttled if it may not be made."""
        if not self.admits(who):
            raise Throttled(self.seconds_left(who))

    def forgive(self, who: str) -> None:
        """The attempt went well, so it is not counted."""
        AttemptCount.take_back(attempt_key(self.name, who))

    def is_exhausted(self, who: str) -> bool:
        """Whether ``who`` has to wait; counts nothing."""
        count = AttemptCount.live(attempt_key(self.name, who))
        return count is not None and count.tries >= self.most

    def seconds_left(self, who: str) -> int:
        """How long ``who`` has to wait, in whole seconds of at least 1."""
        count = AttemptCount.live(attempt_key(self.name, who))
        return max(1, math.ceil((count.ends_at - timezone.now()).total_seconds())) if count else 1


def attempt_key(kind: str, who: str) -> str:
    """One for all the ways in which a name can be written, and of one length."""
    same = unicodedata.normalize("NFKC", who).casefold()
    return hashlib.sha256(f"{kind}:{same}".encode("utf-8", "surrogatepass")).hexdigest()


def network_of_address(address: str) -> str:
    """Who calls, as far as an address tells: one customer has a /64 of IPv6, and may call from any address in it."""
    try:
        found = ip_address(address.split("%", maxsplit=1)[0])
    except ValueError:
        return address  # of a Unix socket, none
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found, 64), strict=False))


@dataclass(frozen=True, slots=True)
class RequestThrottle:
    """At most ``most`` attempts of one kind within ``wait`` seconds."""

    name: str
    most: int
    wait: int

    def admits(self, who: str) -> bool:
        """Count an attempt of ``who``; whether it may be made."""
        key = self._key(who)
        cache.add(key, 0, self.wait)
        try:
            return int(cache.incr(key)) <= self.most
        except ValueError:  # it ended between the two
            return True

    def _key(self, who: str) -> str:
        return f"throttle:{self.name}:{attempt_key(self.name, who)}"


LOGIN_WAIT: Final = 300
"""Seconds in which attempts are counted, and for which whoever made too many has to wait."""
MAX_PER_ADDRESS: Final = 20
"""Wrong passwords from one address, whatever the names."""
MAX_PER_NAME: Final = 10
"""Wrong passwords for one name, wherever they come from and whether or not anybody has that name."""
MAX_IN_TOTAL: Final = 200
"""Wrong passwords for all names from everywhere: somebody tries one password with many names."""
WAIT_PER_STRANGER: Final = 900
"""Seconds between two attempts of one network for a name that is guessed at."""
MAX_STRANGERS_PER_NAME: Final = 1000
"""Attempts of all networks together for a name that is guessed at, within an hour."""
KNOWN_BROWSER_MAX_AGE: Final = 180 * 86_400
"""Seconds for which a browser is known after a login."""
_SALT: Final = "sessions_app.known-browser"

_address_limit = AttemptLimit("login-address", MAX_PER_ADDRESS, LOGIN_WAIT)
_name_limit = AttemptLimit("login-name", MAX_PER_NAME, LOGIN_WAIT)
_total_limit = AttemptLimit("login-all", MAX_IN_TOTAL, LOGIN_WAIT)
_browser_limit = AttemptLimit("login-browser", MAX_PER_NAME, LOGIN_WAIT)
_stranger_limit = AttemptLimit("login-stranger", 1, WAIT_PER_STRANGER)
_strangers_per_name_limit = AttemptLimit("login-crowd", MAX_STRANGERS_PER_NAME, 3600)


@dataclass(slots=True)
class LoginAttempt:
    """One attempt to log in as ``name`` from ``address`` with the cookie ``browser`` (empty: none)."""

    name: str
    address: str
    browser: str = ""
    is_last: bool = False
    """If this attempt fails, the next one from here has to wait."""
    _counted: list[tuple[AttemptLimit, str]] = field(default_factory=list)

    def count_and_check(self) -> bool:
        """Count it; whether the password may be looked at."""
        known = _read_known_browser(self.browser, self.name)
        if known and self._counts(_browser_limit, known):
            return True
        network = network_of_address(self.address)
        if not self._counts(_address_limit, network):
            return False
        if self._counts(_total_limit, "") and self._counts(_name_limit, self.name):
            return True
        self.is_last = True
        return self._counts(_stranger_limit, f"{network} {self.name}") and self._counts(
            _strangers_per_name_limit, self.name
        )

    def succeeded(self) -> None:
        """The password was right: nothing of this was a guess."""
        for limit, who in self._counted:
            limit.forgive(who)

    def _counts(self, limit: AttemptLimit, who: str) -> bool:
        if not limit.admits(who):
            return False
        self._counted.append((limit, who))
        return True


def make_known_browser_cookie(name: str) -> str:
    """What a browser keeps in which ``name`` has just logged in; it opens nothing by itself."""
    return signing.dumps([attempt_key("login-name", name), secrets.token_hex(8)], salt=_SALT)


def _read_known_browser(cookie: str, name: str) -> str:
    """The id of a browser in which ``name`` has logged in; empty for any other."""
    try:
        owner, known = signing.loads(cookie, salt=_SALT, max_age=KNOWN_BROWSER_MAX_AGE)
    except (signing.BadSignature, TypeError, ValueError):
        return ""
    return str(known) if owner == attempt_key("login-name", name) else ""
