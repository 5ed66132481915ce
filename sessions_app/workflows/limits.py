"""How large a workflow may be, so that reading one and each step of its runs take a bounded time."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 1 << 20
"""Of one file."""
MAX_DEPTH: Final = 64
"""Of values within values in one file, and of components within components."""
MAX_VALUES: Final = 200_000
"""Of values in one file, aliases counted as often as they are used."""
MAX_NODES: Final = 1_000
"""Of one workflow, each component counted as often as it is used."""
MAX_EDGES: Final = 5_000
"""Of one file."""
MAX_ITERATIONS: Final = 1_000
"""Of one loop."""
MAX_NODE_RUNS: Final = 10_000
"""Of one run, iterations among them."""
MAX_RETRIES: Final = 100
"""Of one gate."""
MAX_CONCURRENT: Final = 3
"""Nodes of a run at work at the same time, unless the workflow says otherwise."""
MAX_ENVIRONMENT_VALUE: Final = 96 << 10
"""Bytes of one value given to a shell; systems end at 128 KiB for name and value."""
MAX_OUTPUT: Final = 1 << 20
"""Bytes that a limited process may answer."""
