"""A script for ``sh`` in the workspace of the run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows import shell_text
from sessions_app.workflows.extraction import extracted
from sessions_app.workflows.graph import HIDDEN, Node
from sessions_app.workflows.library import is_inside
from sessions_app.workflows.nodes import (
    Ask,
    Beginning,
    Complaint,
    Done,
    Ending,
    Failed,
    Finished,
    Limited,
    Moment,
    NodeType,
)
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData
from sessions_app.workflows.templates import LineCounter

TIMEOUT: Final = 600
_SECOND_SHELL: Final = re.compile(r"\b(?:eval|ssh|(?:ba|da|z)?sh\s+-c)\b")


class ShellSettings(NodeData):
    """Settings of a shell. ``commands`` is the older way to write a script, one command each."""

    script: str | None = None
    commands: list[str] | None = None
    script_files: list[str] | None = None
    timeout: int = Field(default=TIMEOUT, ge=1, le=86_400)


def texts(settings: ShellSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """The script or the commands."""
    if settings.script is not None:
        yield ("script",), settings.script
    for index, command in enumerate(settings.commands or ()):
        yield ("commands", index), command


def check(node: Node) -> Iterable[Complaint]:
    """There is something to run, and no value of it would be read as a script."""
    settings = node.settings
    assert isinstance(settings, ShellSettings)  # noqa: S101  (its type's)
    if not any((settings.script, settings.commands, settings.script_files)):
        yield Complaint(code="no_script", message="there is no script", fix="Add script.", is_error=False)
    for path in settings.script_files or ():
        if not is_inside(path):
            yield Complaint(
                code="path",
                message=f"“{path}” leads out of the workspace",
                fix="Write it relative.",
                key=("scriptFiles",),
            )
    for key, text in texts(settings):
        first = 1 if "\n" in text else 0
        for line, message in shell_text.troubles(text):
            yield Complaint(code="template_place", message=message, fix="", key=key, below=first + line)
        for line in _read_twice(text):
            yield Complaint(
                code="read_twice",
                message="a value is handed to another shell, which reads it as a script",
                fix="Name the variable there instead, as in “$INPUT_NAME”.",
                key=key,
                below=first + line,
                is_error=False,
            )


def _read_twice(text: str) -> Iterator[int]:
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


def begin(moment: Moment) -> Beginning:
    """The script to run and its variables: ``INPUT_`` and the name of each input, and one for each template."""
    settings = moment.node.settings
    assert isinstance(settings, ShellSettings)  # noqa: S101  (its type's)
    try:
        text = shell_text.prepare(script_of(settings), moment.look_up)
        environment = dict(text.environment) | _inputs(moment.inputs)
    except shell_text.ShellTextError as error:
        return Failed(str(error))
    cwd = str(moment.inputs.get("cwd") or ".")
    if not is_inside(cwd):
        return Failed(f"“{cwd}” leads out of the workspace")
    request = {"script": text.script, "environment": environment, "cwd": cwd, "timeout": settings.timeout}
    return Ask({"kind": "shell", **request})


def script_of(settings: ShellSettings) -> str:
    """One script; of several commands each runs on its own, and the first that fails is the last."""
    if settings.script is not None:
        return settings.script
    parts = [*(settings.commands or ()), *(f"sh ./{_quoted(path)}" for path in settings.script_files or ())]
    return parts[0] if len(parts) == 1 else "\n".join(f"(\n{part}\n) || exit $?" for part in parts)


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in inputs.items():
        variable = f"INPUT_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
        if not name.startswith(HIDDEN):
            found.setdefault(variable, shell_text.environment_text(value, f"the input “{name}”"))
    return found


def end(node: Node, done: Done, limited: Limited) -> Ending:
    """``result`` has stdout, stderr, exitCode and maybe error. What was said is there of a failed script too."""
    result = done.result
    stdout, stderr = (str(result.get(name, "")).rstrip("\n") for name in ("stdout", "stderr"))
    code = result.get("exitCode")
    plain = {"output": stdout, "stdout": stdout, "stderr": stderr, "exitCode": code}
    outputs, trouble = extracted(node.outputs, plain, stdout, limited)
    if result.get("error"):
        return Failed(str(result["error"]), outputs)
    if code != 0:
        return Failed(f"the script ended with exit code {code}", outputs)
    return Failed(trouble, outputs) if trouble else Finished(outputs)


TYPE = NodeType(
    name="shell",
    title="Shell",
    settings=ShellSettings,
    aliases=("script",),
    inputs=(port("input"),),
    outputs=(port("output", "string"), port("stdout", "string"), port("stderr", "string"), port("exitCode", "number")),
    texts=texts,
    check=check,
    begin=begin,
    end=end,
)
