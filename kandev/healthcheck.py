"""``HEALTHCHECK`` of the web container; uses only the standard library and loads no settings."""

from __future__ import annotations

import os
import sys
import urllib.request


def main() -> None:
    """Exit with status 1 unless the web server responds. The request names an allowed host, as the proxy does."""
    name = os.environ.get("KANDEV_ALLOWED_HOSTS", "").split(",")[0].strip().lstrip("*.") or "localhost"
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
    request = urllib.request.Request(f"http://{address}/healthz", headers={"Host": name})
    with urllib.request.urlopen(request, timeout=4):  # noqa: S310 - the address is in this container
        pass


if __name__ == "__main__":
    main()
