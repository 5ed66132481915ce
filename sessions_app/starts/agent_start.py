"""The agent's part of a start: the request to agentctl, and what its answer proves about the conversation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from executors_app.agent_capabilities import (
    LOAD,
    RESUME,
    CapabilityScope,
    agent_identity,
    build_capability_report,
    first_claim,
    has_replayed,
)
from executors_app.agents import AgentType
from executors_app.machine.process.spawning import inherited_environment
from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.wire.executions import LOCAL
from executors_app.wire.protocol import CapabilityShortfall, Code
from sessions_app.agents.models import changes_to_start_with
from sessions_app.agents.services import agent_login
from sessions_app.agents.services.agent_settings import order_waiting_changes
from sessions_app.agents.services.mcp_servers import choose_servers
from sessions_app.kernel.rules.states import DesiredState, PromptState, SessionState
from sessions_app.models import (
    AGENT_AWAITED_SINCE,
    Intent,
    Lease,
    Prompt,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.prompts import services as prompts
from sessions_app.prompts.services import remember_blocks
from sessions_app.recovery import continuity
from sessions_app.recovery.rules import verification
from sessions_app.recovery.rules.resumability import Mode, Reason, Strategy
from sessions_app.recovery.rules.verification import ReceiptKind, Verdict
from sessions_app.recovery.services.assessment import assess_start, history_allowed
from sessions_app.recovery.services.history import current_history
from sessions_app.starts.claims import StartClaim
from sessions_app.starts.outcomes import (
    PROBE_FIELDS,
    REFUSAL_MESSAGES,
    REPORTED_GONE,
    StartFailure,
    capability_scope,
    learn_capabilities,
    settle_intent,
    write_start_failure,
)
from sessions_app.supervisor.executions import SESSION_RELATED
from sessions_app.turns.interruptions import (
    AGENTCTL_GONE,
    PIPE_LOST_REASONS,
    hold_unsent_prompts,
    interrupt_turn,
    withdraw_continuation,
)
from sessions_app.turns.models import newest_run
from sessions_app.workspace.services.workspace_notes import workspace_evidence

READY_AGENT_STATES = frozenset({"idle", "working"})
"""States of an agent that accepts prompts."""
REPORTED_FIELDS = ("resume_token", "rejected_resume_token", *PROBE_FIELDS)
"""Columns of the execution that the answer to a start may change."""
ARRIVED_STATES = (PromptState.DELIVERED, PromptState.DONE, PromptState.INTERRUPTED, PromptState.DISMISSED)
"""States of prompts that have reached the agent, or may have."""


@dataclass(frozen=True, slots=True)
class AgentStartRequest:
    """The request to start an agent, and what its answer is compared with."""

    body: Mapping[str, Any]
    strategy: Strategy
    token_before: str
    injects: bool
    known_tokens: frozenset[str] = field(repr=False)
    """Ids of the session's earlier conversations, also of one that was set aside, unless its agent reported it lost."""
    kind: AgentType = field(repr=False)
    profile: AgentProfile = field(repr=False, compare=False)
    """The profile with which the agent is started."""
    scope: CapabilityScope
    """Whose sessions learn from this start what the agent supports."""
    unfinished_since: str | None = None
    """The snapshot with which to compare what an interrupted turn changed (``prompts.snapshot_to_compare``)."""


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """What the log contains about the conversation, to verify the agent's answer."""

    requests: verification.Requests
    """What the present conversation should contain."""
    in_log: Mapping[str, int]
    """Numbers of messages and of interrupted tool calls, as ``continuity.count_log`` returns them."""
    log_is_a_prefix: bool
    """Whether agentctl was killed, so that the agent may have produced more output than the log has (rule 23)."""


def prepare_agent_start(plan: StartClaim, lease: Lease, *, found: str | None) -> AgentStartRequest | None:
    """Decide how the agent starts; None if none starts: workspace only, or not resumable, which is written.

    ``found`` is the launch id of the agent that was alive when we attached, or None. Without a living agent, the
    open turn of the last one is interrupted first. If an earlier try of this same start brought the agent up and its
    answer was lost, the request is built with the strategy of that try.
    """
    with session_transaction(plan.session_id, lease, related=SESSION_RELATED) as transaction:
        return prepare_agent_start_within(transaction, plan, found=found)


def prepare_agent_start_within(
    transaction: SessionTransaction, plan: StartClaim, *, found: str | None
) -> AgentStartRequest | None:
    """Do what ``prepare_agent_start`` does, in the caller's transaction."""
    session = transaction.session
    unsettled = found is None and (session.launch_id or transaction.open_turn is not None)
    if unsettled and interrupt_turn(transaction, AGENTCTL_GONE):
        transaction.move_session("start")
    strategy = None
    if found == str(plan.intent_id):
        strategy = _first_strategy(plan)
    if strategy is None:
        verdict = assess_start(session, plan.mode)
        if not verdict.allowed or verdict.strategy is None:
            _workspace_only(transaction, plan, verdict.refusal)
            return None
        strategy = verdict.strategy
    execution = transaction.execution
    assert execution is not None, "the lease was checked against it"  # noqa: S101
    # Stored before the request leaves: after a lost answer, the same request is sent, and agentctl answers it again.
    payload = {"mode": plan.mode, "strategy": strategy, "mcp_servers": plan.inherited_servers}
    if plan.login:
        payload["login"] = plan.login
    payload[AGENT_AWAITED_SINCE] = timezone.now().isoformat()
    Intent.objects.filter(id=plan.intent_id).update(payload=payload)
    servers = choose_servers(transaction, str(plan.intent_id), session.agent_profile, plan.inherited_servers)
    return _build_request(session, execution, plan, strategy, servers)


def _first_strategy(plan: StartClaim) -> Strategy | None:
    stored = Intent.objects.values_list("payload", flat=True).get(id=plan.intent_id).get("strategy")
    if stored:
        return Strategy(stored)
    return None


def _workspace_only(transaction: SessionTransaction, plan: StartClaim, refusal: str) -> None:
    """Write that only the workspace is up: as requested, or because the agent cannot be resumed (``refusal``)."""
    settle_intent(plan.intent_id, refusal or "workspace_only")
    transaction.write_receipt(
        "workspace_only",
        "none",
        launch_id=str(plan.intent_id),
        reason=refusal or plan.mode,
        evidence=continuity.rebuild_evidence(transaction),
    )
    is_requested = plan.mode == Mode.WORKSPACE_ONLY or not transaction.session.has_agent
    metadata = {**transaction.session.metadata, "workspace_only": is_requested}
    transaction.set_fields(launch_id="", metadata=metadata)
    session = transaction.session
    decided = session.state == SessionState.FAILED or session.context_mismatch or session.error_code in REFUSAL_MESSAGES
    if plan.mode == Mode.WORKSPACE_ONLY and decided:
        return  # its error still describes the agent correctly
    if refusal:
        hold_unsent_prompts(transaction)
        withdraw_continuation(transaction)
        code = refusal
        if session.context_mismatch:
            code = str(Reason.CONTEXT_MISMATCH)
        transaction.move_session(
            "fail", error_code=code, error_message=REFUSAL_MESSAGES.get(code, "This session cannot be resumed.")
        )
    else:
        transaction.move_session("ready", reason="workspace_only")


def _search_path(execution: ExecutorRunning) -> dict[str, str]:
    """Return our own PATH for an agent on our machine.

    Its agentctl may be older than this process: a program that was installed since, in a directory that was added to
    the PATH, is found without a new workspace. Elsewhere our PATH means nothing.
    """
    if execution.runtime != LOCAL:
        return {}
    inherited = inherited_environment()
    if "PATH" in inherited:
        return {"PATH": inherited["PATH"]}
    return {}


def _build_request(
    session: TaskSession,
    execution: ExecutorRunning,
    plan: StartClaim,
    strategy: Strategy,
    mcp_servers: Sequence[Mapping[str, Any]],
) -> AgentStartRequest:
    profile = session.agent_profile
    kind = agent_type(profile.agent_type)
    # A user may try a rejected token again; a start that works then makes it the session's token.
    retries_rejected = plan.mode == Mode.RESUME and not execution.resume_token
    token, last_message_uuid = execution.resume_token, execution.last_message_uuid or None
    if retries_rejected:
        token, last_message_uuid = execution.rejected_resume_token, None
    known_tokens = continuity.known_tokens(session, execution)
    expected_requests = 0
    if strategy == Strategy.NATIVE or known_tokens:
        expected_requests = continuity.count_requests(session)
    conversation: dict[str, Any] = {"resume_token": None, "last_message_uuid": None}
    if strategy == Strategy.NATIVE:
        conversation = {"resume_token": token, "last_message_uuid": last_message_uuid}
    body = {
        "argv": profile.argv(execution.runtime),
        "env": {**_search_path(execution), **kind.env, **profile.env},
        "cwd": execution.workspace_path,
        "driver": kind.driver,
        "strategy": strategy,
        **conversation,
        "model": session.model or profile.model or None,
        "mode": profile.mode or None,
        "additional_directories": list(profile.additional_directories),
        "mcp_servers": mcp_servers,
        "settings": changes_to_start_with(session),
        "permission_mode": profile.permission_mode,
        "launch_id": str(plan.intent_id),
        "gone_patterns": [*kind.gone_patterns, *profile.gone_patterns],
        "prefer_load": kind.prefer_load,
        "expected_requests": expected_requests,
        "known_conversations": sorted(map(verification.fingerprint, known_tokens)),
        "timeout": kind.handshake_limit(settings.KANDEV_START_TIMEOUT),
        "load_timeout": kind.load_limit(settings.KANDEV_START_TIMEOUT),
        **agent_login.login_field(plan.login),
    }
    return AgentStartRequest(
        body=body,
        strategy=strategy,
        token_before=token,
        injects=strategy == Strategy.HISTORY and history_allowed(session.agent_profile),
        known_tokens=known_tokens,
        kind=kind,
        profile=profile,
        scope=capability_scope(session),
        unfinished_since=prompts.snapshot_to_compare(session),
    )


def load_conversation_facts(session_id: uuid.UUID) -> ConversationFacts:
    """Load the facts to verify a start by; they cannot change until the agent is up, so read them while it starts."""
    session = TaskSession.objects.only("id", "metadata").get(id=session_id)
    newest = newest_run(session)
    return ConversationFacts(
        requests=continuity.load_requests(session),
        in_log=continuity.count_log(session_id),
        log_is_a_prefix=newest is not None and newest.reason in PIPE_LOST_REASONS,
    )


def write_agent_started(
    plan: StartClaim, lease: Lease, order: AgentStartRequest, answer: Mapping[str, Any], known: ConversationFacts
) -> bool:
    """Write a successful start: token, receipt and states, in one transaction.

    Returns False if a stop was requested meanwhile, which wins (rule 9): the caller has to end the agent. Also returns
    False if the answer contradicts the log: the session is then quarantined until a user decides.
    """
    verdict = _verdict(order, answer, known)
    contradiction = verdict.contradiction
    if contradiction and plan.mode == Mode.ACCEPT_MISMATCH:
        verdict = verification.accepted_verdict(answer["outcome"], contradiction)
    if verdict.contradiction:
        _quarantine(plan, lease, verdict, answer)
        return False
    received = _find_received(plan.session_id, answer.get("replayed_user_texts", ()))
    with session_transaction(plan.session_id, lease) as transaction:
        if transaction.session.desired_state != DesiredState.RUNNING:
            return False
        if transaction.session.agent_profile_id == order.profile.pk:
            transaction.session.agent_profile = order.profile  # saves a query
        held_prompts = list(_held_prompts(plan.session_id))
        kept_claim: Mapping[str, str] = {}
        if not contradiction:
            kept_claim = _kept_claim(answer, verdict)
        evidence = _evidence(transaction, order, answer, verdict, known)
        evidence["prompts_held"] = len(held_prompts)
        evidence["capability_note"] = _keep_token(transaction, order, answer, kept_claim)
        evidence["accepted_by_user"] = contradiction
        if verdict.kind in (ReceiptKind.FRESH, ReceiptKind.INJECTED):
            continuity.mark_new_conversation(transaction)
        settle_intent(plan.intent_id, verdict.kind)
        about = {"launch_id": str(plan.intent_id), "strategy": order.strategy, "reason": plan.mode}
        transaction.write_receipt(verdict.kind, verdict.verified, **about, evidence=evidence)
        continuity.mark_receipt_unproven(transaction, but=str(plan.intent_id))
        continuity.queue_memory_check(transaction, str(plan.intent_id), verdict, known.requests.last_text)
        _settle_held_prompts(transaction, held_prompts, received)
        _mark_agent_up(transaction, plan, verdict)
        agent_login.settle_login(transaction, plan.intent_id, answer, "")
        order_waiting_changes(transaction)
    return True


def _verdict(order: AgentStartRequest, answer: Mapping[str, Any], known: ConversationFacts) -> Verdict:
    """Return what the answer proves, compared with what the log contains of the conversation."""
    by_type = order.kind.replays_on_load and answer["outcome"] == "loaded"
    requests = verification.Requests()
    if order.strategy == Strategy.NATIVE or answer["outcome"] == "created":
        requests = known.requests
    return verification.verify_resume(
        strategy=order.strategy,
        outcome=answer["outcome"],
        replay=verification.Replay(
            messages=int(answer.get("replayed", 0)),
            texts=answer.get("replayed_user_texts", ()),
            digests=answer.get("replayed_user_digests", ()),
        ),
        requests=requests,
        known_to_replay=by_type or has_replayed(build_capability_report(order.scope, order.kind.name, answer)),
        names_conversation=order.kind.names_conversation,
        injected=order.injects,
        listed=answer.get("listed"),
        same_id=_returns_known_id(order, answer),
    )


def _returns_known_id(order: AgentStartRequest, answer: Mapping[str, Any]) -> bool:
    """Whether the agent opened a "new" conversation under the id of an earlier one, as gptme does by directory."""
    return answer["outcome"] == "created" and str(answer.get("resume_token") or "") in order.known_tokens


def _mark_agent_up(transaction: SessionTransaction, plan: StartClaim, verdict: Verdict) -> None:
    """Write that the agent is up, and move the session to ready, or into the turn that is open."""
    transaction.set_fields(
        launch_id=str(plan.intent_id),
        next_restart_at=None,
        ready_since=timezone.now(),
        died_at=None,
        context_mismatch=False,
        metadata={**transaction.session.metadata, "workspace_only": False, REPORTED_GONE: None},
        inject_history=verdict.kind == ReceiptKind.INJECTED,
    )
    _move_to_ready(transaction, verdict.kind)


def _move_to_ready(transaction: SessionTransaction, reason: str) -> None:
    """Move the session to ready, or into the turn that is open."""
    if transaction.open_turn is None:
        transaction.move_session("ready", reason=reason)
    else:
        transaction.move_session("turn_started", reason=reason)


def _kept_claim(answer: Mapping[str, Any], verdict: Verdict) -> dict[str, str]:
    """Return the capability that the agent has proven by this start, with the degree of proof; empty if none."""
    did = {"loaded": LOAD, "resumed": RESUME}.get(answer["outcome"])
    if did:
        return {did: verdict.verified.value}
    return {}


def _keep_token(
    transaction: SessionTransaction, order: AgentStartRequest, answer: Mapping[str, Any], kept: Mapping[str, str]
) -> str:
    """Store the token of the conversation; return the note on capabilities that the agent claims but lacks.

    The old token is replaced only now, after its replacement has worked, and is set aside rather than deleted.
    """
    execution, token = transaction.execution, str(answer.get("resume_token") or "")
    if execution is None:
        return ""
    before = {name: getattr(execution, name) for name in REPORTED_FIELDS}
    continuity.replace_token(transaction, execution, token, order.strategy)
    remember_blocks(transaction, answer.get("capabilities"))
    agent_login.remember_agent(transaction, answer)
    note = learn_capabilities(
        transaction,
        build_capability_report(order.scope, order.kind.name, answer, kept=kept, secret=order.token_before),
    )
    if changed := [name for name, value in before.items() if getattr(execution, name) != value]:
        execution.save(update_fields=[*changed, "updated_at"])
    return note


def _evidence(
    transaction: SessionTransaction,
    order: AgentStartRequest,
    answer: Mapping[str, Any],
    verdict: Verdict,
    known: ConversationFacts,
) -> dict[str, Any]:
    cwd_matches = known_by = compared = injection = None
    if order.strategy == Strategy.NATIVE:
        cwd_matches = continuity.is_same_directory(transaction, order.body["cwd"])
    if _returns_known_id(order, answer):
        known_by = verification.SAME_ID
    if verdict.comparison:
        compared = verdict.comparison.sentence
    if verdict.kind == ReceiptKind.INJECTED and (history := current_history(transaction.session)):
        injection = history.facts()  # replaced by the facts of what is sent, when it is sent
    return {
        **continuity.process_evidence(answer),
        **continuity.conversation_evidence(order.token_before, answer),
        **known.in_log,
        "cwd_matches": cwd_matches,
        "completed_turns": known.requests.completed_turns,
        **workspace_evidence(transaction.session, answer.get("workspace")),
        **prompts.outside_work_evidence(transaction.session),
        "known_by": known_by,
        "replay_compared": compared,
        "injection": injection,
        **continuity.rebuild_evidence(transaction),
        "log_is_a_prefix": known.log_is_a_prefix,
        "agent": agent_identity(answer),
        "timings_ms": answer.get("timings"),
    }


@dataclass(frozen=True, slots=True)
class _Received:
    """What a replay shows of the held prompts, as they were before the transaction."""

    held: tuple[int, ...] = ()
    """The ids of all of them."""
    shown: frozenset[int] = frozenset()
    """The ids of those that the agent has received."""


def _held_prompts(session_id: uuid.UUID) -> QuerySet[Prompt]:
    return Prompt.objects.filter(session=session_id, state=PromptState.HELD).order_by("id")


def _find_received(session_id: uuid.UUID, replayed: Sequence[str]) -> _Received:
    """Compare the held prompts with a replay, before any transaction: agents choose how long its texts are."""
    if not replayed:
        return _Received()
    held = dict(_held_prompts(session_id).values_list("id", "text"))
    if not held:
        return _Received()
    arrived = Prompt.objects.filter(session=session_id, state__in=ARRIVED_STATES).values_list("text", flat=True)
    return _Received(tuple(held), verification.find_received(held, list(arrived), replayed))


def _settle_held_prompts(transaction: SessionTransaction, held: Sequence[Prompt], received: _Received) -> None:
    """Move held prompts that the agent's replayed conversation shows to *interrupted*: they were delivered (rule 13).

    If somebody has settled one since the comparison, it proves nothing any more: texts with the same words are counted.
    """
    if tuple(row.id for row in held) != received.held:
        return
    for row in held:
        if row.id in received.shown:
            transaction.move_prompt(row, "interrupt")


def _quarantine(plan: StartClaim, lease: Lease, verdict: Verdict, answer: Mapping[str, Any]) -> None:
    """Write that a load contradicts the log: the token stays, and a user decides."""
    # Before the failure, so that a crash in between cannot leave a session that looks resumable.
    with session_transaction(plan.session_id, lease) as transaction:
        transaction.set_fields(context_mismatch=True)
    if answer["outcome"] == "loaded":
        capability, shortfall = LOAD, CapabilityShortfall.OTHER_CONVERSATION
    else:
        capability, shortfall = first_claim(answer), CapabilityShortfall.NEW_CONVERSATION
    failure = StartFailure(
        str(Code.CONTEXT_MISMATCH),
        verdict.contradiction or "",
        permanent=True,
        needs_user=True,
        told=answer,
        broken={capability: (shortfall, verdict.contradiction or "")},
    )
    write_start_failure(plan.session_id, plan.intent_id, lease, failure)


def write_reattached(plan: StartClaim, lease: Lease, report: Mapping[str, Any]) -> None:
    """Write that the agent of an earlier start is up: that start succeeded, and only its answer was lost."""
    with session_transaction(plan.session_id, lease) as transaction:
        settle_intent(plan.intent_id, "reattached")
        transaction.write_receipt(
            "reattached",
            "same_process",
            launch_id=str(plan.intent_id),
            reason="answer_lost",
            evidence=continuity.process_evidence(report["agent"]),
        )
        agent_login.settle_login(transaction, plan.intent_id, {}, agent_login.ANSWER_LOST)
        transaction.set_fields(launch_id=str(report["agent"].get("launch_id") or plan.intent_id), next_restart_at=None)
        _move_to_ready(transaction, "reattached")
        order_waiting_changes(transaction)
