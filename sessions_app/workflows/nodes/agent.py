"""A turn of an agent. Its session goes on where ``sessionId`` comes in, and a new one begins where none does."""

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
"""Characters of the name of an output."""
FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT = "taskPrompt", "iteratePrompt"
"""Inputs of an agent that keeps its session: what it is told first, and what in the iterations after."""
REPAIR_PROMPT: Final = """\
Your answer cannot be used: {trouble}.
Answer once more, with nothing but JSON that keeps to this schema:
{schema}"""
_MODEL: Final = re.compile(r"[^\W_][\w .:/@+()\[\]~-]*\Z")
"""It becomes a word of a command line: nothing that could be taken for an option, or for several words of one."""
_TYPES: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


class AgentSettings(NodeData):
    """Settings of an agent."""

    runner: str | None = Field(default=None, max_length=200)
    model: str | None = Field(default=None, max_length=200)
    prompt: str | None = None
    prompt_files: list[str] | None = None
    output_schema: str | dict[str, Any] | None = None
    resumable: bool = False
    timeout: int = Field(default=TIMEOUT, ge=1, le=604_800)

    @property
    def keeps_its_session(self) -> bool:
        """In a loop it goes on in the session of the iteration before, without a wire that says so."""
        names = {one.name for one in self.inputs or ()}
        return self.resumable or {FIRST_PROMPT_INPUT, LATER_PROMPT_INPUT} <= names

    @property
    def parsed_schema(self) -> dict[str, Any] | None:
        """The schema of its answer; None without one, ValueError for a text that is none."""
        if not isinstance(self.output_schema, str):
            return self.output_schema
        if not self.output_schema.strip():
            return None
        found = json.loads(self.output_schema)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return found


def implied_outputs(settings: AgentSettings) -> Iterable[Port]:
    """What every agent gives, and one output for each property of its schema."""
    yield from (make_port("output", "string"), make_port("sessionId", "string"), make_port("exitCode", "number"))
    try:
        properties = (settings.parsed_schema or {}).get("properties", {})
    except (ValueError, RecursionError):
        return  # ``check`` tells of it
    for name, shape in properties.items() if isinstance(properties, dict) else ():
        if not 1 <= len(name) <= MAX_NAME:
            continue  # no output can be called so; ``structured`` has it all the same
        word = shape.get("type") if isinstance(shape, dict) else None
        kind = _TYPES.get(word, "json") if isinstance(word, str) else "json"
        yield Port.model_validate({"name": name, "type": kind})


def template_texts(settings: AgentSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """The prompt."""
    if settings.prompt is not None:
        yield ("prompt",), settings.prompt


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Its schema is one, its model has a name, and its files stay in the workspace."""
    settings = node.settings
    assert isinstance(settings, AgentSettings)  # noqa: S101  (its type's)
    try:
        _ = settings.parsed_schema
    except (ValueError, RecursionError) as error:
        yield SettingsIssue(
            code="schema", message=f"outputSchema is no JSON Schema: {error}", fix="Correct it.", key=("outputSchema",)
        )
    if settings.model and not _MODEL.match(settings.model):
        yield SettingsIssue(
            code="model", message=f"“{settings.model}” is no name of a model", fix="Correct it.", key=("model",)
        )
    for path in settings.prompt_files or ():
        if not is_relative_below(path):
            yield SettingsIssue(
                code="path",
                message=f"“{path}” leads out of the workspace",
                fix="Write it relative.",
                key=("promptFiles",),
            )


def begin_node(moment: NodeContext) -> BeginResult:
    """What the agent is told, and in which session: of an input, else the one that it keeps, else a new one."""
    settings = moment.node.settings
    assert isinstance(settings, AgentSettings)  # noqa: S101  (its type's)
    later = moment.inputs.get(LATER_PROMPT_INPUT)
    told = later.get("sessionId") if isinstance(later, dict) else None
    session = to_text(moment.inputs.get("sessionId") or told or moment.session)
    try:
        prompt = build_prompt(moment, settings, going_on=bool(session))
    except TooLong as error:
        return NodeFailed(f"the prompt is too long: {error}")
    if not prompt.strip() and not settings.prompt_files:
        return NodeFailed("there is no prompt: nothing came in, and the node has none")
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


def build_prompt(moment: NodeContext, settings: AgentSettings, *, going_on: bool) -> str:
    """What came in wins over what is written, unless that has what came in within it."""
    if moment.retries and going_on and "feedback" not in _requested_settings(settings):
        return moment.feedback
    if going_on and moment.inputs.get(LATER_PROMPT_INPUT) is not None:
        later = moment.inputs[LATER_PROMPT_INPUT]
        return to_text(later.get("feedback", later) if isinstance(later, dict) else later)
    given = moment.inputs.get("prompt")
    if given is None and port_named(moment.node.inputs, FIRST_PROMPT_INPUT) is not None and settings.prompt is None:
        given = moment.inputs.get(FIRST_PROMPT_INPUT)
    if given is not None and "prompt" not in _requested_settings(settings):
        return to_text(given)
    return render_template(settings.prompt or "", moment.look_up)


def _requested_settings(settings: AgentSettings) -> set[str]:
    return {port for name, port, _ in find_references(settings.prompt or "") if name == INPUTS_NAME}


def end_node(node: GraphNode, done: FinishedWork, limited: RunInSandbox) -> EndResult:
    """``result`` has text, sessionId and maybe error. The session is told of a failed turn too, so it can go on.

    An answer that does not keep to its schema is asked for once more, in the same session.
    """
    result = done.result
    text, error = str(result.get("text", "")).strip(), str(result.get("error") or "")
    settings = node.settings
    assert isinstance(settings, AgentSettings)  # noqa: S101  (its type's)
    plain: dict[str, Any] = dict.fromkeys(("output", "response"), text)
    plain |= {"sessionId": result.get("sessionId"), "exitCode": int(bool(error))}
    schema = settings.parsed_schema
    structured, trouble = parse_structured_answer(text, schema, limited) if schema is not None else (None, "")
    if trouble and not error and result.get("sessionId") and not done.request.get("isRepair"):
        asked = REPAIR_PROMPT.format(trouble=trouble, schema=json.dumps(schema, ensure_ascii=False))
        return WorkRequest(
            {**done.request, "prompt": asked, "sessionId": result["sessionId"], "promptFiles": [], "isRepair": True}
        )
    wanted = (schema or {}).get("properties", {})
    plain |= dict.fromkeys(wanted) | {"structured": structured}
    plain |= {name: value for name, value in structured.items() if name in wanted} if structured else {}
    outputs, misfit = extract_outputs(node.outputs, plain, text, limited)
    reason = error or trouble or misfit
    return NodeFailed(reason, outputs) if reason else NodeFinished(outputs)


def parse_structured_answer(text: str, schema: Mapping[str, Any], limited: RunInSandbox) -> tuple[Any, str]:
    """The JSON in an answer and what is wrong with it or “”: the whole text, or the last block of it that is JSON."""
    value = _find_json(text)
    if value is None:
        return None, "the answer holds no JSON, which outputSchema wants"
    try:
        (wrong,) = limited([{"operation": "schema", "schema": schema, "value": value}])
    except SandboxError as error:
        return None, str(error)
    return value if isinstance(
        value, dict
    ) else None, f"the answer does not keep to outputSchema: {wrong[0]}" if wrong else ""


def _find_json(text: str) -> Any:
    fenced = [part.removeprefix("json").strip() for part in text.split("```")[1::2]]
    begin, end = text.find("{"), text.rfind("}")
    for candidate in (text, *reversed(fenced), text[begin : end + 1] if 0 <= begin < end else ""):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def keeps_session(node: GraphNode) -> bool:
    """Whether a node is an agent that keeps its session from iteration to iteration."""
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
