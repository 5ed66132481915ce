"""The node type for a script that ``sh`` runs in the workspace of the run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language import shell_script
from sessions_app.workflows.language.files import is_relative_below
from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.language.values import LineCounter
from sessions_app.workflows.nodes import (
    BeginResult,
    EndResult,
    FinishedWork,
    NodeContext,
    NodeFailed,
    NodeFinished,
    NodeType,
    RunInSandbox,
    SettingsIssue,
    WorkRequest,
    extract_outputs,
)

TIMEOUT: Final = 600
_SECOND_SHELL: Final = re.compile(r"\b(?:eval|ssh|(?:ba|da|z)?sh\s+-c)\b")


class ShellSettings(NodeData):
    """Settings of a shell node. ``commands`` is the older form of a script, one command for each entry."""

    script: str | None = None
    commands: list[str] | None = None
    script_files: list[str] | None = None
    timeout: int = Field(default=TIMEOUT, ge=1, le=86_400)


def template_texts(settings: ShellSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """Yield the script, or the commands."""
    if settings.script is not None:
        yield ("script",), settings.script
    for index, command in enumerate(settings.commands or ()):
        yield ("commands", index), command


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that there is a script, and that no value in it would be interpreted as code."""
    settings = node.settings_of(ShellSettings)
    if not any((settings.script, settings.commands, settings.script_files)):
        yield SettingsIssue(
            code="no_script", message="the step has no script, so it does nothing", fix="Add “script”.", is_error=False
        )
    for path in settings.script_files or ():
        if not is_relative_below(path):
            yield SettingsIssue(
                code="path",
                message=f"“{path}” is outside the workspace",
                fix="Use a path relative to the workspace, without “..”.",
                key=("scriptFiles",),
            )
    for key, text in template_texts(settings):
        first = int("\n" in text)
        for line, message in shell_script.find_script_problems(text):
            yield SettingsIssue(code="template_place", message=message, fix="", key=key, below=first + line)
        for line in _lines_read_as_script(text):
            yield SettingsIssue(
                code="read_twice",
                message="the command passes a value to another shell, which interprets it as code",
                fix="Use the environment variable of the input there instead, as in “$INPUT_NAME”.",
                key=key,
                below=first + line,
                is_error=False,
            )


def _lines_read_as_script(text: str) -> Iterator[int]:
    """Yield the lines, from 0, on which a template follows a command that interprets its arguments as code."""
    lines = LineCounter(text)
    line_end, template, is_reported = -1, -1, False
    for found in _SECOND_SHELL.finditer(text):
        if found.end() > line_end:
            line_end = text.find("\n", found.end())
            if line_end < 0:
                line_end = len(text)
            template = text.rfind("{{", found.end(), line_end)
            is_reported = False
        if template >= found.end() and not is_reported:
            is_reported = True
            yield lines.before(found.start())


def begin_node(context: NodeContext) -> BeginResult:
    """Request the script with its variables: ``INPUT_<NAME>`` for each input, and one for each template."""
    settings = context.node.settings_of(ShellSettings)
    try:
        text = shell_script.prepare_script(build_script(settings), context.look_up)
        environment = dict(text.environment) | _input_variables(context.inputs)
    except shell_script.ShellScriptError as error:
        return NodeFailed(str(error))
    cwd = str(context.inputs.get("cwd") or ".")
    if not is_relative_below(cwd):
        return NodeFailed(f"the directory “{cwd}” is outside the workspace")
    return WorkRequest(
        {
            "kind": "shell",
            "script": text.script,
            "environment": environment,
            "cwd": cwd,
            "timeout": settings.timeout,
        }
    )


def build_script(settings: ShellSettings) -> str:
    """Return one script. Each of several commands runs in a subshell, and the first failure ends the script."""
    if settings.script is not None:
        return settings.script
    parts = list(settings.commands or ())
    parts += [f"sh ./{_quote_path(path)}" for path in settings.script_files or ()]
    if len(parts) == 1:
        return parts[0]
    return "\n".join(f"(\n{part}\n) || exit $?" for part in parts)


def _quote_path(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _input_variables(inputs: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in inputs.items():
        variable = f"INPUT_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
        if not name.startswith(HIDDEN_PORT):
            found.setdefault(variable, shell_script.environment_value(value, f"the input “{name}”"))
    return found


def end_node(node: GraphNode, done: FinishedWork, run_in_sandbox: RunInSandbox) -> EndResult:
    """Return the outputs of a script, even of a failed one.

    ``result`` has stdout, stderr, exitCode and possibly error.
    """
    result = done.result
    stdout = str(result.get("stdout", "")).rstrip("\n")
    stderr = str(result.get("stderr", "")).rstrip("\n")
    code: Any = result.get("exitCode")
    plain = {"output": stdout, "stdout": stdout, "stderr": stderr, "exitCode": code}
    outputs, problem = extract_outputs(node.outputs, plain, stdout, run_in_sandbox)
    if result.get("error"):
        return NodeFailed(str(result["error"]), outputs)
    if code != 0:
        if isinstance(code, int) and code < 0:
            return NodeFailed(f"the script ended with signal {-code}", outputs)
        return NodeFailed(f"the script ended with exit code {code}", outputs)
    if problem:
        return NodeFailed(problem, outputs)
    return NodeFinished(outputs)


TYPES: Final = (
    NodeType(
        name="shell",
        title="Shell",
        settings=ShellSettings,
        aliases=("script",),
        inputs=(make_port("input"),),
        outputs=(
            make_port("output", "string"),
            make_port("stdout", "string"),
            make_port("stderr", "string"),
            make_port("exitCode", "number"),
        ),
        texts=template_texts,
        check=check_settings,
        begin=begin_node,
        end=end_node,
    ),
)
