"""Evaluate the Python expressions of workflows without running them as Python code.

The evaluator walks the syntax tree and supports only what is listed here: no attributes of objects, no imports, and
no calls except a few functions and the methods of strings, lists and objects. The sandbox process in which it runs
limits time and memory.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

MAX_STEPS: Final = 100_000
MAX_POWER: Final = 1_000
MAX_LENGTH: Final = 1 << 20


class ExpressionError(ValueError):
    """The expression is invalid, or cannot be evaluated with these inputs; users see the message."""


_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


def _bounded_range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MAX_STEPS:
        raise ExpressionError(f"the range has more than {MAX_STEPS} elements")
    return found


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (abs, all, any, bool, dict, enumerate, float, int, len, list, max, min, round, sorted, str, sum)
} | {"zip": zip, "range": _bounded_range}
# ``str.format`` must stay out: its fields can read any attribute of a value.
_METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset(
        {"lower", "upper", "title", "capitalize", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"}
        | {"split", "splitlines", "join", "replace", "startswith", "endswith", "find", "count", "isdigit"}
    ),
    list: frozenset({"index", "count"}),
    dict: frozenset({"get", "keys", "values", "items"}),
}
_CONSTANT_NAMES: Final = {"true": True, "false": False, "null": None}


def check_expression(text: str) -> None:
    """Raise ExpressionError for an expression that no inputs could make valid."""
    for node in ast.walk(_parse(text)):
        if isinstance(node, ast.expr) and not hasattr(_Evaluation, f"_{type(node).__name__.lower()}"):
            raise ExpressionError(f"{type(node).__name__} is not allowed in an expression")


def evaluate_expression(text: str, inputs: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which sees each input by name, and all of them as ``inputs``.

    Raises ExpressionError.
    """
    check_expression(text)
    try:
        names = dict(_CONSTANT_NAMES) | dict(inputs) | {"inputs": dict(inputs)}
        value = _Evaluation(names).value(_parse(text))
    except ExpressionError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{type(error).__name__}: {error}") from error
    return _as_plain_value(value)


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError("the expression is nested too deeply") from error


def _as_plain_value(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, dict):
        return {str(key): _as_plain_value(part) for key, part in value.items()}
    return [_as_plain_value(part) for part in value]


class _Evaluation:
    """One evaluation: a method for each kind of syntax node. A kind without a method is not allowed."""

    def __init__(self, names: Mapping[str, Any]):
        self._names = dict(names)
        self._steps = 0

    def value(self, node: ast.expr) -> Any:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise ExpressionError(f"the expression takes more than {MAX_STEPS} steps")
        return getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, str | int | float | bool | None):
            raise ExpressionError(f"{node.value!r} is not allowed")
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self._names:
            raise ExpressionError(f"there is no input named “{node.id}”")
        return self._names[node.id]

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        if isinstance(owner, dict):
            return owner.get(node.attr)
        raise ExpressionError(f"“.{node.attr}” works on objects only")

    def _subscript(self, node: ast.Subscript) -> Any:
        return self.value(node.value)[self.value(node.slice)]

    def _slice(self, node: ast.Slice) -> slice:
        return slice(*(part and self.value(part) for part in (node.lower, node.upper, node.step)))

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if type(node.op) not in _BINARY:
            raise ExpressionError(f"the operator {type(node.op).__name__} is not allowed")
        # An operation counts as one step however long it takes, so the operands of expensive ones are limited.
        if isinstance(node.op, ast.Pow) and not abs(right) <= MAX_POWER:
            raise ExpressionError(f"the exponent is larger than {MAX_POWER}")
        if isinstance(node.op, ast.Mult):
            _check_product(left, right)
        return _BINARY[type(node.op)](left, right)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if type(node.op) not in _UNARY:
            raise ExpressionError(f"the operator {type(node.op).__name__} is not allowed")
        return _UNARY[type(node.op)](self.value(node.operand))

    def _boolop(self, node: ast.BoolOp) -> Any:
        stop = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is stop:
                break
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for comparison, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part)
            if not _COMPARE[type(comparison)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        if self.value(node.test):
            return self.value(node.body)
        return self.value(node.orelse)

    def _list(self, node: ast.List | ast.Tuple) -> list[Any]:
        return [self.value(part) for part in node.elts]

    _tuple = _list

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if None in node.keys:
            raise ExpressionError("“**” is not allowed")
        pairs = zip(node.keys, node.values, strict=True)
        return {self.value(key): self.value(part) for key, part in pairs if key is not None}

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        return "".join(str(self.value(part)) for part in node.values)

    def _formattedvalue(self, node: ast.FormattedValue) -> str:
        if node.format_spec is not None:
            raise ExpressionError("a format specification after “:” is not allowed")
        return str(self.value(node.value))

    def _call(self, node: ast.Call) -> Any:
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            raise ExpressionError("only positional arguments are allowed in a call")
        called = self._called(node.func)
        return called(*(self.value(part) for part in node.args))

    def _called(self, node: ast.expr) -> Callable[..., Any]:
        if isinstance(node, ast.Name) and node.id in _FUNCTIONS:
            return _FUNCTIONS[node.id]
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if node.attr in _METHODS.get(type(owner), ()):
                method: Callable[..., Any] = getattr(owner, node.attr)
                return method
        raise ExpressionError("only a few functions, and methods of strings, lists and objects, can be called")

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        return list(self._comprehended(node))

    _generatorexp = _listcomp

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp) -> Iterator[Any]:
        if len(node.generators) != 1 or not isinstance(node.generators[0].target, ast.Name):
            raise ExpressionError("a comprehension must have exactly one “for” with one plain name")
        loop, name = node.generators[0], node.generators[0].target.id
        before = dict(self._names)
        for part in self.value(loop.iter):
            self._names[name] = part
            if all(self.value(test) for test in loop.ifs):
                yield self.value(node.elt)
        self._names = before


def _check_product(left: Any, right: Any) -> None:
    for text, times in ((left, right), (right, left)):
        if isinstance(text, str | list) and isinstance(times, int) and len(text) * times > MAX_LENGTH:
            raise ExpressionError(f"the result would be longer than {MAX_LENGTH}")
