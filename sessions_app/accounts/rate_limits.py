"""Rate limits: attempts at secrets (database), expensive requests (shared cache), and logins."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from django.core import signing
from django.core.cache import cache
from django.utils import timezone

from executors_app.wire.normalization import normalize_compatible
from sessions_app.accounts.client_address import network_of_address
from sessions_app.accounts.models import AttemptCount
from sessions_app.kernel.services.errors import Throttled


@dataclass(frozen=True, slots=True)
class AttemptLimit:
    """At most ``most`` attempts of one kind within ``wait`` seconds by each caller, counted in the database."""

    name: str
    most: int
    wait: int

    def admits(self, who: str) -> bool:
        """Count an attempt of ``who`` before it is made, and return whether it is allowed."""
        if self.is_exhausted(who):
            return False  # without a write, so that a blocked caller costs little
        return AttemptCount.add(attempt_key(self.name, who), timedelta(seconds=self.wait)) <= self.most

    def require(self, who: str) -> None:
        """Count an attempt of ``who``. Raises Throttled if it is not allowed."""
        if not self.admits(who):
            raise Throttled(self.seconds_left(who))

    def forgive(self, who: str) -> None:
        """Uncount an attempt that succeeded."""
        AttemptCount.take_back(attempt_key(self.name, who))

    def is_exhausted(self, who: str) -> bool:
        """Return whether ``who`` has to wait, without counting an attempt."""
        count = AttemptCount.live(attempt_key(self.name, who))
        return count is not None and count.tries >= self.most

    def seconds_left(self, who: str) -> int:
        """Return how many seconds ``who`` has to wait, at least 1."""
        count = AttemptCount.live(attempt_key(self.name, who))
        if count:
            return max(1, math.ceil((count.ends_at - timezone.now()).total_seconds()))
        return 1


def attempt_key(kind: str, who: str) -> str:
    """Return a key of fixed length, equal for all spellings of a name (case and Unicode forms)."""
    same = normalize_compatible(who).casefold()
    return hashlib.sha256(f"{kind}:{same}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class RequestThrottle:
    """At most ``most`` requests of one kind within ``wait`` seconds by each caller, counted in the cache."""

    name: str
    most: int
    wait: int

    def admits(self, who: str) -> bool:
        """Count a request of ``who``, and return whether it is allowed."""
        key = f"throttle:{self.name}:{attempt_key(self.name, who)}"
        cache.add(key, 0, self.wait)
        try:
            return int(cache.incr(key)) <= self.most
        except ValueError:  # the key expired between ``add`` and ``incr``
            return True


LOGIN_WAIT: Final = 300
"""Seconds of the window in which attempts are counted; a caller with too many waits until it ends."""
MAX_PER_ADDRESS: Final = 20
"""Wrong passwords from one network, for any names."""
MAX_PER_NAME: Final = 10
"""Wrong passwords for one name from anywhere, whether or not an account has that name."""
MAX_IN_TOTAL: Final = 200
"""Wrong passwords for all names from anywhere: the limit for trying one password with many names."""
WAIT_PER_STRANGER: Final = 900
"""Seconds between two attempts of one network for a name under attack, so that its owner can still log in."""
MAX_STRANGERS_PER_NAME: Final = 1000
"""Attempts per hour of all networks together for a name under attack."""
KNOWN_BROWSER_MAX_AGE: Final = 180 * 86_400
"""Seconds for which a browser counts as known after a login."""
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
    """If this attempt fails, the next one from this network has to wait."""
    is_known: bool = False
    """The user has logged in with this browser before."""
    _counted: list[tuple[AttemptLimit, str]] = field(default_factory=list)

    def count_and_check(self) -> bool:
        """Count the attempt, and return whether the password may be checked.

        A browser in which this user has logged in before has limits of its own, so that attackers elsewhere cannot
        lock the user out. Anyone else passes the limits for network, all names and this name; once one of the latter
        two is exhausted, each network has one attempt in ``WAIT_PER_STRANGER`` seconds.
        """
        known = _read_known_browser(self.browser, self.name)
        if known and self._counts(_browser_limit, known):
            self.is_known = True
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

    def uncount(self) -> None:
        """Uncount the attempt, because the password was right or was not checked."""
        for limit, who in self._counted:
            limit.forgive(who)

    def _counts(self, limit: AttemptLimit, who: str) -> bool:
        if not limit.admits(who):
            return False
        self._counted.append((limit, who))
        return True


def make_known_browser_cookie(name: str) -> str:
    """Return the signed cookie for a browser in which ``name`` has just logged in. It gives no access."""
    return signing.dumps([attempt_key("login-name", name), secrets.token_hex(8)], salt=_SALT)


def _read_known_browser(cookie: str, name: str) -> str:
    """Return the id of a browser in which ``name`` has logged in before; empty for any other."""
    try:
        owner, known = signing.loads(cookie, salt=_SALT, max_age=KNOWN_BROWSER_MAX_AGE)
    except (signing.BadSignature, TypeError, ValueError):
        return ""
    if owner == attempt_key("login-name", name):
        return str(known)
    return ""
