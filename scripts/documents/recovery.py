"""docs/recovery.md: what a sweep decides, and whether a session can be resumed."""

from __future__ import annotations

from scripts.documents.examples import EXAMPLES, NOW, RESUME_EXAMPLES
from scripts.documents.markdown import join_sections, markdown_table, written_by
from sessions_app.recovery.rules.recovery import RULES, Decision, decide
from sessions_app.recovery.rules.resumability import Mode, ResumeFacts, assess, assess_mode


def recovery_document() -> str:
    """Return ``recovery.md``: what a sweep decides, and whether a session can be resumed."""
    return join_sections(
        [
            "# Recovery",
            written_by("the tables in sessions_app/recovery/rules"),
            "## What a sweep decides",
            (
                "The first matching rule decides. The table shows the decision of each rule about a session that was "
                "in the middle of a turn, in a sweep at boot unless the rule says otherwise."
            ),
            _decisions(),
            (
                "The leftover processes of a dead execution are ended first, after proof that they belong to it, "
                "unless another process is working on it (`foreign_lease`, `attached`, `start_under_way`). The error "
                "`unreachable` is cleared by the next answer."
            ),
            (
                "A session whose rows contain impossible values (`damaged_row`: an unknown state, a negative cursor, a "
                "secret that no key decrypts, a missing execution or agent type) is reported and skipped; all others "
                "recover. A time more than a day in the future comes from a wrong clock and is not waited for."
            ),
            "## Whether a session can be resumed",
            "The first matching row applies.",
            _assessments(),
            "## The result of a request to resume",
            (
                "By row and mode: the strategy, or the error code of the refusal. For rows 1 and 2 and after a stop by "
                "the user, the next matching row applies, but a running agent is never started twice."
            ),
            _modes(),
        ]
    )


def _decisions() -> str:
    says = {rule.name: rule.says for rule in RULES}
    rows = [
        (f"`{example.rule}`", says[example.rule], *_cells(decide(example.facts, example.observation, NOW)))
        for example in EXAMPLES
    ]
    return markdown_table(("rule", "meaning", "observed", "executor", "session", "agent", "open run"), rows)


def _cells(decision: Decision) -> tuple[str, ...]:
    code = f" `{decision.session_error_code}`" if decision.session_error_code else ""
    return (
        str(decision.observed),
        decision.executor_move or "–",
        f"{decision.session_move}{code}" if decision.session_move else "–",
        " ".join(filter(None, (decision.agent_action, decision.strategy and f"({decision.strategy})"))),
        "interrupted" if decision.interrupt_run else "unchanged",
    )


def _assessments() -> str:
    rows = []
    for row, words, facts in RESUME_EXAMPLES:
        assessment = assess(facts, NOW)
        needed = "yes" if assessment.needs_resume else "no"
        resumable = "yes" if assessment.is_resumable else "no"
        rows.append(
            (str(row), words, resumable, needed, f"`{assessment.resume_reason}`", str(assessment.strategy or "–"))
        )
    return markdown_table(("row", "condition", "is_resumable", "needs_resume", "resume_reason", "strategy"), rows)


def _modes() -> str:
    rows = [(str(row), words, *(_verdict(facts, mode) for mode in Mode)) for row, words, facts in RESUME_EXAMPLES]
    return markdown_table(("row", "condition", *(f"`{mode}`" for mode in Mode)), rows)


def _verdict(facts: ResumeFacts, mode: Mode) -> str:
    verdict = assess_mode(assess(facts, NOW), mode)
    return f"409 `{verdict.refusal}`" if verdict.refusal else str(verdict.strategy or "no agent")
