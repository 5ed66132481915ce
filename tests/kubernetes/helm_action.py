"""Install, upgrade or roll back a release with Helm itself: a request as JSON on the input, its result on the output.

A process of its own, because Helm's library is written in Go and brings its threads and signal handlers along.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python

NAME = "kandev"


def main() -> None:
    """Carry out one action; print ``{"revision": number, "status": text}``, or ``{"error": text}`` if it failed."""
    request = json.load(sys.stdin)
    config = helm_python.Config(kubeconfig_path=request["kubeconfig"], namespace=request["namespace"])
    try:
        with config:
            json.dump(carry_out(config, request), sys.stdout)
    except helm_python.HelmError as error:
        json.dump({"error": str(error)}, sys.stdout)


def carry_out(config: helm_python.Config, request: dict[str, Any]) -> dict[str, Any]:
    """Do what the request says, as ``helm --wait --timeout`` does; return the last revision and its status."""
    wait = {"timeout": request["timeout"], "wait": "watcher"}
    if request["action"] == "rollback":
        config.rollback(NAME, version=request["revision"], **wait)
    elif request["action"] == "upgrade":
        config.upgrade(request["chart"], NAME, request["values"], **wait)
    else:
        config.install(request["chart"], NAME, request["values"], **wait)
    found = config.status(NAME)
    return {name: found[name] for name in ("revision", "status")}


if __name__ == "__main__":
    main()
