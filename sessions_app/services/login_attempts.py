"""Guessing passwords is slow, and whoever knows theirs gets in meanwhile.

A browser in which somebody has logged in before has a signed cookie, and counts for itself: whatever others try
does not concern it. From elsewhere an address may be wrong so often, and so may all together for one name. After
that, each network may still try a name once in a while, so that many wrong passwords from many addresses lock
nobody out; and in the end there is a number for all of these together.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

from django.core import signing

from sessions_app.services.attempts import AttemptLimit, key_of, network_of

WAIT: Final = 300
"""Seconds in which attempts are counted, and for which whoever made too many has to wait."""
MOST_OF_ADDRESS: Final = 20
"""Wrong passwords from one address, whatever the names."""
MOST_OF_NAME: Final = 10
"""Wrong passwords for one name, wherever they come from and whether or not anybody has that name."""
MOST_OF_ALL: Final = 200
"""Wrong passwords for all names from everywhere: somebody tries one password with many names."""
WAIT_UNDER_ATTACK: Final = 900
"""Seconds between two attempts of one network for a name that is guessed at."""
MOST_UNDER_ATTACK: Final = 1000
"""Attempts of all networks together for a name that is guessed at, within an hour."""
KNOWN_FOR: Final = 180 * 86_400
"""Seconds for which a browser is known after a login."""
_SALT: Final = "sessions_app.known-browser"

_addresses = AttemptLimit("login-address", MOST_OF_ADDRESS, WAIT)
_names = AttemptLimit("login-name", MOST_OF_NAME, WAIT)
_all = AttemptLimit("login-all", MOST_OF_ALL, WAIT)
_browsers = AttemptLimit("login-browser", MOST_OF_NAME, WAIT)
_strangers = AttemptLimit("login-stranger", 1, WAIT_UNDER_ATTACK)
_crowds = AttemptLimit("login-crowd", MOST_UNDER_ATTACK, 3600)


@dataclass(slots=True)
class LoginAttempt:
    """One attempt to log in as ``name`` from ``address`` with the cookie ``browser`` (empty: none)."""

    name: str
    address: str
    browser: str = ""
    is_last: bool = False
    """If this attempt fails, the next one from here has to wait."""
    _counted: list[tuple[AttemptLimit, str]] = field(default_factory=list)

    def may_be_made(self) -> bool:
        """Count it; whether the password may be looked at."""
        known = _known_browser(self.browser, self.name)
        if known and self._counts(_browsers, known):
            return True
        network = network_of(self.address)
        if not self._counts(_addresses, network):
            return False
        if self._counts(_all, "") and self._counts(_names, self.name):
            return True
        self.is_last = True
        return self._counts(_strangers, f"{network} {self.name}") and self._counts(_crowds, self.name)

    def succeeded(self) -> None:
        """The password was right: nothing of this was a guess."""
        for limit, who in self._counted:
            limit.forgive(who)

    def _counts(self, limit: AttemptLimit, who: str) -> bool:
        if not limit.admits(who):
            return False
        self._counted.append((limit, who))
        return True


def known_browser_cookie(name: str) -> str:
    """What a browser keeps in which ``name`` has just logged in; it opens nothing by itself."""
    return signing.dumps([key_of("login-name", name), secrets.token_hex(8)], salt=_SALT)


def _known_browser(cookie: str, name: str) -> str:
    """The id of a browser in which ``name`` has logged in; empty for any other."""
    try:
        owner, known = signing.loads(cookie, salt=_SALT, max_age=KNOWN_FOR)
    except (signing.BadSignature, TypeError, ValueError):
        return ""
    return str(known) if owner == key_of("login-name", name) else ""
