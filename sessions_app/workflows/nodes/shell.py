"""A script for ``sh`` in the workspace of the run."""

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
    """Settings of a shell. ``commands`` is the older way to write a script, one command each."""

    script: str | None = None
    commands: list[str] | None = None
    script_files: list[str] | None = None
    timeout: int = Field(default=TIMEOUT, ge=1, le=86_400)


def template_texts(settings: ShellSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """The script or the commands."""
    if settings.script is not None:
        yield ("script",), settings.script
    for index, command in enumerate(settings.commands or ()):
        yield ("commands", index), command


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """There is something to run, and no value of it would be read as a script."""
    settings = node.settings
    assert isinstance(settings, ShellSettings)  # noqa: S101  (its type's)
    if not any((settings.script, settings.commands, settings.script_files)):
        yield SettingsIssue(code="no_script", message="there is no script", fix="Add script.", is_error=False)
    for path in settings.script_files or ():
        if not is_relative_below(path):
            yield SettingsIssue(
                code="path",
                message=f"“{path}” leads out of the workspace",
                fix="Write it relative.",
                key=("scriptFiles",),
            )
    for key, text in template_texts(settings):
        first = 1 if "\n" in text else 0
        for line, message in shell_script.find_script_problems(text):
            yield SettingsIssue(code="template_place", message=message, fix="", key=key, below=first + line)
        for line in _lines_read_as_script(text):
            yield SettingsIssue(
                code="read_twice",
                message="a value is handed to another shell, which reads it as a script",
                fix="Name the variable there instead, as in “$INPUT_NAME”.",
                key=key,
                below=first + line,
                is_error=False,
            )


def _lines_read_as_script(text: str) -> Iterator[int]:
    """The lines, from 0, on which a template follows a command that reads its arguments as a script."""
    lines, line_end, template, is_told = LineCounter(text), -1, -1, False
    for found in _SECOND_SHELL.finditer(text):
        if found.end() > line_end:
            line_end = text.find("\n", found.end())
            line_end = len(text) if line_end < 0 else line_end
            template = text.rfind("{{", found.end(), line_end)
            is_told = False
        if template >= found.end() and not is_told:
            is_told = True
            yield lines.before(found.start())


def begin_node(moment: NodeContext) -> BeginResult:
    """The script to run and its variables: ``INPUT_`` and the name of each input, and one for each template."""
    settings = moment.node.settings
    assert isinstance(settings, ShellSettings)  # noqa: S101  (its type's)
    try:
        text = shell_script.prepare_script(build_script(settings), moment.look_up)
        environment = dict(text.environment) | _input_variables(moment.inputs)
    except shell_script.ShellScriptError as error:
        return NodeFailed(str(error))
    cwd = str(moment.inputs.get("cwd") or ".")
    if not is_relative_below(cwd):
        return NodeFailed(f"“{cwd}” leads out of the workspace")
    request = {"script": text.script, "environment": environment, "cwd": cwd, "timeout": settings.timeout}
    return WorkRequest({"kind": "shell", **request})


def build_script(settings: ShellSettings) -> str:
    """One script; of several commands each runs on its own, and the first that fails is the last."""
    if settings.script is not None:
        return settings.script
    parts = [*(settings.commands or ()), *(f"sh ./{_quote_path(path)}" for path in settings.script_files or ())]
    return parts[0] if len(parts) == 1 else "\n".join(f"(\n{part}\n) || exit $?" for part in parts)


def _quote_path(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _input_variables(inputs: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in inputs.items():
        variable = f"INPUT_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
        if not name.startswith(HIDDEN_PORT):
            found.setdefault(variable, shell_script.environment_value(value, f"the input “{name}”"))
    return found


def end_node(node: GraphNode, done: FinishedWork, limited: RunInSandbox) -> EndResult:
    """``result`` has stdout, stderr, exitCode and maybe error. What was said is there of a failed script too."""
    result = done.result
    stdout, stderr = (str(result.get(name, "")).rstrip("\n") for name in ("stdout", "stderr"))
    code = result.get("exitCode")
    plain = {"output": stdout, "stdout": stdout, "stderr": stderr, "exitCode": code}
    outputs, trouble = extract_outputs(node.outputs, plain, stdout, limited)
    if result.get("error"):
        return NodeFailed(str(result["error"]), outputs)
    if code != 0:
        return NodeFailed(f"the script ended with exit code {code}", outputs)
    return NodeFailed(trouble, outputs) if trouble else NodeFinished(outputs)


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
