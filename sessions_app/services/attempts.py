"""How often a secret may be guessed. Counts are rows: no flood of other callers, restart or second process evicts them.

What only limits how much work somebody asks for is counted by ``services.throttle``, which may forget.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address, ip_network

from django.utils import timezone

from sessions_app.models import AttemptCount
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
        return AttemptCount.add(key_of(self.name, who), timedelta(seconds=self.wait)) <= self.most

    def require(self, who: str) -> None:
        """Count an attempt of ``who``; Throttled if it may not be made."""
        if not self.admits(who):
            raise Throttled(self.seconds_left(who))

    def forgive(self, who: str) -> None:
        """The attempt went well, so it is not counted."""
        AttemptCount.take_back(key_of(self.name, who))

    def is_exhausted(self, who: str) -> bool:
        """Whether ``who`` has to wait; counts nothing."""
        count = AttemptCount.live(key_of(self.name, who))
        return count is not None and count.tries >= self.most

    def seconds_left(self, who: str) -> int:
        """How long ``who`` has to wait, in whole seconds of at least 1."""
        count = AttemptCount.live(key_of(self.name, who))
        return max(1, math.ceil((count.ends_at - timezone.now()).total_seconds())) if count else 1


def key_of(kind: str, who: str) -> str:
    """One for all the ways in which a name can be written, and of one length."""
    same = unicodedata.normalize("NFKC", who).casefold()
    return hashlib.sha256(f"{kind}:{same}".encode("utf-8", "surrogatepass")).hexdigest()


def network_of(address: str) -> str:
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
