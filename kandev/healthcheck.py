"""``HEALTHCHECK`` of the web container; uses only the standard library and loads no settings."""

from __future__ import annotations

import os
import sys
import urllib.request


def main() -> None:
    """Exit with status 1 unless the web server responds. The request names an allowed host, as the proxy does."""
    first_host, *_ = os.environ.get("KANDEV_ALLOWED_HOSTS", "").split(",")
    host = first_host.strip().lstrip("*.") or "localhost"
    address = "127.0.0.1:8000"
    if len(sys.argv) > 1:
        address = sys.argv[1]
    request = urllib.request.Request(f"http://{address}/healthz", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=4):  # noqa: S310 - the address is in this container
        pass


if __name__ == "__main__":
    main()
