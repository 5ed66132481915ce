"""Propose mutations: ``python -m tests.mutations.propose`` prints them as in ``mutations.toml``, but without tests.

The same seed proposes the same mutations for the same code. The list of the repository was chosen from such a proposal
and is fixed since: a mutation whose code is gone is replaced by hand, or by one of a new proposal.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.mutations.mutation import Mutation, to_toml
from tests.services import ROOT

SEED: Final = 33
MODULES: Final = {
    # The rules of recovery: what a sweep does, and what a session can be resumed with.
    "sessions_app/recovery/rules/recovery.py": 7,
    "sessions_app/starts/rules/restart_rules.py": 2,
    "sessions_app/recovery/rules/resumability.py": 5,
    "sessions_app/turns/rules/continuation.py": 3,
    "sessions_app/turns/rules/turn_ends.py": 1,
    "sessions_app/turns/rules/transient_errors.py": 1,
    # States and the transaction that moves them.
    "sessions_app/kernel/rules/states.py": 6,
    "sessions_app/kernel/transactions.py": 6,
    # Leases and starts.
    "sessions_app/supervisor/leases.py": 6,
    "sessions_app/starts/claims.py": 3,
    # Prompts, and what becomes of the turns that ended without a result.
    "sessions_app/prompts/delivery.py": 4,
    "sessions_app/starts/outcomes.py": 4,
    "sessions_app/turns/interruptions.py": 1,
    "sessions_app/turns/retries.py": 2,
    # From the agent to the log: agentctl's turns and journal, and ingest.
    "executors_app/agentctl/turns.py": 3,
    "executors_app/agentctl/journal.py": 3,
    "executors_app/wire/line_format.py": 3,
    "sessions_app/stream/ingest/batches.py": 7,
    "sessions_app/journal.py": 1,
    "sessions_app/agents/journal.py": 1,
    "sessions_app/agents/services/agent_reports.py": 1,
    "sessions_app/permissions/journal.py": 1,
    "sessions_app/permissions/open_requests.py": 1,
    "sessions_app/turns/journal.py": 2,
    "sessions_app/stream/conversation.py": 2,
    # Receipts.
    "sessions_app/recovery/rules/verification.py": 5,
    "sessions_app/recovery/continuity.py": 4,
    # Permissions and waits.
    "sessions_app/waits/rules/wait_keys.py": 3,
    "sessions_app/waits/models.py": 3,
    "sessions_app/waits/services.py": 3,
    # Snapshots of uncommitted work.
    "executors_app/agentctl/workspace/snapshot_service.py": 3,
}
"""Modules with the number of their mutations."""

_NEGATED: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_OFF_BY_ONE: Final[dict[type[ast.cmpop], str]] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_ENUMS: Final = frozenset({"S", "P", "R", "E", "W", "Row", "Reason", "Strategy", "Verified", "Observed"})
_ENUM_ENDINGS: Final = ("State", "Kind", "Status", "Policy")
_WITHOUT_EFFECT: Final = ("log.", "logger.", "crash_points.")
_ENDS_FUNCTION: Final = (ast.Return, ast.Raise, ast.Continue)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of the text, at the position of a node."""

    operator: str
    node: ast.expr | ast.stmt
    text: str


class Proposer:
    """Finds what can be changed in one module."""

    def __init__(self, path: str):
        self.path = path
        self.source = (ROOT / path).read_text()
        self.lines = self.source.splitlines(keepends=True)
        self.tree = ast.parse(self.source)
        self._members = self._members_by_enum()

    def mutations(self) -> Iterator[Mutation]:
        """Yield every mutation whose result is still Python."""
        for scope, node in self._nodes(self.tree, ""):
            for edit in self._edits(node):
                mutation = self._mutation(scope, edit)
                if mutation is not None:
                    yield mutation

    def _nodes(self, parent: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.arg | ast.keyword) and getattr(node, "annotation", None) is not None:
                continue
            inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else scope
            yield scope, node
            yield from self._nodes(node, inner)

    def _members_by_enum(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.isupper():
                found[node.value.id].add(node.attr)
        return {
            name: sorted(members) for name, members in found.items() if name in _ENUMS or name.endswith(_ENUM_ENDINGS)
        }

    def _edits(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare(ops=[op]):
                yield from self._changed_comparison(node, op)
            case ast.BoolOp():
                yield self._changed_junction(node)
            case ast.UnaryOp(op=ast.Not()):
                yield Edit("not removed", node, f"({self._text(node.operand)})")
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                yield from self._changed_sum(node)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                yield from self._other_constant(node, name, attr)
            case ast.stmt():
                yield from self._changed_statement(node)

    def _changed_statement(self, node: ast.stmt) -> Iterator[Edit]:
        match node:
            case ast.If(orelse=[], body=[statement]) if isinstance(statement, _ENDS_FUNCTION):
                yield Edit("guard removed", node.test, "False")
            case ast.Return(value=ast.Constant(value=bool(value))):
                yield Edit("other result", node, f"return {not value}")
            case ast.Expr(value=ast.Call(func=called)) if not self._text(called).startswith(_WITHOUT_EFFECT):
                yield Edit("call removed", node, "pass")

    def _changed_sum(self, node: ast.BinOp) -> Iterator[Edit]:
        if not any(isinstance(side, ast.JoinedStr | ast.List) for side in (node.left, node.right)):
            operator = "-" if isinstance(node.op, ast.Add) else "+"
            yield Edit("other operator", node, f"{self._text(node.left)} {operator} {self._text(node.right)}")

    def _other_constant(self, node: ast.Attribute, name: str, attr: str) -> Iterator[Edit]:
        """Yield the next of the constants that this module uses of the same enumeration."""
        members = self._members.get(name, [])
        if attr in members and len(members) > 1:
            other = members[(members.index(attr) + 1) % len(members)]
            yield Edit("other constant", node, f"{name}.{other}")

    def _changed_comparison(self, node: ast.Compare, op: ast.cmpop) -> Iterator[Edit]:
        left, right = self._text(node.left), self._text(node.comparators[0])
        yield Edit("comparison negated", node, f"{left} {_NEGATED[type(op)]} {right}")
        if type(op) in _OFF_BY_ONE:
            yield Edit("off by one", node, f"{left} {_OFF_BY_ONE[type(op)]} {right}")

    def _changed_junction(self, node: ast.BoolOp) -> Edit:
        word = "or" if isinstance(node.op, ast.And) else "and"
        parts = [self._text(value) for value in node.values]
        safe = [
            f"({part})" if isinstance(value, ast.BoolOp | ast.IfExp | ast.Lambda) and part[0] != "(" else part
            for value, part in zip(node.values, parts, strict=True)
        ]
        return Edit(f"{word} for the other", node, f"({f' {word} '.join(safe)})")

    def _text(self, node: ast.expr) -> str:
        text = ast.get_source_segment(self.source, node) or ""
        before = self.source[: self._offset(node.lineno, node.col_offset)].rstrip()[-1:]
        after = self.source[self._offset(node.end_lineno or 0, node.end_col_offset or 0) :].lstrip()[:1]
        is_in_parentheses = (before, after) == ("(", ")")
        return f"({text})" if is_in_parentheses and not isinstance(node, ast.Name | ast.Constant) else text

    def _offset(self, line: int, column: int) -> int:
        inside = len(self.lines[line - 1].encode()[:column].decode())
        return sum(len(text) for text in self.lines[: line - 1]) + inside

    def _mutation(self, scope: str, edit: Edit) -> Mutation | None:
        start = self._offset(edit.node.lineno, edit.node.col_offset)
        end = self._offset(edit.node.end_lineno or 0, edit.node.end_col_offset or 0)
        mutated = self.source[:start] + edit.text + self.source[end:]
        if not _is_other_code(self.tree, mutated):
            return None
        first, last = edit.node.lineno, edit.node.end_lineno or 0
        while True:
            begin = self._offset(first, 0)
            begin += len(self.lines[first - 1]) - len(self.lines[first - 1].lstrip())
            finish = self._offset(last, len(self.lines[last - 1].encode()))
            original = self.source[begin:finish].rstrip("\n")
            if self.source.count(original) == 1:
                break
            first, last = (first - 1, last) if first > 1 else (first, last + 1)
        changed = mutated[begin : begin + len(original) + len(mutated) - len(self.source)]
        module = self.path.removesuffix(".py").replace("/", ".")
        where = f"{module}.{scope}" if scope else module
        return Mutation(f"{where}: {edit.operator}", self.path, original, changed)


def _is_other_code(tree: ast.Module, mutated: str) -> bool:
    try:
        changed = ast.parse(mutated)
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(tree)


def propose(seed: int, factor: float) -> Iterator[Mutation]:
    """Yield mutations of every module, ``factor`` times as many as ``MODULES`` says."""
    for path, count in MODULES.items():
        found = list(Proposer(path).mutations())
        random.Random(f"{seed} {path}").shuffle(found)
        chosen = Counter[str]()
        for mutation in found[: round(count * factor)]:
            chosen[mutation.name] += 1
            number = chosen[mutation.name]
            yield mutation if number == 1 else replace(mutation, name=f"{mutation.name} ({number})")


def main() -> int:
    """Print the proposal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--factor", type=float, default=1.0, help="how many, relative to the table of modules")
    options = parser.parse_args()
    sys.stdout.write(to_toml(propose(options.seed, options.factor)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
