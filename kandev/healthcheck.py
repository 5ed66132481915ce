"""Whether the web of this container answers, for its ``HEALTHCHECK``; standard library alone, and no settings."""

from __future__ import annotations

import os
import sys
import urllib.request


def main() -> None:
    """Ends with status 1 if it does not. It is asked by a name that it serves, as the proxy does."""
    name = os.environ.get("KANDEV_ALLOWED_HOSTS", "").split(",")[0].strip().lstrip("*.") or "localhost"
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
    request = urllib.request.Request(f"http://{address}/healthz", headers={"Host": name})
    with urllib.request.urlopen(request, timeout=4):  # noqa: S310 - of this container
        pass


if __name__ == "__main__":
    main()
