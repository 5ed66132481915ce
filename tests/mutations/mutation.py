"""One entry of the list: where the fault is, how it looks, and which tests find it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services import ROOT

LIST: Final = Path(__file__).parent / "mutations.toml"
PACKAGES: Final = ("executors_app", "kandev", "sessions_app")


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault: ``original`` of ``path`` becomes ``mutated``."""

    name: str
    """Unique in the list: module, function and operator."""
    path: str
    original: str
    """Some lines of the file, without the indentation of the first; the file contains them exactly once."""
    mutated: str
    tests: tuple[str, ...] = ()
    """Test functions (``file::function``) that pass without the fault and fail with it."""

    def apply(self, source: str) -> str:
        """Return the source with the fault. Raises ValueError unless it contains the original exactly once."""
        if (found := source.count(self.original)) != 1:
            raise ValueError(f"{self.name}: {self.path} contains the original {found} times, not once")
        return source.replace(self.original, self.mutated)


def load_mutations(path: Path = LIST) -> list[Mutation]:
    """Return the list, in the order of the file."""
    entries = tomllib.loads(path.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def source_of(mutation: Mutation, root: Path = ROOT) -> str:
    """Return the file's text. Raises ValueError, with the files that contain the original now, if it is gone."""
    path = root / mutation.path
    if path.exists():
        return path.read_text()
    candidates = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    elsewhere = [str(file.relative_to(root)) for file in candidates if mutation.original in file.read_text()]
    raise ValueError(
        f"{mutation.name}: {mutation.path} is gone; the original is in {', '.join(elsewhere) or 'no file'}"
    )


def to_toml(mutations: Iterable[Mutation]) -> str:
    """Return the list in the form of its file."""
    return "\n".join(_entry(mutation) for mutation in mutations)


def _entry(mutation: Mutation) -> str:
    tests = "".join(f'    "{test}",\n' for test in mutation.tests)
    return (
        f'[[mutation]]\nname = "{mutation.name}"\npath = "{mutation.path}"\n'
        f"original = '''\n{mutation.original}'''\nmutated = '''\n{mutation.mutated}'''\n"
        f"tests = [\n{tests}]\n"
    )
