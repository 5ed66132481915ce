"""A runtime: this machine, while it is not busy. Put such a file into ``executors_app/runtimes/``.

Only the start differs from ``local_standalone``: running agents are found, resumed and ended in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from executors_app.runtimes.local_standalone.runtime import LocalStandalone
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import Launched, LaunchSpec


class LocalWhenQuiet(LocalStandalone):
    """Starts no agent while the load is above ``max_load``, for example ``{"max_load": 4}``."""

    name = "local_when_quiet"

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError unless there is exactly one setting, ``max_load``."""
        limit = config.get("max_load")
        if set(config) != {"max_load"} or isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise ValueError(f"{self.name} needs max_load, a number above 0, and no other setting.")

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Launch as usual, or raise RuntimeUnavailable: the start is then retried with growing pauses."""
        load, limit = os.getloadavg()[0], float(spec.config["max_load"])
        if load > limit:
            raise RuntimeUnavailable(f"This machine is busy: its load is {load:.1f}, and {limit:g} is allowed.")
        return await super().launch(spec)


RUNTIME = LocalWhenQuiet()
