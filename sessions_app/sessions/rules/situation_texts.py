"""Texts of situations: what happened, the next step, and the buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from executors_app.agents import CREDIT_EXHAUSTED, USAGE_LIMIT
from sessions_app.agents.rules.agent_programs import RETRY_SENTENCE
from sessions_app.kernel.rules.states import SessionState, WorkState
from sessions_app.kernel.rules.wording import as_sentence, plural
from sessions_app.recovery.rules.history import BYTES_PER_TOKEN
from sessions_app.recovery.rules.resumability import Policy, PolicySource, Reason, Strategy
from sessions_app.sessions.rules.situation_facts import (
    AGENT_DIED,
    AGENT_DIED_HEADLINE,
    HEADLINES,
    LABELS,
    TASK_ENDS,
    Action,
    Code,
    IdleReason,
    Label,
    Level,
    Situation,
    SituationFacts,
    state_label,
)
from sessions_app.suspensions.rules.suspension import Continuation, cut_off_sentence, headline, suspension_label
from sessions_app.turns.rules.transient_errors import TROUBLE_SENTENCES

Facts = SituationFacts
Describe = Callable[[Facts], Situation]

NOT_RESUMABLE: Final = "This agent doesn’t support resuming. Start a new session."

NOT_RESUMABLE_LONG: Final = "This agent cannot resume previous sessions. Create a new session."

NOT_RESUMABLE_WORKSPACE: Final = "Create new session to continue messaging."

CHOOSE_HOW_TO_CONTINUE: Final = "Accept the loaded conversation, or start fresh. Nothing was deleted."

NO_CONVERSATION_ID: Final = "The agent never reported its conversation id, so this conversation cannot be resumed."

FRESH_START_HINT: Final = "A fresh start keeps the workspace; the agent does not know the earlier conversation."

LOADS_AGAIN: Final = "“Try again” asks the agent for the same conversation once more; the other choices do without it."
"""Shown after a failed load: *Try again* loads the conversation, and may fail for the same reason."""

REFUSALS: Final[Mapping[Reason, str]] = {
    Reason.CONTEXT_MISMATCH: f"{HEADLINES[Code.CONTEXT_MISMATCH]}. {CHOOSE_HOW_TO_CONTINUE}",
    Reason.MISSING_RESUME_TOKEN: f"{NO_CONVERSATION_ID} {FRESH_START_HINT}",
}
"""Why no agent is started, and what to do about it: the same words in banner, composer, API and stored error."""

NOT_OFFERED: Final = "resume_unsupported"
"""``error_code`` of a session whose agent has no means to restore a conversation."""

RESUME_HINT: Final = "Press “Resume session”, or send a prompt."

POLICY_SOURCES: Final[Mapping[str, str]] = {
    PolicySource.SESSION: "this session’s own choice",
    PolicySource.TEAM: "the team’s choice",
    PolicySource.DEPLOYMENT: "the default for this installation",
}

POLICIES: Final[Mapping[str, str]] = {
    Policy.WORKING: "only agents that were working, or have prompts queued, start automatically",
    Policy.ON_OPEN: "an agent starts when someone opens its page or sends a prompt",
    Policy.MANUAL: "an agent starts only when someone resumes it or sends a prompt",
}


def fixed(
    code: Code, level: Level, text: str, next_step: str = "", *, action: Action = "", reason: IdleReason | None = None
) -> Describe:
    """Return a describer whose words do not depend on the facts."""
    made = Situation(code, level, text, next_step, action, reason, LABELS.get(code))
    return lambda _: made


def over(f: Facts) -> Situation:
    """Describe a task or session that has ended."""
    label = state_label(f.session_state)
    if f.task_end:
        if f.session_state == SessionState.WAITING_FOR_INPUT and f.has_agent:
            label = Label("Idle", "off")  # it accepts no prompt, so "your turn" would be wrong
        if not f.has_agent:
            label = LABELS[Code.WORKSPACE]
        return replace(TASK_ENDS[f.task_end], label=label)
    text = "This session was cancelled."
    if f.session_state == SessionState.COMPLETED:
        text = "This session is complete."
    return Situation(Code.OVER, "info", text, "Create a new session to continue.", "new_session", label=label)


def unattended_sentence(host: str) -> str:
    """Return that a session's host, with this name, has no supervisor."""
    return f"The host of this session, {host}, has no supervisor."


def host_unattended(f: Facts) -> Situation:
    """Describe a session whose host has no supervisor."""
    agent = "Its agent may still be working; nothing was stopped." if f.agent_running else ""
    step = f"Ask an administrator to start one on {f.unattended_host} (`manage.py supervise`)."
    waiting = plural(f.queued_prompts, "The queued prompt waits", "The {} queued prompts wait")
    if not f.queued_prompts:
        waiting = "Prompts you send now wait"
    return Situation(
        Code.HOST_UNATTENDED,
        "warning",
        f"{unattended_sentence(f.unattended_host)} {agent}".strip(),
        f"{step} {waiting} for that.",
        reason=IdleReason.HOST_UNATTENDED,
        label=LABELS[Code.HOST_UNATTENDED],
    )


def permission(f: Facts) -> Situation:
    """Describe a pending permission request."""
    text = plural(f.pending_permissions, f"{HEADLINES[Code.PERMISSION]}.", "The agent asks for permission {} times.")
    return Situation(
        Code.PERMISSION,
        "warning",
        text,
        "Allow or reject the request.",
        "answer",
        IdleReason.PERMISSION,
        LABELS[Code.PERMISSION],
    )


def question(f: Facts) -> Situation:
    """Describe a pending question."""
    text = plural(f.pending_questions, f"{HEADLINES[Code.QUESTION]}.", "The agent asks {} questions.")
    next_step, label = "Answer or decline it.", LABELS[Code.QUESTION]
    return Situation(Code.QUESTION, "warning", text, next_step, "answer", IdleReason.QUESTION, label)


def held(f: Facts) -> Situation:
    """Describe prompts whose delivery is in doubt."""
    text = plural(
        f.held_prompts,
        f"{HEADLINES[Code.HELD]}. It was not sent again.",
        "It is not known whether the agent received {} prompts. They were not sent again.",
    )
    reason = None
    if f.work_state != WorkState.WORKING:
        reason = IdleReason.IN_DOUBT
    return Situation(Code.HELD, "warning", text, "Send it again, or dismiss it.", "review_prompts", reason)


def gave_up(f: Facts) -> Situation:
    """Describe a session that Kandev does not start again."""
    text = f"{HEADLINES[Code.GAVE_UP]}."
    if f.attempts > 1:
        text = f"The agent could not be started in {f.attempts} attempts, and is not started again automatically."
    if f.error_code == AGENT_DIED:
        text = f"{AGENT_DIED_HEADLINE}."
    step = _with_load_hint(f"{as_sentence(f.error_message)} Fix the cause, then press “Try again”.".strip(), f)
    return Situation(Code.GAVE_UP, "error", text, step, "try_again", IdleReason.GAVE_UP, LABELS[Code.GAVE_UP])


def _with_load_hint(step: str, f: Facts) -> str:
    """Add what *Try again* does, if it would restore the conversation."""
    loads = f.assessment is not None and f.assessment.cause.strategy is Strategy.NATIVE
    if loads:
        return f"{step} {LOADS_AGAIN}"
    return step


def in_start_queue(code: Code, text: str, reason: IdleReason) -> Describe:
    """Return a describer for a session that waits for its start."""

    def describe(f: Facts) -> Situation:
        step = "Wait, or stop a session that you do not need."
        if f.starts_before:
            before = plural(f.starts_before, "One session is before it.", "{} sessions are before it.")
            step = f"{before} {step}"
        return Situation(code, "info", text, step, "", reason, LABELS[Code.START_QUEUE])

    return describe


def refused_by_host(f: Facts) -> Situation:
    """Describe a start that waits because its host is out of service."""
    text = f"{f.start_host or 'The host'} takes no new sessions."
    step = "The agent starts as soon as an administrator puts the host back into service."
    return Situation(Code.HOST, "info", text, step, "", IdleReason.HOST, LABELS[Code.START_QUEUE])


def waits_for_place(f: Facts) -> Situation:
    """Describe a start that no supervisor can carry out."""
    step = "Ask an administrator if this does not change soon."
    label = LABELS[Code.START_QUEUE]
    return Situation(Code.PLACEMENT, "warning", f.start_text, step, "", IdleReason.PLACEMENT, label)


def waits_for_launch(f: Facts) -> Situation:
    """Describe a start that has begun, and waits for its place."""
    text = f"The agent is starting. {as_sentence(f.start_text)}"
    step = "Prompts you send now are queued."
    return Situation(Code.STARTING, "info", text, step, "", IdleReason.STARTING, LABELS[Code.STARTING])


def host_lost(f: Facts) -> Situation:
    """Describe a session whose host was declared lost."""
    text = as_sentence(f.error_message) or "The host of this session was declared lost."
    step = "Nothing is sent or started automatically. “Try again” starts the agent on another host, from its branch."
    return Situation(Code.HOST_LOST, "error", text, step, "try_again", IdleReason.ERROR, LABELS[Code.ERROR])


def program(f: Facts) -> Situation:
    """Describe an agent program that cannot be started until a person fixes it."""
    text = as_sentence(f.error_message) or "The agent cannot be started."
    return Situation(
        Code.PROGRAM, "error", text, RETRY_SENTENCE, "try_again", IdleReason.ERROR, until=f.next_restart_at
    )


def backing_off(f: Facts) -> Situation:
    """Describe a start that is delayed after a failure."""
    at = ""
    if f.next_restart_at:
        at = f"{f.next_restart_at:%H:%M:%S} UTC"
    text = f"The agent ended unexpectedly. It restarts at {at} (restart {f.attempts + 1})."
    if f.session_state == SessionState.ERROR:
        text = f"The last start failed. The next one is at {at} (attempt {f.attempts + 1})."
    step = _with_load_hint(f"{as_sentence(f.error_message)} “Try again” does so now.".strip(), f)
    return Situation(
        Code.BACKING_OFF,
        "warning",
        text,
        step,
        "try_again",
        IdleReason.BACKING_OFF,
        LABELS[Code.BACKING_OFF],
        f.next_restart_at,
        f.next_restart_at,
    )


def not_resumable(f: Facts) -> Situation:
    """Describe an agent that has no means to restore its conversation."""
    step = NOT_RESUMABLE_LONG
    if f.workspace_ready:
        step = NOT_RESUMABLE_WORKSPACE
    return Situation(Code.NOT_RESUMABLE, "error", NOT_RESUMABLE, step, "new_session")


def token_rejected(f: Facts) -> Situation:
    """Describe a conversation id that the agent does not accept or must not get."""
    cause = f.assessment and f.assessment.cause
    gets_history = cause is not None and cause.strategy is Strategy.HISTORY
    how = "starts a new conversation and does not know the earlier conversation"
    if gets_history:
        how = history_estimate(f)
    code: Final = Code.TOKEN_REJECTED
    if cause is not None and cause.token_strange:
        text = (
            "This conversation belongs to another agent profile, agent type or directory, so this agent does not "
            f"get it. With your next prompt the agent {how}."
        )
        step = "Nothing was deleted. Restore the previous profile or directory to continue the conversation."
        return Situation(code, "warning", text, step, "choose_conversation")
    why, chance = "no longer knows this conversation", "You can try the old conversation again."
    if f.error_code == NOT_OFFERED:
        why = "offers no way to restore conversations"
        chance = "After an update of the agent, you can try the old conversation again."
        if not gets_history:  # some agents continue by themselves, in the same directory
            how = "starts a new conversation and may not know the earlier conversation"
    text = f"The agent {why}. With your next prompt it {how}."
    step = chance
    if f.queued_prompts:
        step = f"Prompts that you have already sent stay in the queue until then. {chance}"
    return Situation(code, "warning", text, step, "choose_conversation")


def history_estimate(f: Facts) -> str:
    """Return that the next prompt carries the history, and an estimate of its tokens."""
    history = f.history
    if not history or history["estimated_tokens"] is None:
        return "receives the conversation so far"
    tokens, cut = history["estimated_tokens"], history["entries_cut"]
    estimate = f"an estimated {plural(tokens, '1 token', f'{tokens:,} tokens')}, at {BYTES_PER_TOKEN} bytes each"
    left_out = ""
    if cut:
        left_out = plural(cut, ", 1 older entry is left out", ", {:,} older entries are left out")
    return f"receives the conversation so far ({estimate}{left_out})"


def overdue(f: Facts) -> Situation:
    """Describe a prompt that has waited longer for its agent than a start should take."""
    text = plural(
        f.overdue_prompts,
        f"{HEADLINES[Code.OVERDUE]}.",
        "{} prompts have waited longer for the agent than a start should take.",
    )
    why = as_sentence(f.error_message) or "Kandev keeps trying."
    step = f"{why} The prompt stays in the queue; you can withdraw it."
    if f.is_resting:
        return Situation(Code.OVERDUE, "warning", text, step, "try_again")
    return Situation(Code.OVERDUE, "warning", text, step)


def retrying(f: Facts) -> Situation:
    """Describe a failed turn that is about to be retried."""
    text, step = "The turn is retried soon.", ""
    if f.retry:
        text, step = f.retry.sentence, f.retry.message
    return Situation(Code.RETRYING, "warning", text, step, "cancel", None, LABELS[Code.RETRYING])


_CONTINUATIONS: Final[Mapping[str, str]] = {
    Continuation.AGAIN: "The last prompt is then sent again.",
    Continuation.CONTINUE: "The agent is then asked to continue its turn.",
    Continuation.WITHDRAWN: "Its turn is not continued.",
    Continuation.AGENT: "The agent says that it then goes on by itself.",
}
_WITHOUT_END: Final[Mapping[str, str]] = {
    USAGE_LIMIT: "Send a prompt when the limit has ended, or go on now.",
    CREDIT_EXHAUSTED: "Add credit at the provider, then go on or send a prompt.",
    **dict.fromkeys(
        TROUBLE_SENTENCES, "It is not tried again automatically. Go on or send a prompt when the provider works."
    ),
}
_CANCELLABLE: Final = frozenset({Continuation.AGAIN, Continuation.CONTINUE})


def suspended(f: Facts) -> Situation:
    """Describe a session whose agent has reached a usage limit, or whose provider is down."""
    why = headline(f.suspension_reason)
    text, step = f"{why}.", _WITHOUT_END.get(f.suspension_reason, "Go on now, or send a prompt.")
    if f.suspended_until is not None:
        text = f"{why}. Nothing is sent to the agent before {f.suspended_until:%Y-%m-%d %H:%M:%S} UTC."
        step = f"Prompts that you send now wait until then. {_CONTINUATIONS.get(f.continuation, '')}".strip()
    message = as_sentence(f.suspension_message)
    if message:
        step = f"{step} The agent says: {message}"
    return Situation(
        Code.SUSPENDED,
        "warning",
        text,
        step,
        "go_on_or_cancel" if f.continuation in _CANCELLABLE else "go_on",
        IdleReason.SUSPENDED,
        suspension_label(f.suspension_reason),
        at=f.suspended_until,
        until=f.suspended_until,
    )


def own_wait(f: Facts) -> Situation:
    """Describe a turn in which the agent waits by itself. Its label is that of a working session: it goes on alone."""
    until = "for the end of a limit"
    if f.waits_by_itself_until is not None:
        until = f"until {f.waits_by_itself_until:%Y-%m-%d %H:%M:%S} UTC"
    text = f"The agent says that it waits {until} and then goes on with its turn by itself."
    return Situation(
        Code.OWN_WAIT, "info", text, "Prompts that you send now are queued. To end the wait, cancel.", "cancel"
    )


def cut_off(f: Facts) -> Situation:
    """Describe a turn that a limit has ended, which is over, and that nothing continues."""
    text = f"{cut_off_sentence(f.cut_off_reason)} Nothing continues the turn automatically."
    if f.cut_off_has_worked:
        step = "Continue the turn, or send another prompt."
        return Situation(Code.CUT_OFF, "info", text, step, "continue_turn")
    step = "Send the prompt again, or send another one."
    return Situation(Code.CUT_OFF, "info", text, step, "send_again")


def over_budget(f: Facts) -> Situation:
    """Describe a session whose next prompt has to wait for a budget."""
    text = f.budget_sentence or f"{HEADLINES[Code.BUDGET]}."
    step = f"{f.budget_end} The prompt stays in the queue until then; you can also withdraw it.".strip()
    return Situation(Code.BUDGET, "warning", text, step, f.budget_action, IdleReason.BUDGET, LABELS[Code.BUDGET])


def cancel_ignored(f: Facts) -> Situation:
    """Describe an agent that continues a turn it was asked to cancel."""
    text = f"The agent was asked to cancel its turn at {f.cancel_ignored_since:%H:%M:%S} UTC, and continues it."
    step = "Wait until the turn ends, or stop the agent. Its conversation and files are kept."
    return Situation(Code.CANCEL_IGNORED, "warning", text, step, "stop", at=f.cancel_ignored_since)


def stalled(f: Facts) -> Situation:
    """Describe an open turn that has been silent for long."""
    text = f"The agent has not responded since {f.stalled_since:%H:%M:%S} UTC."
    step = "It may still be working; nothing was stopped. This notice disappears when the agent next responds."
    return Situation(Code.STALLED, "info", text, step, "cancel", at=f.stalled_since)


def starting(f: Facts) -> Situation:
    """Describe an agent that is being started, and how long it may take to load its conversation."""
    if f.opens_workspace or not f.has_agent:
        text = "The workspace is being opened. No agent starts in it."
        return Situation(Code.STARTING, "info", text, "", "", IdleReason.STARTING, LABELS[Code.STARTING])
    text, step = "The agent is starting.", "Prompts you send now are queued."
    if f.load_limit:
        text = "The agent is loading its conversation…"
        step = f"This may take up to {f.load_limit:g} s. {step}"
    if f.load_limit and f.load_since:
        text = f"The agent has been loading its conversation since {f.load_since:%H:%M:%S} UTC."
    return Situation(Code.STARTING, "info", text, step, "", IdleReason.STARTING, LABELS[Code.STARTING], f.load_since)


def background_sentence(f: Facts) -> str:
    """Return that processes of the agent still run, and what that means; empty if none do."""
    if not f.background_process_count:
        return ""
    if not f.background_is_current:
        return plural(
            f.background_process_count,
            "A process that it started ran when it last reported; whether it still runs is unknown.",
            "{:,} processes that it started ran when it last reported; whether they still run is unknown.",
        )
    processes = plural(
        f.background_process_count,
        "A process that it started still runs",
        "{:,} processes that it started still run",
    )
    if f.background_ends:
        return f"{processes}: this ends when the session falls asleep or the agent is stopped."
    return f"{processes}: the session stays awake, and stopping the agent ends them."


def outside(f: Facts) -> Situation:
    """Describe a session that waits for an external result."""
    text = "The session is waiting for an external result."
    step = "It continues automatically when the result arrives. You can also end the wait."
    return Situation(Code.OUTSIDE, "", text, step, "", IdleReason.OUTSIDE, LABELS[Code.OUTSIDE], until=f.wait_until)


def wait_interrupted(f: Facts) -> Situation:
    """Describe an external wait that ended without an answer."""
    what = "an external result"
    if f.interrupted_wait:
        what = f"“{f.interrupted_wait}”"
    text = f"The wait for {what} ended without an answer at {f.wait_ended_at:%H:%M:%S} UTC."
    step = "Wait again with a new key, or continue without it. The agent is informed with its next prompt."
    return Situation(Code.WAIT_INTERRUPTED, "warning", text, step, "wait", at=f.wait_ended_at)


def interrupted(f: Facts) -> Situation:
    """Describe prompts that were interrupted while the agent worked on them."""
    text = plural(
        f.interrupted_prompts,
        "A prompt was interrupted while the agent worked on it.",
        "{} prompts were interrupted while the agent worked on them.",
    )
    return Situation(Code.INTERRUPTED, "warning", text, "Continue it, send it again, or dismiss it.", "review_prompts")


def _label_at_rest(f: Facts, code: Code) -> Label | None:
    """Return the label of a situation for a session in which nothing has failed; any other is labelled by its state."""
    if f.session_state == SessionState.WAITING_FOR_INPUT:
        return LABELS[code]
    return None


def stopped(f: Facts) -> Situation:
    """Describe an agent that a user stopped or is stopping."""
    if not f.is_down:
        return Situation(Code.STOPPED, "", "The agent is being stopped.", "Wait a moment.", "", IdleReason.STOPPED)
    text = "This agent was stopped. It does not start automatically."
    label = _label_at_rest(f, Code.STOPPED)
    return Situation(Code.STOPPED, "info", text, RESUME_HINT, "resume", IdleReason.STOPPED, label)


def error(f: Facts) -> Situation:
    """Describe an error after which nothing is retried."""
    text = as_sentence(f.error_message) or f"{HEADLINES[Code.ERROR]}."
    step = _with_load_hint("Nothing is retried automatically. Fix the cause, then try again.", f)
    return Situation(Code.ERROR, "error", text, step, "try_again", IdleReason.ERROR, LABELS[Code.ERROR])


def queued(f: Facts) -> Situation:
    """Describe prompts that wait for the agent."""
    text = plural(f.queued_prompts, "A prompt waits for the agent.", "{} prompts wait for the agent.")
    if f.is_resting:
        return Situation(Code.QUEUED, "info", text, "It is delivered when the agent runs.", "resume")
    if f.works_alone:
        return Situation(
            Code.QUEUED,
            "info",
            f"The agent is working on its own. {text}",
            "Prompts are delivered when that work ends. To deliver them now, cancel the turn.",
            "cancel",
        )
    return Situation(Code.QUEUED, "info", text, "Prompts are delivered in order.")


def history_armed(f: Facts) -> Situation:
    """Describe a new agent that receives the history with the next prompt."""
    text = f"The agent has started a new conversation. With your next prompt it {history_estimate(f)}."
    return Situation(Code.HISTORY_ARMED, "info", text)


def asleep(f: Facts) -> Situation:
    """Describe an agent that was stopped because it was idle."""
    label = _label_at_rest(f, Code.ASLEEP)
    text = "The agent is asleep because it was idle."
    step = "Your next prompt wakes it. Its conversation and files are kept."
    return Situation(Code.ASLEEP, "info", text, step, "resume", IdleReason.ASLEEP, label)


def workspace(f: Facts) -> Situation:
    """Describe a session that is a workspace without an agent."""
    label = _label_at_rest(f, Code.WORKSPACE)
    text = "This session is a workspace: no agent runs in it."
    step = "Other sessions of the task, or the steps of a workflow, work in its directory."
    if f.is_resting:
        return Situation(Code.WORKSPACE, "info", text, step, label=label)
    return Situation(Code.WORKSPACE, "", text, step, label=label)


def not_running(code: Code, reason: IdleReason | None, step: Callable[[Facts], str]) -> Describe:
    """Return a describer for an agent that is not running; ``step`` describes what starts it."""

    def describe(f: Facts) -> Situation:
        text = "The agent is not running."
        if f.history:
            text += f" With your next prompt it {history_estimate(f)}."
        return Situation(code, "info", text, step(f), "resume", reason)

    return describe


def policy_step(f: Facts) -> str:
    """Return the recovery policy in effect, where it is set, and what it means."""
    who = POLICY_SOURCES.get(f.policy_source, "a choice")
    how = POLICIES.get(f.policy, "it does not start automatically")
    return f"Recovery policy “{f.policy}” ({who}): {how}. {RESUME_HINT}"
