"""The limited process: functions, regular expressions and schemas of workflows, away from everything else.

Run as ``python -m sessions_app.workflows.language.sandbox_process``, it reads one JSON request from its input and
writes one answer to its output. It can read no file that is not open, start nothing, and ends by itself when its time
or memory are used up.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sessions_app.workflows.language.limits import MAX_OUTPUT

SECONDS: Final = 1
MEMORY: Final = 64 << 20
STACK: Final = 256 << 10
MAX_JOBS: Final = 10_000
ADDRESS_SPACE: Final = 1 << 30

_RUN: Final = """
globalThis.answer = {};
(async () => { const f = async function (inputs) {\n%s\n}; return f(JSON.parse(given)); })().then(
  (value) => { answer.value = JSON.stringify(value === undefined ? null : value); },
  (error) => { answer.error = String(error); },
);
"""


class RequestError(ValueError):
    """What was asked has failed in itself; the message is for people."""


def javascript(code: str, inputs: Mapping[str, Any]) -> Any:
    """What a function body returns; ``inputs`` is its argument, and it may await."""
    try:
        import quickjs  # noqa: PLC0415  (see make_ready)
    except ImportError:
        raise RequestError("functions in JavaScript want Python 3.11 or 3.12 here, or the package quickjs") from None

    context = quickjs.Context()
    context.set_memory_limit(MEMORY)
    context.set_max_stack_size(STACK)
    context.set_time_limit(SECONDS)
    context.set("given", json.dumps(inputs))
    try:
        context.eval(_RUN % code)
        jobs = 0
        while context.execute_pending_job():
            jobs += 1
            if jobs > MAX_JOBS:
                raise RequestError("the function awaits without end")
        error, value = context.eval("answer.error"), context.eval("answer.value")
    except quickjs.JSException as trouble:
        raise RequestError(str(trouble).splitlines()[0]) from trouble
    if error is not None:
        raise RequestError(str(error))
    if value is None:
        raise RequestError("the function awaits something that never comes")
    return json.loads(value)


def python(code: str, inputs: Mapping[str, Any]) -> Any:
    """The value of an expression."""
    from sessions_app.workflows.language import expressions  # noqa: PLC0415  (see make_ready)

    try:
        return expressions.evaluate_expression(code, inputs)
    except expressions.ExpressionError as error:
        raise RequestError(str(error)) from error


def regex(pattern: str, text: str) -> str | None:
    """The first group, or the whole, of the first match."""
    try:
        found = re.search(pattern, text, re.MULTILINE)
    except re.error as error:
        raise RequestError(f"the pattern {pattern!r} is none: {error}") from error
    if found is None:
        return None
    return found.group(1) if found.re.groups else found.group()


def schema(schema: dict[str, Any], value: Any) -> list[str]:
    """What of a value does not keep to a JSON Schema; references lead nowhere but into the schema itself."""
    import jsonschema  # noqa: PLC0415  (see make_ready)

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        return [f"{error.json_path}: {error.message[:300]}" for error in list(kind(schema).iter_errors(value))[:20]]
    except jsonschema.exceptions.SchemaError as error:
        raise RequestError(f"the schema is none: {error.message}") from error
    except Exception as error:  # what a schema refers to is anything
        raise RequestError(f"the schema cannot be used: {error}") from error


OPERATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "javascript": javascript,
    "python": python,
    "regex": regex,
    "schema": schema,
}


MODULES: Final = {
    "javascript": "quickjs",
    "schema": "jsonschema",
    "python": "sessions_app.workflows.language.expressions",
}


def handle_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request: ``{"operation", …arguments}`` to ``{"value"}`` or ``{"error"}``."""
    arguments = dict(request)
    try:
        return {"value": OPERATIONS[arguments.pop("operation")](**arguments)}
    except RequestError as error:
        return {"error": str(error)[:2000]}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it goes too deep"}


def preload_modules(requests: Sequence[Mapping[str, Any]]) -> None:
    """Import what these need and no more, for it takes longer than they do, and soon no file can be opened."""
    for operation in {str(request["operation"]) for request in requests}:
        with contextlib.suppress(ImportError):  # said when it is used
            importlib.import_module(MODULES.get(operation, "re"))


def limit_process() -> None:
    """Give up what is not needed; nothing of it can be had back."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 1, SECONDS + 2))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main() -> None:
    """One list of requests, one list of answers."""
    requests = json.load(sys.stdin)
    preload_modules(requests)
    limit_process()
    answers = json.dumps([handle_request(request) for request in requests])
    sys.stdout.write(answers if len(answers) <= MAX_OUTPUT else json.dumps([{"error": "it answers too much"}]))


if __name__ == "__main__":
    main()
