"""Every installed package declares a licence that the project accepts."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

from tests.services import ROOT

AGREED: Final = {
    *("MIT", "MIT License", "MIT-0", "0BSD", "ISC", "ISC License (ISCL", "ZPL-2.1", "Unlicense"),
    *("BSD", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "BSD 3-Clause"),
    *("Apache-2.0", "Apache Software License", "Apache License 2.0"),
    *("PSF-2.0", "Python-2.0", "Python Software Foundation License", "TCL"),
    *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0"),
}
"""Permissive licences, and Mozilla's, which covers only its own files."""
KNOWN: Final = {
    "psycopg": "LGPL-3.0-only: used as a library and unchanged; whoever installs us may replace it",
    "psycopg-binary": "LGPL-3.0-only: the same, built",
    "quickjs": "MIT, as its repository says; its metadata says nothing",
    "agent-client-protocol": "Apache-2.0, as its repository says; for tests alone",
    "kubernetes-validate": "Apache-2.0, as its LICENSE says; for tests alone",
    "axe-playwright-python": "MIT, as its repository says; for tests alone",
}
"""Packages whose licence a person has reviewed."""
PINNED: Final = re.compile(r"^([a-zA-Z0-9][\w.-]*)==", re.MULTILINE)
LOCKS: Final = ("base", "agentctl", "dev")


def pinned() -> list[str]:
    """Return every package that a lock file names."""
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in LOCKS]
    return sorted({name for text in texts for name in PINNED.findall(text)})


def installed() -> list[str]:
    """Return the pinned packages that are installed here: a lock file covers every system."""
    there = {one.name.lower().replace("_", "-").replace(".", "-") for one in metadata.distributions()}
    return [name for name in pinned() if name.lower().replace("_", "-").replace(".", "-") in there]


def licences_of(found: Any) -> list[str]:
    """Return each licence that a package declares in an expression, a classifier, or free text."""
    classifiers = found.get_all("Classifier") or []
    stated = found.get("License-Expression") or " AND ".join(
        one.rpartition("::")[2].strip() for one in classifiers if one.startswith("License ::") and one.count("::") > 1
    )
    words = stated or (found.get("License") or "").strip().partition("\n")[0]
    return [one.strip(" )").removeprefix("(") for one in re.split(r"\s+(?:AND|OR)\s+", words) if one]


@pytest.mark.parametrize("name", installed())
def test_licence_of_each_package_is_accepted(name: str) -> None:
    if name in KNOWN:
        return
    licences = licences_of(metadata.metadata(name))
    assert licences, f"{name} names no licence: check it, then add it to KNOWN"
    assert set(licences) <= AGREED, f"{name}: {licences}"


def test_every_known_package_is_used() -> None:
    assert set(KNOWN) <= set(pinned())


@pytest.mark.parametrize("lock", [ROOT / "frontend" / "package-lock.json"], ids=lambda path: path.parent.name)
def test_licences_of_frontend_packages_are_accepted(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    licenses = {name: one.get("license") for name, one in packages.items() if name}
    assert licenses
    assert set(licenses.values()) <= AGREED
