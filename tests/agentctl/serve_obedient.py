"""agentctl with the obedient driver, as a program that cannot import Django."""

from __future__ import annotations

import sys

sys.modules["django"] = None  # type: ignore[assignment]

from executors_app.agentctl.__main__ import main  # noqa: E402
from tests.agentctl.fakes import ObedientDriver  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(drivers={"obedient": ObedientDriver}))
