"""How much work somebody may ask for: counted before it is done, so that many at once are not more.

Guesses at secrets are counted by ``services.attempts``, which forgets none.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.core.cache import cache

from sessions_app.services.attempts import key_of


@dataclass(frozen=True, slots=True)
class Throttle:
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
        return f"throttle:{self.name}:{key_of(self.name, who)}"
