"""A runtime: this machine, as long as it is not busy. Put such a file into ``executors_app/runtimes/``.

Everything but the start is as in ``local_standalone``: what runs is found, resumed and ended in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from executors_app.domain import Launched, LaunchSpec
from executors_app.errors import RuntimeUnavailable
from executors_app.runtimes.local_standalone import LocalStandalone


class LocalWhenQuiet(LocalStandalone):
    """Starts nothing while more than ``max_load`` processes want to run: ``{"max_load": 4}``."""

    name = "local_when_quiet"

    def check_config(self, config: Mapping[str, Any]) -> None:
        """``max_load`` and nothing else; ValueError."""
        limit = config.get("max_load")
        if set(config) != {"max_load"} or isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise ValueError(f"{self.name} wants max_load, a number above 0, and nothing else.")

    async def launch(self, spec: LaunchSpec) -> Launched:
        """As ever, or RuntimeUnavailable: the start is tried again, with growing pauses."""
        load, limit = os.getloadavg()[0], float(spec.config["max_load"])
        if load > limit:
            raise RuntimeUnavailable(f"This machine is busy: its load is {load:.1f}, and {limit:g} is allowed.")
        return await super().launch(spec)


RUNTIME = LocalWhenQuiet()
