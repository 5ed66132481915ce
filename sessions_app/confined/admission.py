"""Which requests run now: a limited number in all and of each owner, and the owners take turns."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field


class TooManyWaiting(Exception):
    """So many requests of this owner are waiting already that another one would wait too long."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that runs or waits. ``admitted`` is done when it may run."""

    owner: str
    admitted: Future[None] = field(default_factory=Future)


class Admission:
    """Admits requests. Owners that wait take turns, whatever number of requests each of them has.

    ``running`` requests run at the same time, ``running_per_owner`` of each owner. ``waiting_per_owner`` more of each
    owner may wait; None: any number. ``reserved`` places are kept for owners of whom no request runs yet: a few owners
    with long requests leave them to the others.
    """

    def __init__(self, *, running: int, waiting_per_owner: int | None, running_per_owner: int = 1, reserved: int = 0):
        self._most_running = running
        self._reserved = reserved
        self._running_per_owner = running_per_owner
        self._waiting_per_owner = waiting_per_owner
        self._lock = threading.Lock()
        self._running: set[Ticket] = set()
        self._running_of: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()
        """Requests that wait, by owner; the owner whose turn is next comes first."""

    @property
    def is_full(self) -> bool:
        """Whether a request would have to wait, whoever its owner is."""
        return len(self._running) >= self._most_running

    def enter(self, owner: str) -> Ticket:
        """Return a ticket of a request, which may have to wait. Raises TooManyWaiting. ``leave`` must follow."""
        ticket = Ticket(owner)
        with self._lock:
            ahead = len(self._waiting.get(owner, ()))
            if self._waiting_per_owner is not None and ahead >= self._waiting_per_owner:
                raise TooManyWaiting
            self._waiting.setdefault(owner, deque()).append(ticket)
            self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """End a request that runs, or that no longer waits."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
                self._running_of[ticket.owner] -= 1
                if not self._running_of[ticket.owner]:
                    del self._running_of[ticket.owner]
            else:
                self._remove_waiting(ticket)
            self._admit()

    def _admit(self) -> None:
        """Admit requests of the owners that wait, one of each in turn, as long as there is room."""
        passed = 0
        while len(self._running) < self._most_running and passed < len(self._waiting):
            owner = next(iter(self._waiting))
            self._waiting.move_to_end(owner)
            if not self._has_room(owner):
                passed += 1
                continue
            ticket = self._take_next(owner)
            if ticket is None:
                passed += 1
                continue
            passed = 0
            self._remove_waiting(ticket)
            self._running.add(ticket)
            self._running_of[owner] += 1
            ticket.admitted.set_result(None)

    def _has_room(self, owner: str) -> bool:
        """Whether another request of this owner may run, if there is a free place at all."""
        running = self._running_of.get(owner, 0)
        if not running:
            return True
        return running < self._running_per_owner and len(self._running) < self._most_running - self._reserved

    def _take_next(self, owner: str) -> Ticket | None:
        """Return the owner's first request that still waits; None if all have been cancelled and are about to leave."""
        for ticket in self._waiting[owner]:
            if not ticket.admitted.cancelled() and ticket.admitted.set_running_or_notify_cancel():
                return ticket
        return None

    def _remove_waiting(self, ticket: Ticket) -> None:
        tickets = self._waiting[ticket.owner]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.owner]
