"""What each surface of a deployment says is wrong, in the same words, and what it has to say.

A claim is a short text such as ``supervisor of build-c``. A surface lies while it lacks a claim that is true; it tells
the truth when its claims are those that are true, and no others.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.drills.deployment import Session
from tests.three_hosts.site import METRICS_TOKEN, ROLES, Site

Claims = frozenset[str]
Process = tuple[str, str]
"""The name of a host, and a role."""
_TITLES: Final = {"Web server": "web", "Supervisor": "supervisor", "Worker": "worker"}
_SECTION: Final = re.compile(r'aria-labelledby="host-\d+">(.*?)</section>', re.DOTALL)
_NAME: Final = re.compile(r"<h2[^>]*>([^<]+)</h2>")
_ROW: Final = re.compile(r'<strong>([^<]+)</strong> <span class="pill \w+">(\w+)</span>')
_SERVICE: Final = re.compile(r'<span class="pill ask">(Draining|Lost|Cordoned)</span>')
_METRIC: Final = re.compile(r'^(\w+)(?:\{role="(\w+)",state="up"\})? (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Situation:
    """What is wrong."""

    gone: frozenset[Process] = frozenset()
    """Processes that do not run, or that nobody can reach."""
    unattended: frozenset[str] = frozenset()
    """Hosts with agents and without a supervisor."""
    service: Mapping[str, str] = field(default_factory=dict)
    """What people have decided about hosts."""

    def claims_of_staff(self) -> Claims:
        """Return the claims of surfaces for staff, which name hosts."""
        return frozenset(
            [f"{role} of {host}" for host, role in self.gone]
            + [f"{host} unattended" for host in self.unattended]
            + [f"{host} {state}" for host, state in self.service.items()]
        )

    def claims_of_readyz(self) -> Claims:
        """Return the claims of ``/readyz``, which names roles."""
        found = {"supervisor"} if self.unattended else set()
        workers = {(host, "worker") for host, roles in ROLES.items() if "worker" in roles}
        return frozenset(found | ({"worker"} if workers <= self.gone else set()))

    def claims_of_metrics(self) -> Claims:
        """Return the claims of ``/metrics``, which counts."""
        return _counted(Counter(role for _, role in self.gone), len(self.unattended))

    def claims_of_sessions(self) -> Claims:
        """Return the claims of the sessions on the hosts."""
        return frozenset(f"{host} unattended" for host in self.unattended)


def _counted(missing: Mapping[str, int], unattended: int) -> Claims:
    counts = {f"{role} missing": number for role, number in missing.items()} | {"host unattended": unattended}
    return frozenset(f"{what} {number}" for what, most in counts.items() for number in range(1, most + 1))


def all_roles() -> Counter[str]:
    """Return how many processes of each role there are when nothing is wrong."""
    return Counter(role for roles in ROLES.values() for role in roles)


@dataclass(frozen=True)
class Surface:
    """A place where people or programs look."""

    name: str
    read: Callable[[Site, Mapping[str, Session]], Claims]
    expect: Callable[[Situation], Claims]


def _readyz(site: Site, sessions: Mapping[str, Session]) -> Claims:
    return frozenset(json.loads(_answer(site, "/readyz"))["down"])


def _metrics(site: Site, sessions: Mapping[str, Session]) -> Claims:
    text = _answer(site, "/metrics", Authorization=f"Bearer {METRICS_TOKEN}")
    up, unattended, alive = Counter[str](), 0, 0
    for name, role, value in _METRIC.findall(text):
        if name == "kandev_processes" and role:
            up[role] = int(float(value))
        elif name == "kandev_unattended_hosts":
            unattended = int(float(value))
        elif name == "kandev_supervisors":
            alive = int(float(value))
    up["supervisor"] = min(up["supervisor"], alive)
    return _counted(all_roles() - up, unattended)


def _api(site: Site, sessions: Mapping[str, Session]) -> Claims:
    def claims() -> Iterator[str]:
        for host in site.api("GET", "hosts/")["results"]:
            up = {one["role"] for one in host["processes"] if one["state"] == "up"}
            yield from (f"{role} of {host['name']}" for role in ROLES[host["name"]] if role not in up)
            if host["unattended"]:
                yield f"{host['name']} unattended"
            if host["service"]:
                yield f"{host['name']} {host['service']}"

    return frozenset(claims())


def _page(site: Site, sessions: Mapping[str, Session]) -> Claims:
    def claims() -> Iterator[str]:
        text = site.page("/system/")
        for section in _SECTION.findall(text):
            (name,) = _NAME.findall(section)
            up = {_TITLES[title] for title, state in _ROW.findall(section) if state == "Up"}
            yield from (f"{role} of {name}" for role in ROLES[name] if role not in up)
            if "No supervisor" in section:
                assert f"<strong>supervisor on {name}</strong>" in text
                yield f"{name} unattended"
            yield from (f"{name} {state.lower()}" for state in _SERVICE.findall(section))

    return frozenset(claims())


def _status(site: Site, sessions: Mapping[str, Session]) -> Claims:
    found = {host: one.status() for host, one in sessions.items()}
    return frozenset(f"{host} unattended" for host, one in found.items() if one["unattended_host"] == host)


def _session_page(site: Site, sessions: Mapping[str, Session]) -> Claims:
    pages = {host: site.page(f"/{one.path}/") for host, one in sessions.items()}
    return frozenset(
        f"{host} unattended"
        for host, text in pages.items()
        if f"The host of this session, {host}, has no supervisor" in text
    )


def _answer(site: Site, path: str, **headers: str) -> str:
    status, _, text = site.proxy.get(path, **headers)
    if status != 200:
        raise OSError(f"{path} answers {status}")
    return text


SURFACES: Final = (
    Surface("`/readyz`", _readyz, Situation.claims_of_readyz),
    Surface("`/metrics`", _metrics, Situation.claims_of_metrics),
    Surface("API, hosts", _api, Situation.claims_of_staff),
    Surface("page *System*", _page, Situation.claims_of_staff),
    Surface("API, session", _status, Situation.claims_of_sessions),
    Surface("page of a session", _session_page, Situation.claims_of_sessions),
)
