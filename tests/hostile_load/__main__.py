"""``make soak HOSTILE=1``: the attack for many minutes, and a table of what the other team waited for.

Exits with code 1 if it waited for longer than the limits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.drills.deployment import Deployment
from tests.hostile_load.drill import HostileLoad


def main() -> int:
    """Run the attack and print what was measured; return the exit code."""
    parser = argparse.ArgumentParser(prog="make soak HOSTILE=1", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="duration of the attack (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kandev-hostile-") as home:
        deployment = Deployment(Path(home))
        try:
            deployment.prepare()
            deployment.serve()
            measured = HostileLoad(deployment).run(options.seconds)
        finally:
            deployment.close()
    violations = measured.violations()
    verdict = "\n".join(f"BROKEN: {violation}" for violation in violations) or "GREEN: all limits were kept"
    sys.stdout.write(f"{measured.table()}\n{verdict}\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
