"""What the session page shows around the conversation: status, permissions, prompt queue and receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.authorization import is_isolated, may_operate
from sessions_app.agents.services.agent_setup import agent_fix
from sessions_app.agents.views.agent_settings import agent_settings_context, login_context, wants_login
from sessions_app.background.rules.background_work import (
    POLICY_TEXTS,
    SOURCE_TEXTS,
    BackgroundPolicySource,
    cpu_time,
    effective_background_policy,
    ends_sentence,
)
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    TERMINAL_STATES,
    DesiredState,
    PromptKind,
    PromptState,
    SessionState,
)
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import ContinuityReceipt, Prompt, Task, TaskSession, Turn
from sessions_app.pages.labels import (
    FIRST_START,
    POLICY_LABELS,
    PROMPT_STATE_LABELS,
    PolicyLabel,
    agent_label,
    execution_label,
    isolation_label,
    receipt_label_in_history,
)
from sessions_app.permissions.views.request_cards import count_hidden, request_cards, without_keys
from sessions_app.prompts.models import SENT_FIRST
from sessions_app.prompts.services import has_failed_in_newest_turn, refuse_prompts
from sessions_app.recovery.rules.evidence import evidence_sentences
from sessions_app.recovery.rules.resumability import Assessment, Mode, Policy, Strategy, assess_mode
from sessions_app.recovery.rules.resume_cost import usage_sentence
from sessions_app.recovery.services.assessment import can_be_taken_over, execution_of
from sessions_app.recovery.services.resume_costs import first_turns
from sessions_app.review.turn_parts import list_turn_ends
from sessions_app.sessions.rules.session_status import SessionStatus
from sessions_app.sessions.rules.situation_facts import (
    Code,
    IdleReason,
    Label,
    Situation,
    SituationFacts,
    humanize_code,
)
from sessions_app.sessions.rules.situations import situation, status_label
from sessions_app.sessions.services.situations import add_page_facts
from sessions_app.sessions.services.status import SessionReading, read_session
from sessions_app.sessions.views.session_summary import (
    WORKSPACE,
    BannerButton,
    banner_buttons,
    main_action,
    retry_buttons,
)
from sessions_app.stream.rules import usage
from sessions_app.stream.views import attached_files
from sessions_app.turns.activity import Activity, current_activity
from sessions_app.turns.models import newest_run
from sessions_app.usage.budgets import budget_of_session
from sessions_app.usage.rules.budgets import Limits, limits_text
from sessions_app.usage.rules.wording import usage_summary
from sessions_app.usage.services import session_usage
from sessions_app.waits import services as waits
from sessions_app.waits.reader import waits_of_session
from sessions_app.waits.rules.open_waits import OpenWaitRecord
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS
from sessions_app.waits.views import wait_contexts
from sessions_app.workspace.services.workspace_notes import head_sentence, ignored_sentence

MAX_RECEIPTS_SHOWN = 8
MAX_WAITS_SHOWN: Final = 20
"""Open waits that the page lists; an agent decides how many there are."""
EDITED_HERE: Final = 20_000
"""Characters of the longest queued prompt that is edited in the page itself; a longer one has a page of its own."""
MAX_EDITED_HERE: Final = 20
"""Queued prompts that are edited in the page itself; those after them have pages of their own."""
FOR_RUNNING_TURN: Final = "for the turn that is running"
MISSED_TURN: Final = "not taken by the turn that was running, so it waits for its own"
SESSION_PARTS: Final[Mapping[str, str]] = {
    "strip": "sessions/strip.html",
    "banner": "sessions/banner.html",
    "permissions": "permissions/permissions.html",
    "turns": "review/turn_ends.html",
    "activity": "sessions/activity.html",
    "ledger": "prompts/ledger.html",
    "queue": "prompts/queue.html",
    "choices": "agents/choices.html",
    "now": "prompts/send_now.html",
    "refusal": "sessions/refusal.html",
    "controls": "sessions/controls.html",
    "waits": "waits/waits.html",
    "continuity": "recovery/continuity.html",
    "agent": "agents/session_agent.html",
    "title": "sessions/title.html",
    "bar": "sessions/bar.html",
}
"""The parts of the session page with their templates. Live updates replace each as a whole."""


VIEWER_STEPS: Final[Mapping[Code, str]] = {
    Code.PERMISSION: "A member of the team has to answer.",
    Code.QUESTION: "A member of the team has to answer.",
    Code.WORKING: "",
}
"""The next step of a situation for a viewer, where that of a member would be wrong."""

VIEWER_REFUSAL = "You are a viewer of this team: you can read this conversation, but not send prompts."


class SessionPage:
    """What the page shows of a session beside its conversation, read when it is needed. Never writes.

    Every public property is a variable of the templates in ``SESSION_PARTS``. Without ``writes``, it is what a viewer
    of the team gets: no buttons and no keys. ``user`` is offered a login only if they may open a terminal.
    """

    def __init__(self, session: TaskSession, *, writes: bool = True, user: User | None = None):
        self._session, self._writes, self._user = session, writes, user

    @property
    def session(self) -> TaskSession:
        """The session itself."""
        return self._session

    @property
    def task(self) -> Task:
        """Its task."""
        return self._session.task

    @property
    def turn_ends(self) -> list[dict[str, Any]]:
        """The newest ended turns whose changes are known, for links to these, with where they ended in the log."""
        return list_turn_ends(self._session)

    # -- state -------------------------------------------------------------------------------

    @cached_property
    def _reading(self) -> SessionReading:
        return read_session(self._session)

    @property
    def status(self) -> SessionStatus:
        """The status as programs get it."""
        return self._reading.status

    @cached_property
    def _execution(self) -> ExecutorRunning | None:
        return execution_of(self._session)

    @property
    def _assessment(self) -> Assessment:
        return self._reading.assessment

    @cached_property
    def _facts(self) -> SituationFacts:
        return add_page_facts(self._session, self._reading.facts)

    @cached_property
    def _situation(self) -> Situation:
        return situation(self._facts)

    @property
    def situation(self) -> Situation:
        """The sentences of the banner."""
        shown = self._situation
        if self._writes:
            return shown
        return replace(shown, next_step=VIEWER_STEPS.get(shown.code, shown.next_step))

    @property
    def label(self) -> Label:
        """The label of its status."""
        return status_label(self._facts)

    @property
    def executor_label(self) -> Label:
        """The label of its execution."""
        reason = ""
        if self._execution is not None:
            reason = self._execution.status_reason
        return execution_label(
            self.status.executor_status,
            reason,
            error_code=self.status.error_code,
            recovering=self.status.recovering,
            unattended=bool(self.status.unattended_host),
        )

    @property
    def agent_label(self) -> Label:
        """The label of its agent."""
        return agent_label(self._facts)

    @property
    def usage(self) -> list[tuple[str, str]]:
        """What the agent has reported of tokens and costs."""
        return usage.usage_lines(self._session.usage)

    @cached_property
    def usage_total(self) -> str:
        """What all its turns have used, in words; empty before the first turn has ended."""
        return usage_summary(session_usage(self._session.id))

    @cached_property
    def budget(self) -> Limits:
        """Its own budget."""
        return budget_of_session(self._session.id)

    @property
    def budget_text(self) -> str:
        """Its own budget in words; empty if it has none."""
        return limits_text(self.budget)

    @property
    def is_over(self) -> bool:
        """Whether it or its task has ended."""
        return _is_over(self._session)

    @property
    def is_closed(self) -> bool:
        """Whether it can never run again."""
        return self._session.task.is_over or self._session.state in TERMINAL_STATES

    @property
    def workspace_starts(self) -> bool:
        """Whether its agentctl is being started."""
        return self.status.executor_status == ExecutorStatus.STARTING

    @cached_property
    def open_run(self) -> bool:
        """Whether a turn is open that may be cancelled."""
        return self._writes and self._session.runs.filter(ended_at=None, has_process=True).exists()

    @cached_property
    def activity(self) -> Activity | None:
        """What an open turn does now."""
        return current_activity(self._session)

    @property
    def output_limit(self) -> str:
        """The limit that the agent's output has reached, which may be lifted; empty: none."""
        if self._execution is None or not self._writes:
            return ""
        return self._execution.output_limit

    @property
    def isolation(self) -> Label | None:
        """That agents on its executor share a machine with Kandev or others; None: they are isolated."""
        executor = self._session.executor
        if is_isolated(executor):
            return None
        return isolation_label(executor.runtime, is_isolated=False)

    # -- what can be done --------------------------------------------------------------------

    @property
    def reads_only(self) -> bool:
        """Whether the user is a viewer."""
        return not self._writes

    @cached_property
    def buttons(self) -> list[BannerButton]:
        """The buttons of the banner."""
        if not self._writes:
            return []
        takes_over = can_be_taken_over(self._session)
        return banner_buttons(self._situation, self._assessment, takes_over=takes_over)

    @cached_property
    def main_action(self) -> BannerButton | None:
        """The one action of the line that stays at the top of the page; None: nothing is to be done now."""
        if not self._writes:
            return None
        return main_action(self._situation, self.buttons, works=self.open_run)

    @property
    def retry(self) -> BannerButton | None:
        """The button for a failed execution."""
        if not self._writes:
            return None
        return retry_buttons(self._execution, self._assessment)

    @property
    def workspace_button(self) -> BannerButton | None:
        """The button that opens the workspace without the agent."""
        live = (ExecutorStatus.READY, ExecutorStatus.STARTING)
        is_open = self._execution is not None and self._execution.status in live
        if self._writes and not is_open and assess_mode(self._assessment, Mode.WORKSPACE_ONLY).allowed:
            return WORKSPACE
        return None

    @property
    def can_stop(self) -> bool:
        """Whether there is something to stop."""
        if not self._writes:
            return False
        if self._execution is not None and self._execution.status != ExecutorStatus.STOPPED:
            return True
        return self._session.desired_state == DesiredState.RUNNING and self._session.state not in ENDED_STATES

    @property
    def can_close(self) -> bool:
        """Whether it can be closed for good."""
        return self._writes and self._session.state not in TERMINAL_STATES

    @property
    def may_wait(self) -> bool:
        """Whether a wait can begin."""
        return self._writes and waits.can_begin_wait(self._session)

    @property
    def refusal(self) -> str:
        """Why no prompt can be sent; empty: one can."""
        if not self._writes:
            return VIEWER_REFUSAL
        return composer_refusal(self._session, self._assessment)

    @property
    def policy_label(self) -> PolicyLabel | None:
        """The label of its recovery policy."""
        return POLICY_LABELS.get(self.status.policy)

    @property
    def policy_choices(self) -> list[tuple[str, str, bool]]:
        """The policies to choose from: value, text, and whether it is the present one."""
        choices = [("", "Same as the team", not self._session.policy)]
        for key, word in POLICY_LABELS.items():
            choices.append((key, word.text, key == self._session.policy))
        return choices

    # -- requests, waits and prompts ---------------------------------------------------------

    @cached_property
    def permissions(self) -> list[dict[str, Any]]:
        """The cards of permission requests and questions."""
        cards = request_cards(self._session)
        if self._writes:
            return cards
        return without_keys(cards)

    @property
    def hidden_requests(self) -> int:
        """How many open requests have no card."""
        return count_hidden(self._session, self.permissions)

    @cached_property
    def _waits(self) -> dict[str, Any]:
        return wait_contexts(self._session, self.status.wait)

    @property
    def wait(self) -> dict[str, Any] | None:
        """The open external wait."""
        found: dict[str, Any] | None = self._waits["wait"]
        return found

    @cached_property
    def open_waits(self) -> list[OpenWaitRecord]:
        """All that it waits for now, of every kind, the oldest first."""
        return waits_of_session(self._session.id, MAX_WAITS_SHOWN)

    @property
    def external_wait(self) -> OpenWaitRecord | None:
        """What is said of ``wait`` as of every open wait."""
        return next((wait for wait in self.open_waits if wait.kind in REQUESTED_KINDS), None)

    @property
    def other_waits(self) -> list[OpenWaitRecord]:
        """The open waits that are no external ones, and of which nothing else on the page tells."""
        shown = {str(card["request"].id) for card in self.permissions}
        return [wait for wait in self.open_waits if wait.kind not in REQUESTED_KINDS and wait.id not in shown]

    @property
    def past_waits(self) -> list[dict[str, Any]]:
        """The newest waits that have ended."""
        found: list[dict[str, Any]] = self._waits["past_waits"]
        return found

    @cached_property
    def _prompts(self) -> list[Prompt]:
        shown = (*_WAITING, PromptState.HELD, PromptState.INTERRUPTED)
        return list(self._session.prompts.filter(state__in=shown, resent_as=None, continued_by=None))

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The prompts that wait to be sent, in the order in which they will be."""
        waiting = [prompt for prompt in self._prompts if prompt.state in _WAITING]
        waiting.sort(key=self._sending_order)
        movable = [prompt for prompt in waiting if _is_changeable(prompt)]
        rows: list[dict[str, Any]] = []
        for prompt in waiting:
            row = self._prompt_row(prompt) | {"is_changeable": prompt in movable}
            row["turn_label"] = self._turn_label(prompt)
            if prompt in movable:
                row |= {"is_first": prompt == movable[0], "is_last": prompt == movable[-1]}
                is_short = len(prompt.text) <= EDITED_HERE and len(rows) < MAX_EDITED_HERE
                row["is_edited_here"] = is_short and not prompt.of_workflow
                row["can_send_now"] = self.status.can_steer and not prompt.steered_into and not prompt.of_workflow
            rows.append(row)
        return rows

    def _turn_label(self, prompt: Prompt) -> str:
        """Return what became of the wish to hand a prompt to the running turn; empty: nobody wanted that."""
        if prompt.steered_into and prompt.steered_into == self._open_run_key:
            return FOR_RUNNING_TURN
        if prompt.steered_into or prompt.missed_turn:
            return MISSED_TURN
        return ""

    def _sending_order(self, prompt: Prompt) -> tuple[int, int]:
        """Return a key by which prompts are sorted as the supervisor sends them (``delivery._next_prompt``)."""
        if prompt.state == PromptState.SENDING:
            before = 0
        elif prompt.steered_into:
            before = 1  # the running turn gets it
        elif prompt.kind == PromptKind.WAIT and prompt.message_id == self._open_run_key:
            before = 2
        elif prompt.kind in SENT_FIRST:
            before = 3 + SENT_FIRST.index(PromptKind(prompt.kind))
        else:
            before = 3 + len(SENT_FIRST)
        return before, prompt.queue_place

    @cached_property
    def _open_run_key(self) -> str | None:
        """The message id of the open run, read only while a queued prompt is its result or is wanted in it."""
        return self._session.runs.filter(ended_at=None).values_list("message_id", flat=True).first()

    @property
    def unsettled(self) -> list[dict[str, Any]]:
        """The prompts about which a user has to decide."""
        return [self._prompt_row(prompt) for prompt in self._prompts if prompt.state not in _WAITING]

    def _prompt_row(self, prompt: Prompt) -> dict[str, Any]:
        files = attached_files(self._session, prompt.attachments)
        return {"prompt": prompt, "label": PROMPT_STATE_LABELS[prompt.state], "files": files}

    @property
    def is_silent(self) -> bool:
        """Whether nothing was said to it yet."""
        return not self._prompts and not self._session.messages.exists()

    # -- what is known of it -----------------------------------------------------------------

    @cached_property
    def receipts(self) -> list[dict[str, Any]]:
        """The newest receipts, with what each resume cost."""
        receipts = list(self._session.receipts.with_history().with_first_turn()[:MAX_RECEIPTS_SHOWN])
        turns = first_turns(receipts)
        return [_receipt_row(receipt, turns.get(receipt.id)) for receipt in receipts]

    @property
    def continuity(self) -> Label | None:
        """What the newest receipt says; None: there was only a first start, which continued nothing."""
        newest = next(iter(self.receipts), None)
        if newest is None or newest["label"] == FIRST_START:
            return None
        label: Label = newest["label"]
        return label

    @property
    def resume_cost(self) -> dict[str, Any] | None:
        """What is known of the cost of the next resume; None if there is none to come."""
        cost = self.status.resume_cost
        if cost is None or cost["resume_strategy"] == Strategy.FRESH:
            return None
        return {
            "text": cost["text"],
            "loads": cost["resume_strategy"] == Strategy.NATIVE,
            "reported_at": _parse_time(cost["context_reported_at"]),
            "last_turn_ended_at": _parse_time(cost["last_turn_ended_at"]),
        }

    @cached_property
    def background_processes(self) -> list[dict[str, Any]]:
        """The processes that turns have left running."""
        return [
            {
                "command": each["command"],
                "since": datetime.fromisoformat(each["since"]),
                "cpu": cpu_time(each["cpu_seconds"]),
            }
            for each in self.status.background_processes
        ]

    @property
    def background_reported_at(self) -> datetime | None:
        """When they were last reported."""
        reported_at = self.status.background["reported_at"]
        return datetime.fromisoformat(reported_at) if reported_at else None

    @property
    def background_cpu(self) -> str:
        """CPU time of all of them; empty if it is unknown."""
        return cpu_time(self.status.background["cpu_seconds"])

    @property
    def background_policy_source(self) -> str:
        """Where the policy for them is set."""
        return SOURCE_TEXTS[BackgroundPolicySource(self.status.background["policy_source"])]

    @property
    def background_choices(self) -> list[tuple[str, str, bool]]:
        """The policies for them: value, text, and whether it is the present one."""
        own = self.status.background["policy"] if self.status.background["has_own_policy"] else ""
        of_profile = self._session.agent_profile.background_policy
        default = effective_background_policy("", of_profile, settings.KANDEV_BACKGROUND_PROCESSES)
        choices = [("", f"{SOURCE_TEXTS[default.source]}: {POLICY_TEXTS[default.policy].lower()}", not own)]
        return [*choices, *((policy.value, text, policy == own) for policy, text in POLICY_TEXTS.items())]

    @property
    def stop_ends(self) -> str:
        """Which processes a stop ends; empty if none is known."""
        commands = [each["command"] for each in self.background_processes]
        holds = self.status.background["is_current"]
        return ends_sentence(commands, self.status.background_process_count, is_current=holds)

    @property
    def unlisted_processes(self) -> int:
        """How many of them are not listed."""
        return self.status.background_process_count - len(self.background_processes)

    @property
    def head_sentence(self) -> str:
        """What a rebuilt worktree says about its branch."""
        return head_sentence(self._session)

    @property
    def ignored_sentence(self) -> str:
        """What a rebuilt worktree says about files that git ignores."""
        return ignored_sentence(self._session)

    @property
    def snapshot_due_since(self) -> datetime | None:
        """Since when its work waits to be saved."""
        if self._execution is None:
            return None
        return self._execution.snapshot_due_since

    @property
    def failed_prompt(self) -> str:
        """The message id of the prompt whose turn has just failed, if it can be sent again; empty: there is none."""
        if self._situation.code is not Code.TURN_FAILED or not self._writes or self.is_closed or self.queue:
            return ""
        turn = newest_run(self._session)
        prompt = self._session.prompts.filter(message_id=turn.message_id).first() if turn else None
        if prompt is None or prompt.resent_as_id or not has_failed_in_newest_turn(prompt, turn):
            return ""
        return prompt.message_id

    # -- the agent ---------------------------------------------------------------------------

    @property
    def _refused_login(self) -> bool:
        return self._situation.code is Code.TURN_FAILED and self._facts.turn_wants_login

    @property
    def _offers_login(self) -> bool:
        is_program_error = self._situation.code is Code.PROGRAM
        return self._refused_login or (is_program_error and wants_login(self._session))

    @cached_property
    def _may_log_in(self) -> bool:
        return self._user is None or may_operate(self._user, self._session)

    @cached_property
    def agent_fix(self) -> dict[str, str] | None:
        """How an agent that is missing or logged out is set up; None if that is not the problem."""
        is_about_program = self._refused_login or self._situation.code is Code.PROGRAM
        if not self._writes or not is_about_program:
            return None
        fix = agent_fix(self._session, wants_login=self._offers_login)
        if fix and fix["login"] and not self._may_log_in:
            fix["login"] = ""
        return fix

    @cached_property
    def login(self) -> dict[str, Any]:
        """The ways to log the agent in, and the progress of a login."""
        login = login_context(self._session, offers=self._offers_login, is_running=self._facts.agent_running)
        if login["methods"] and not (self._writes and self._may_log_in):
            login["methods"] = []
        return login

    @cached_property
    def _agent(self) -> dict[str, Any]:
        return agent_settings_context(self._session)

    @property
    def agent_title(self) -> Any:
        """The title that the agent gave its conversation."""
        return self._agent["agent_title"]

    @property
    def agent_settings(self) -> Any:
        """The settings that the agent offers."""
        return self._agent["agent_settings"]

    @property
    def composer_settings(self) -> Any:
        """Those of them that can be chosen in the composer."""
        return self._agent["composer_settings"]

    @property
    def agent_commands(self) -> Any:
        """The commands that it offers."""
        return self._agent["agent_commands"]

    @property
    def may_change_settings(self) -> bool:
        """Whether its settings can be changed."""
        return self._writes and bool(self._agent["may_change_settings"])

    @property
    def permission_note(self) -> Any:
        """A note on an agent that does not ask for permission."""
        return self._agent["permission_note"]

    @property
    def mcp_servers(self) -> Any:
        """The MCP servers that it was given."""
        return self._agent["mcp_servers"]


_WAITING: Final = (PromptState.QUEUED, PromptState.SENDING)


def _is_changeable(prompt: Prompt) -> bool:
    return prompt.state == PromptState.QUEUED and prompt.kind == PromptKind.USER


_VARIABLES: Final = tuple(
    name
    for name, member in vars(SessionPage).items()
    if isinstance(member, property | cached_property) and not name.startswith("_")
)


def session_context(session: TaskSession, *, writes: bool = True, user: User | None = None) -> dict[str, Any]:
    """Return the variables of all ``SESSION_PARTS``: the properties of ``SessionPage``."""
    page = SessionPage(session, writes=writes, user=user)
    return {name: getattr(page, name) for name in _VARIABLES}


def _parse_time(text: str | None) -> datetime | None:
    if text:
        return datetime.fromisoformat(text)
    return None


def _receipt_row(receipt: ContinuityReceipt, first_turn: Turn | None) -> dict[str, Any]:
    """Return a receipt as the page shows it; ``cost`` is that of the first turn after it, as its agent reports it."""
    return {
        "first_turn": first_turn,
        "cost": usage_sentence(first_turn.usage) if first_turn else "",
        "receipt": receipt,
        "label": receipt_label_in_history(receipt),
        "facts": evidence_lines(receipt.evidence),
        "sentences": evidence_sentences(receipt.evidence),
        "reason": humanize_code(receipt.reason),
    }


def composer_refusal(session: TaskSession, assessment: Assessment) -> str:
    """Return why no prompt can be sent; empty: one can."""
    try:
        refuse_prompts(session, assessment)
    except SessionsError as refusal:
        return str(refusal)
    return ""


def _is_over(session: TaskSession) -> bool:
    return session.state in ENDED_STATES or session.task.is_over


def wants_start_on_open(status: SessionStatus) -> bool:
    """Return whether opening the page starts the agent: the policy allows it, and nothing delays the start.

    An agent that the policy keeps stopped is not started by opening its page, and the page shows this.
    """
    if status.state not in (SessionState.CREATED, SessionState.WAITING_FOR_INPUT) or not status.needs_resume:
        return False
    # Something else starts each of these: the sweep, a restart timer, a prompt or free capacity. A start by the page
    # would also reset the back-off.
    delayed = status.recovering or status.next_restart_at or status.asleep or status.start_wait
    idle_reason = status.stillness["reason"] if status.stillness else None
    if delayed or status.starting or idle_reason == IdleReason.OWNER_LEFT:
        return False
    return status.policy in (Policy.AUTO, Policy.ON_OPEN) or idle_reason == IdleReason.NEXT_LOOK


def evidence_lines(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the evidence of a receipt as (name, value) texts, without empty values."""
    plain = {name: value for name, value in evidence.items() if value not in (None, "", {}, [], 0)}
    return [(humanize_code(name), _plain_value(value)) for name, value in plain.items()]


def _plain_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{humanize_code(str(name))} {_plain_value(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain_value, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
