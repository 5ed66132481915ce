"""``make mutations``: apply each fault of the list to a copy of the code, and require that its tests fail.

Exits with code 1 if a fault survived or could not be tried, or if the tests fail without any fault. Nothing is tried
while a fault of the list does not fit the code: it has to be replaced first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutations.mutation import LIST, Mutation, load_mutations, source_of
from tests.mutations.shared_database import SHARED_DIRECTORY
from tests.services import ROOT

HOW_TO_REPLACE: Final = (
    "The code has changed. In tests/mutations/mutations.toml, give these the lines of today, or replace them by others,"
    " for example of `python -m tests.mutations.propose`."
)
TIMEOUT: Final = 300.0
"""Seconds for the tests of one fault; most need five."""
PLUGIN: Final = "tests.mutations.shared_database"
LINKED: Final = (".venv", ".venv-agents", "tests/real_agents/node_modules")
"""What a checkout has beside its files, and the tests use."""


class Result(StrEnum):
    """What became of one mutation."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    ERROR = "error"


class Checkout:
    """A copy of the tracked files, in which one mutation at a time is applied."""

    def __init__(self, directory: Path):
        self.root = directory / "checkout"
        self._temporary = directory / "temporary"
        self._temporary.mkdir(parents=True)
        self._shared = directory.parent
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            source, target = ROOT / name, self.root / name
            if source.is_file() and not source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for name in LINKED:
            if (ROOT / name).exists():
                (self.root / name).symlink_to((ROOT / name).resolve())

    def run(self, tests: Sequence[str], timeout: float) -> tuple[int | None, str]:
        """Run tests; return the exit code of pytest (None: it took too long) and its output."""
        argv = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "-n", "0", "--maxfail=1", *tests]
        env = {**os.environ, "TMPDIR": str(self._temporary), SHARED_DIRECTORY: str(self._shared)}
        try:
            done = subprocess.run(
                argv, cwd=self.root, env=env, timeout=timeout, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return None, f"no result after {timeout:g} s\n"
        return done.returncode, done.stdout + done.stderr

    def try_mutation(self, mutation: Mutation, timeout: float) -> tuple[Result, str]:
        """Apply a mutation, run its tests and restore the file; return the result and, for an error, its reason."""
        try:
            source = source_of(mutation, self.root)
            mutated = mutation.apply(source)
        except ValueError as error:
            return Result.ERROR, str(error)
        file = self.root / mutation.path
        file.write_text(mutated)
        try:
            code, output = self.run(mutation.tests, timeout)
        finally:
            file.write_text(source)
        match code:
            case 0:
                return Result.SURVIVED, ""
            case 1:
                return Result.CAUGHT, ""
        # No test has failed: pytest could not collect them, or did not end.
        return Result.ERROR, output[-2000:]


def run_all(mutations: Sequence[Mutation], jobs: int, timeout: float) -> Counter[Result]:
    """Try the mutations, ``jobs`` at a time, and print each result; return how often each result occurred."""
    results = Counter[Result]()
    with tempfile.TemporaryDirectory(prefix="kandev-mutations-") as home:
        free: SimpleQueue[Checkout] = SimpleQueue()
        for number in range(jobs):
            free.put(Checkout(Path(home, str(number))))
        _require_success(free, mutations, timeout)

        def try_one(mutation: Mutation) -> tuple[Mutation, Result, str]:
            checkout = free.get()
            try:
                return mutation, *checkout.try_mutation(mutation, timeout)
            finally:
                free.put(checkout)

        with ThreadPoolExecutor(jobs) as pool:
            for mutation, result, reason in pool.map(try_one, mutations):
                results[result] += 1
                sys.stdout.write(f"{result:9}{mutation.name}\n{reason}")
                sys.stdout.flush()
    return results


def _require_success(free: SimpleQueue[Checkout], mutations: Sequence[Mutation], timeout: float) -> None:
    """Exit if the tests of the list fail without a mutation: they would seem to catch each of them."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    checkout = free.get()
    code, output = checkout.run(tests, timeout * 3)
    free.put(checkout)
    if code != 0:
        sys.exit(f"The tests fail without a mutation:\n{output[-4000:]}")


def main() -> int:
    """Try the list, or a part of it; return the exit code."""
    options = _parser().parse_args()
    mutations = [mutation for mutation in load_mutations(options.list) if options.only in mutation.name]
    if not mutations:
        sys.exit(f"No mutation's name contains {options.only!r}.")
    if problems := find_problems(mutations):
        sys.exit("\n".join([*problems, HOW_TO_REPLACE]))
    began = time.monotonic()
    results = run_all(mutations, options.jobs, options.timeout)
    counts = ", ".join(f"{results[result]} {result}" for result in Result)
    sys.stdout.write(f"{counts}, in {(time.monotonic() - began) / 60:.0f} minutes\n")
    return 0 if results[Result.CAUGHT] == len(mutations) else 1


def find_problems(mutations: Sequence[Mutation], root: Path = ROOT) -> list[str]:
    """Return why mutations do not fit the code, one sentence for each of these."""
    problems = []
    for mutation in mutations:
        try:
            mutation.apply(source_of(mutation, root))
        except ValueError as error:
            problems.append(str(error))
    return problems


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutations", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations whose name contains this text")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for each (default %(default)g)")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="another list")
    return parser


if __name__ == "__main__":
    sys.exit(main())
