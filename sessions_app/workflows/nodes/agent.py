"""The node type for one turn of an agent: in the session of the input ``sessionId``, or else in a new session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language.files import is_relative_below
from sessions_app.workflows.language.graph import GraphNode
from sessions_app.workflows.language.sandbox import SandboxError
from sessions_app.workflows.language.schema import NodeData, Port, make_port, port_named
from sessions_app.workflows.language.values import INPUTS_NAME, TooLong, find_references, render_template, to_text
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

TIMEOUT: Final = 3_600
MAX_NAME: Final = 200
"""Characters of an output name."""
FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT = "taskPrompt", "iteratePrompt"
"""Inputs of an agent that keeps its session: its first prompt, and its prompt in later iterations."""
REPAIR_PROMPT: Final = """\
Your answer cannot be used: {problem}.
Answer again with nothing but JSON that conforms to this schema:
{schema}"""
_MODEL: Final = re.compile(r"[^\W_][\w .:/@+()\[\]~-]*\Z")
"""A model name becomes a command-line argument, so it must not look like an option or like several arguments."""
_TYPES: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


class AgentSettings(NodeData):
    """Settings of an agent node."""

    runner: str | None = Field(default=None, max_length=200)
    model: str | None = Field(default=None, max_length=200)
    prompt: str | None = None
    prompt_files: list[str] | None = None
    output_schema: str | dict[str, Any] | None = None
    resumable: bool = False
    timeout: int = Field(default=TIMEOUT, ge=1, le=604_800)

    @property
    def keeps_its_session(self) -> bool:
        """Whether the node continues the session of the previous iteration without an edge for ``sessionId``."""
        names = {port.name for port in self.inputs or ()}
        return self.resumable or {FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT} <= names

    @property
    def parsed_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the answer; None without one. Raises ValueError if it is not valid JSON."""
        if not isinstance(self.output_schema, str):
            return self.output_schema
        if not self.output_schema.strip():
            return None
        found = json.loads(self.output_schema)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found


def implied_outputs(settings: AgentSettings) -> Iterable[Port]:
    """Yield the outputs of every agent node, and one output for each property of its schema."""
    yield from (make_port("output", "string"), make_port("sessionId", "string"), make_port("exitCode", "number"))
    try:
        properties = (settings.parsed_schema or {}).get("properties", {})
    except (ValueError, RecursionError):
        return  # ``check_settings`` reports it
    if not isinstance(properties, dict):
        return
    for name, shape in properties.items():
        if not 1 <= len(name) <= MAX_NAME:
            continue  # not a valid output name; ``structured`` still contains the value
        yield Port.model_validate({"name": name, "type": _port_type(shape)})


def _port_type(shape: Any) -> str:
    """Return the port type for a property of a JSON Schema."""
    if isinstance(shape, dict) and isinstance(shape.get("type"), str):
        return _TYPES.get(shape["type"], "json")
    return "json"


def template_texts(settings: AgentSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """Yield the prompt."""
    if settings.prompt is not None:
        yield ("prompt",), settings.prompt


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check the schema, the model name, and that the prompt files are in the workspace."""
    settings = node.settings_of(AgentSettings)
    try:
        _ = settings.parsed_schema
    except (ValueError, RecursionError) as error:
        yield SettingsIssue(
            code="schema",
            message=f"outputSchema is not a JSON Schema: {error}",
            fix="Correct the schema.",
            key=("outputSchema",),
        )
    if settings.model and not _MODEL.match(settings.model):
        yield SettingsIssue(
            code="model", message=f"“{settings.model}” is not a model name", fix="Correct the name.", key=("model",)
        )
    for path in settings.prompt_files or ():
        if not is_relative_below(path):
            yield SettingsIssue(
                code="path",
                message=f"“{path}” is outside the workspace",
                fix="Use a path relative to the workspace, without “..”.",
                key=("promptFiles",),
            )


def begin_node(context: NodeContext) -> BeginResult:
    """Request a turn: its prompt, and its session (from an input, else the one the node keeps, else a new one)."""
    settings = context.node.settings_of(AgentSettings)
    session = to_text(context.inputs.get("sessionId") or _session_of_later_prompt(context) or context.session)
    try:
        prompt = build_prompt(context, settings, continues_session=bool(session))
    except TooLong as error:
        return NodeFailed(f"the prompt is too long: {error}")
    if not prompt.strip() and not settings.prompt_files:
        return NodeFailed("the step has no prompt, and received none as an input")
    return WorkRequest(
        {
            "kind": "agent",
            "prompt": prompt,
            "promptFiles": settings.prompt_files or [],
            "sessionId": session,
            "runner": settings.runner or "",
            "model": settings.model or "",
            "outputSchema": settings.parsed_schema,
            "timeout": settings.timeout,
        }
    )


def _session_of_later_prompt(context: NodeContext) -> Any:
    later = context.inputs.get(LATER_PROMPT_INPUT)
    if isinstance(later, dict):
        return later.get("sessionId")
    return None


def build_prompt(context: NodeContext, settings: AgentSettings, *, continues_session: bool) -> str:
    """Return the prompt: a received prompt replaces the written one, unless that one contains it as a template."""
    if context.retries and continues_session and "feedback" not in _referenced_inputs(settings):
        return context.feedback
    if continues_session and context.inputs.get(LATER_PROMPT_INPUT) is not None:
        later = context.inputs[LATER_PROMPT_INPUT]
        if isinstance(later, dict):
            later = later.get("feedback", later)
        return to_text(later)
    given = context.inputs.get("prompt")
    if given is None and port_named(context.node.inputs, FIRST_PROMPT_INPUT) is not None and settings.prompt is None:
        given = context.inputs.get(FIRST_PROMPT_INPUT)
    if given is not None and "prompt" not in _referenced_inputs(settings):
        return to_text(given)
    return render_template(settings.prompt or "", context.look_up)


def _referenced_inputs(settings: AgentSettings) -> set[str]:
    return {port for name, port, _ in find_references(settings.prompt or "") if name == INPUTS_NAME}


def end_node(node: GraphNode, done: FinishedWork, run_in_sandbox: RunInSandbox) -> EndResult:
    """Return the outputs of a finished turn. ``result`` has text, sessionId and possibly error.

    ``sessionId`` is an output of a failed turn, too, so that a later node can continue the session. An answer that
    does not conform to the schema is requested once more, in the same session.
    """
    result = done.result
    text = str(result.get("text", "")).strip()
    error = str(result.get("error") or "")
    session_id = result.get("sessionId")
    schema = node.settings_of(AgentSettings).parsed_schema
    structured, problem = None, ""
    if schema is not None:
        structured, problem = parse_structured_answer(text, schema, run_in_sandbox)
    if problem and not error and session_id and not done.request.get("isRepair"):
        prompt = REPAIR_PROMPT.format(problem=problem, schema=json.dumps(schema, ensure_ascii=False))
        changes = {"prompt": prompt, "sessionId": session_id, "promptFiles": [], "isRepair": True}
        return WorkRequest(dict(done.request) | changes)
    plain: dict[str, Any] = {
        "output": text,
        "response": text,
        "sessionId": session_id,
        "exitCode": int(bool(error)),
    }
    properties = (schema or {}).get("properties", {})
    plain |= dict.fromkeys(properties)
    plain["structured"] = structured
    for name, value in (structured or {}).items():
        if name in properties:
            plain[name] = value
    outputs, extraction_problem = extract_outputs(node.outputs, plain, text, run_in_sandbox)
    reason = error or problem or extraction_problem
    if reason:
        return NodeFailed(reason, outputs)
    return NodeFinished(outputs)


def parse_structured_answer(text: str, schema: Mapping[str, Any], run_in_sandbox: RunInSandbox) -> tuple[Any, str]:
    """Return the JSON of an answer, and what is wrong with it or “”.

    The JSON is the whole text, or its last block that is JSON.
    """
    value = _find_json(text)
    if value is None:
        return None, "the answer contains no JSON, which outputSchema requires"
    try:
        (violations,) = run_in_sandbox([{"operation": "schema", "schema": schema, "value": value}])
    except SandboxError as error:
        return None, str(error)
    problem = ""
    if violations:
        problem = f"the answer does not conform to outputSchema: {violations[0]}"
    if not isinstance(value, dict):
        return None, problem
    return value, problem


def _find_json(text: str) -> Any:
    blocks = [part.removeprefix("json").strip() for part in text.split("```")[1::2]]
    candidates = [text, *reversed(blocks)]
    begin, end = text.find("{"), text.rfind("}")
    if 0 <= begin < end:
        candidates.append(text[begin : end + 1])
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def keeps_session(node: GraphNode) -> bool:
    """Return whether a node is an agent that keeps its session between iterations."""
    return isinstance(node.settings, AgentSettings) and node.settings.keeps_its_session


TYPES: Final = (
    NodeType(
        name="agent",
        title="Agent",
        settings=AgentSettings,
        inputs=(make_port("prompt", "string"), make_port("sessionId", "string")),
        implied=implied_outputs,
        texts=template_texts,
        check=check_settings,
        begin=begin_node,
        end=end_node,
    ),
)
