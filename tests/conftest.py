"""What holds in every area."""

from __future__ import annotations

import hypothesis

# How long an example takes is a matter of what else the machine does.
hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")
