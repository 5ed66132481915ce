"""What a run is started with by name, as its workflow declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions_app.services.errors import Invalid
from sessions_app.workflows.graph import Workflow as Graph
from sessions_app.workflows.schema import Port
from sessions_app.workflows.values import Unfit, fit


def given_inputs(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given with each declared input as its type, and with the default of each that was left out or is empty.

    What is not declared stays as it is. Raises Invalid, naming every input that is missing or does not fit.
    """
    values, problems = dict(given), []
    for one in graph.inputs:
        try:
            value = _value(one, given.get(one.name))
        except Unfit as error:
            problems.append(f"The input “{one.name}”: {error}.")
            continue
        if value is not None:
            values[one.name] = value
        elif one.required:
            problems.append(f"The input “{one.name}” is missing.")
    if problems:
        raise Invalid(" ".join(problems), field="inputs", problems=problems)
    return values


def _value(declared: Port, given: Any) -> Any:
    value = declared.default if given in (None, "") else given
    return fit(value, declared.type)
