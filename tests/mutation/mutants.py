"""The faults that are put into a module: small changes by the operators of Cosmic Ray, and by three of our own."""

from __future__ import annotations

import ast
import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider


class DropOperand(Operator):
    """`a and b` becomes `b` or `a`; `or` likewise: a condition that was forgotten."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type in ("and_test", "or_test"):
            for child in node.children[::2]:
                yield child.start_pos, child.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        del node.children[max(2 * index - 1, 0) : max(2 * index - 1, 0) + 2]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class DropStatement(Operator):
    """A call for its effect, a `raise`, a `del` or a `+=` becomes `pass`: a step that was forgotten."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", first.start_pos, first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _has_effect(statement: Any) -> bool:
    if statement.type in ("raise_stmt", "del_stmt"):
        return True
    if statement.type == "expr_stmt":  # a[b] = c, a.b = c, a += b
        return statement.children[0].type in ("atom_expr", "power") or statement.children[1].type == "augassign"
    return statement.type in ("atom_expr", "power") and statement.children[-1].type == "trailer"


class SwapIn(Operator):
    """`in` becomes `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "comparison":
            for operator in self._operators(node):
                yield operator.start_pos, operator.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        operator = self._operators(node)[index]
        other = " not in" if operator.get_code().strip() == "in" else " in"
        node.children[node.children.index(operator)] = parso.parse(other)
        return node

    @staticmethod
    def _operators(node: Any) -> list[Any]:
        return [each for each in node.children[1::2] if each.get_code().split() in (["in"], ["not", "in"])]

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


_WORDS = (
    "AddNot",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "NumberReplacer",
    "ExceptionReplacer",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
    "RemoveDecorator",
)
_SIGNS = {
    "ReplaceUnaryOperator": ("USub_UAdd", "Delete_Not", "Delete_Invert"),
    "ReplaceBinaryOperator": (
        "Add_Sub",
        "Sub_Add",
        "Mul_Div",
        "Div_Mul",
        "FloorDiv_Div",
        "Mod_Mul",
        "Pow_Mul",
        "BitOr_BitAnd",
        "BitAnd_BitOr",
        "LShift_RShift",
    ),
    "ReplaceComparisonOperator": ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt"),
}
_OPPOSITES = ("Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
_CORE = [*_WORDS, *(f"{kind}_{pair}" for kind, pairs in _SIGNS.items() for pair in pairs)]
_CORE += [f"ReplaceComparisonOperator_{pair}" for pair in _OPPOSITES]
"""Of Cosmic Ray's operators: for each sign the neighbour and the opposite, not every other sign there is."""

_NEGATIONS = {"SwapIn", *(f"ReplaceComparisonOperator_{pair}" for pair in _OPPOSITES)}
GENERATION = 1
"""Counted up when other mutants are made of the same module: those that are kept are then made anew."""
_BINARY = ("arith_expr", "term", "power", "expr", "and_expr", "shift_expr")

OPERATORS: dict[str, Operator] = {name: OperatorProvider()[name]() for name in _CORE}
OPERATORS |= {kind.__name__: kind() for kind in (DropOperand, DropStatement, SwapIn)}


@dataclass(frozen=True)
class Mutant:
    """One fault in one module."""

    module: str
    operator: str
    occurrence: int
    lines: tuple[int, int]
    """From the first line of the statement to the last line that is changed."""
    at_import: bool
    """Outside of every function, so that it acts when the module is imported."""
    was: str
    now: str
    """The changed lines, without indentation."""
    code: str

    @property
    def identity(self) -> str:
        """The same as long as the module stays the same."""
        return hashlib.sha256(f"{self.module}\n{self.code}".encode()).hexdigest()[:16]


def mutants_of(module: str, code: str) -> list[Mutant]:
    """All of them, in the order of the lines. Two operators that come to the same code are one mutant."""
    found: dict[str, Mutant] = {}
    original = _tree(code)
    parsed = get_ast(code)
    fresh = pickle.dumps(
        parsed
    )  # an operator changes the tree it is given; to parse again would take ten times as long
    for name, operator in OPERATORS.items():
        occurrence = 0
        for node in ast_nodes(parsed):
            for start, stop in operator.mutation_positions(node):
                if not _of_no_account(name, node, start):
                    mutated = MutationVisitor(occurrence, operator).walk(pickle.loads(fresh)).get_code()  # noqa: S301
                    tree = _tree(mutated)
                    if tree is not None and tree != original and tree not in found:
                        found[tree] = _mutant(module, name, occurrence, node, start, stop, code, mutated)
                occurrence += 1
    return sorted(found.values(), key=lambda mutant: (mutant.lines, mutant.operator, mutant.occurrence))


def _tree(code: str) -> str | None:
    """What the code says; None if it is no Python: Cosmic Ray takes the stars of `{**a}` for a power."""
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _changed_lines(before: list[str], after: list[str]) -> tuple[str, str]:
    """What is between the lines that both begin with and those that both end with."""
    head = _alike(before, after)
    tail = _alike(before[:head:-1], after[:head:-1])
    was, now = (" ".join(line.strip() for line in lines[head : len(lines) - tail]) for lines in (before, after))
    return was, now


def _alike(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_condition(node: Any) -> bool:
    """Whether the comparison is all that an `if` or a `while` asks: then `AddNot` turns it round already."""
    above = node.parent
    if above.type in ("if_stmt", "while_stmt"):
        return True
    return bool(above.type == "test" and above.children[2] is node)


def _mutant(
    module: str, name: str, occurrence: int, node: Any, start: Any, stop: Any, code: str, mutated: str
) -> Mutant:
    was, now = _changed_lines(code.splitlines(), mutated.splitlines())
    statement, function = node, parso.tree.search_ancestor(node, "funcdef", "lambdef")
    while statement.parent is not None and statement.parent.type not in ("suite", "file_input"):
        statement = statement.parent
    in_header = function is not None and start < function.children[-1].start_pos
    return Mutant(
        module, name, occurrence, (statement.start_pos[0], stop[0]), function is None or in_header, was, now, mutated
    )


def _of_no_account(operator: str, node: Any, start: tuple[int, int]) -> bool:
    """What is never evaluated (annotations), said twice, no operator, or how many characters of a text are shown."""
    if operator in _NEGATIONS and _is_condition(node):
        return True
    inner = next((leaf for leaf in ast_nodes(node) if not hasattr(leaf, "children") and leaf.start_pos == start), node)
    if operator.startswith("ReplaceBinaryOperator") and inner.parent.type not in _BINARY:
        return True  # a star before arguments
    while inner is not None and inner.type not in ("suite", "file_input"):
        above = inner.parent
        if above is not None:
            place = above.children.index(inner) if inner in above.children else -1
            if above.type == "annassign" and place == 1:
                return True
            if above.type == "tfpdef" and place == 2:
                return True
            if above.type == "funcdef" and place > 0 and getattr(above.children[place - 1], "value", "") == "->":
                return True
            if above.type == "argument" and above.children[0].get_code().strip() == "limit":
                return True
        inner = above
    return False
