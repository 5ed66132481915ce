"""How often something may be tried: counted before it is tried, so that many at once are not more."""

from __future__ import annotations

import contextlib
import hashlib
import unicodedata
from dataclasses import dataclass

from django.core.cache import cache


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

    def forgive(self, who: str) -> None:
        """The attempt went well, so it is not counted."""
        with contextlib.suppress(ValueError):  # the count has ended meanwhile
            cache.decr(self._key(who))

    def _key(self, who: str) -> str:
        """One for all the ways in which a name can be written, and of a length that any cache takes."""
        same = unicodedata.normalize("NFKC", who).casefold()
        return f"throttle:{self.name}:{hashlib.sha256(same.encode('utf-8', 'surrogatepass')).hexdigest()}"
