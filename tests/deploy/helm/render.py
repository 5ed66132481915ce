"""Render the chart with Helm itself: JSON of values on the standard input, JSON of the manifests on the output.

A process of its own, because Helm's library is written in Go and brings its threads and signal handlers along.
"""

from __future__ import annotations

import json
import sys

import helm_python


def main(chart: str) -> None:
    """Print ``{"manifests": {path: text}, "findings": […]}``, or ``{"error": text}`` if Helm refuses the values."""
    request = json.load(sys.stdin)
    try:
        with helm_python.Chart.load(chart) as loaded:
            loaded.validate_schema(loaded.merge_values(request["values"]))
            manifests = loaded.render(request["values"], name=request["name"], namespace=request["namespace"])
        found = helm_python.lint(chart, request["values"])
    except helm_python.HelmError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    json.dump({"manifests": manifests, "findings": found["messages"]}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
