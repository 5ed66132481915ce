"""Labels by which this deployment recognises what it has started elsewhere: containers, and agentctls of hosts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from django.conf import settings

MANAGED_LABEL: Final = "kandev.managed"
DEPLOYMENT_LABEL: Final = "kandev.deployment"


def deployment_labels() -> dict[str, str]:
    """Return the labels of this deployment: others may use the same engine or host."""
    place = str(Path(settings.KANDEV_DATA_DIR).resolve())
    return {MANAGED_LABEL: "true", DEPLOYMENT_LABEL: hashlib.sha256(place.encode()).hexdigest()[:16]}
