"""The sandbox process: runs functions, regular expressions and schema checks of workflows in isolation.

Run as ``python -m sessions_app.workflows.language.sandbox_process``, it reads a JSON list of requests from its input
and writes the list of answers to its output. It can open no files and start no processes, and the system ends it when
it has used up its time or memory.
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
    """The request itself has failed; users see the message."""


def javascript(code: str, inputs: Mapping[str, Any]) -> Any:
    """Return the result of a function body, whose argument is ``inputs`` and which may use ``await``."""
    try:
        import quickjs  # noqa: PLC0415  (see preload_modules)
    except ImportError:
        raise RequestError(
            "functions in JavaScript need the package quickjs, which this installation does not have"
        ) from None

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
                raise RequestError("the function awaits too many promises")
        error, value = context.eval("answer.error"), context.eval("answer.value")
    except quickjs.JSException as trouble:
        raise RequestError(str(trouble).splitlines()[0]) from trouble
    if error is not None:
        raise RequestError(str(error))
    if value is None:
        raise RequestError("the function awaits a promise that never settles")
    return json.loads(value)


def python(code: str, inputs: Mapping[str, Any]) -> Any:
    """Return the value of an expression."""
    from sessions_app.workflows.language import expressions  # noqa: PLC0415  (see preload_modules)

    try:
        return expressions.evaluate_expression(code, inputs)
    except expressions.ExpressionError as error:
        raise RequestError(str(error)) from error


def regex(pattern: str, text: str) -> str | None:
    """Return the first group of the first match, or the whole match if the pattern has no group."""
    try:
        found = re.search(pattern, text, re.MULTILINE)
    except re.error as error:
        raise RequestError(f"the regular expression {pattern!r} is invalid: {error}") from error
    if found is None:
        return None
    if found.re.groups:
        return found.group(1)
    return found.group()


def schema(schema: dict[str, Any], value: Any) -> list[str]:
    """Return at most 20 violations of a JSON Schema. Only references within the schema itself are followed."""
    import jsonschema  # noqa: PLC0415  (see preload_modules)

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        return [f"{error.json_path}: {error.message[:300]}" for error in list(kind(schema).iter_errors(value))[:20]]
    except jsonschema.exceptions.SchemaError as error:
        raise RequestError(f"the schema is not a valid JSON Schema: {error.message}") from error
    except Exception as error:  # a reference in a schema can raise anything
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
    """Carry out one request ``{"operation", …arguments}``; return ``{"value"}`` or ``{"error"}``."""
    arguments = dict(request)
    try:
        return {"value": OPERATIONS[arguments.pop("operation")](**arguments)}
    except RequestError as error:
        return {"error": str(error)[:2000]}
    except MemoryError:
        return {"error": "it used too much memory"}
    except RecursionError:
        return {"error": "it is nested too deeply"}


def preload_modules(requests: Sequence[Mapping[str, Any]]) -> None:
    """Import the modules that the requests need, before the process gives up the right to open files.

    Only those: importing takes longer than most requests.
    """
    for operation in {str(request["operation"]) for request in requests}:
        with contextlib.suppress(ImportError):  # reported when it is used
            importlib.import_module(MODULES.get(operation, "re"))


def limit_process() -> None:
    """Give up, for good, every right and resource that is not needed."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 1, SECONDS + 2))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main() -> None:
    """Read one list of requests, and write one list of answers."""
    requests = json.load(sys.stdin)
    preload_modules(requests)
    limit_process()
    answers = json.dumps([handle_request(request) for request in requests])
    if len(answers) > MAX_OUTPUT:
        answers = json.dumps([{"error": f"the result is larger than {MAX_OUTPUT >> 20} MiB"}])
    sys.stdout.write(answers)


if __name__ == "__main__":
    main()
