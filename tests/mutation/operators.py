"""The mistakes: each is one that a tired engineer makes.

Inside functions every operator applies; of what runs once, when a module is loaded, only numbers of defaults and
constants change, because the modules are loaded already when mistakes are planted. Bodies of classes are left alone:
msgspec has made the class of them by then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .rules import is_told, skipped, skips_inside
from .sources import Mutant, Source

__all__ = ["mutants_of"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def mutants_of(source: Source) -> Iterator[Mutant]:
    """All mistakes that can be made in a module, in the order of its text."""
    yield from _Walk(source).visit(source.tree, ())


class _Walk:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._parents: list[ast.AST] = []

    def visit(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        if skipped(node):
            return
        in_function = any(isinstance(parent, _Function) for parent in self._parents)
        if in_function:
            yield from self._statement(node, names)
            yield from self._expression(node, names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not self._parents[1:] and node.value is not None:
            yield from self._loaded("constant", node.value, names)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    yield from self._loaded("default", default, names)
            yield from self._early_return(node, names)
        left = skips_inside(node)
        self._parents.append(node)
        for name, value in ast.iter_fields(node):
            if name in left or isinstance(node, ast.arguments):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.visit(child, names)
        self._parents.pop()

    def _mutant(
        self,
        operator: str,
        node: ast.stmt | ast.expr,
        text: str,
        names: tuple[str, ...],
        lines: tuple[int, int] | None = None,
    ) -> Mutant:
        last = node.end_lineno or node.lineno
        return Mutant(
            module=self._source.name,
            function=".".join(names),
            operator=operator,
            start=(node.lineno, node.col_offset),
            end=(last, node.end_col_offset or 0),
            text=text,
            lines=lines or (node.lineno, last),
        )

    def _early_return(self, node: ast.FunctionDef | ast.AsyncFunctionDef, names: tuple[str, ...]) -> Iterator[Mutant]:
        body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if len(body) > 1 and node.name not in {"__init__", "__post_init__"}:
            yield self._mutant("early return", body[0], "return", names, (body[0].lineno, body[0].lineno))

    def _loaded(self, operator: str, node: ast.expr, names: tuple[str, ...]) -> Iterator[Mutant]:
        """A number that is taken when the module is loaded: a limit becomes another."""
        numbers = [
            part for part in ast.walk(node) if isinstance(part, ast.Constant) and type(part.value) in (int, float)
        ]
        if not numbers or not isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp):
            return
        text = self._source.segment(node)
        small = isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 4
        yield self._mutant(operator, node, f"({text} + 1)" if small else f"(2 * ({text}))", names, (0, 0))

    def _statement(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()) if not is_told(node.value):
                yield self._mutant("call removed", node, "pass", names)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
                if names[-1:] != ("__init__",):  # an attribute that is not there is noticed by anything
                    yield self._mutant("statement removed", node, "pass", names)
            case ast.Raise():
                yield self._mutant("raise removed", node, "pass", names)
            case ast.If(body=[only], orelse=[]) if isinstance(only, _LEAVES):
                yield self._mutant("guard removed", node, "pass", names, self._header(node))
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self._mutant("return value", node, "return None", names)
            case ast.Break():
                yield self._mutant("loop", node, "continue", names)
            case ast.Continue():
                yield self._mutant("loop", node, "break", names)
            case _:
                pass
        if isinstance(node, ast.If | ast.While):
            yield from self._negated(node.test, names)

    def _header(self, node: ast.If) -> tuple[int, int]:
        return node.lineno, node.test.end_lineno or node.lineno

    def _negated(self, test: ast.expr, names: tuple[str, ...]) -> Iterator[Mutant]:
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) not in _ORDERED:
            return  # the comparison becomes its contrary already
        if isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Constant) and test.value is True):
            return
        yield self._mutant("condition negated", test, f"not ({self._source.segment(test)})", names)

    def _expression(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                yield from self._compared(node, names)
            case ast.BoolOp(op=op, values=values):
                texts = [f"({self._source.segment(value)})" for value in values]
                other = " and " if isinstance(op, ast.Or) else " or "
                yield self._mutant("connective", node, f"({other.join(texts)})", names)
                mine = " or " if isinstance(op, ast.Or) else " and "
                for left in range(len(values)):
                    kept = mine.join(text for index, text in enumerate(texts) if index != left)
                    yield self._mutant("condition dropped", node, f"({kept})", names)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield self._mutant("sign", node, f"({self._source.segment(operand)})", names)
            case ast.BinOp(op=op, left=left_side, right=right) if type(op) in _ARITHMETIC:
                if not any(
                    isinstance(side, ast.Constant | ast.JoinedStr) and not _number(side) for side in (left_side, right)
                ):
                    changed = ast.BinOp(left=left_side, op=_ARITHMETIC[type(op)](), right=right)
                    yield self._mutant("arithmetic", node, f"({ast.unparse(changed)})", names)
            case ast.Constant(value=bool(value)):
                yield self._mutant("constant", node, str(not value), names)
            case ast.Constant(value=int(value)):
                yield self._mutant("boundary", node, f"{value + 1}", names)
                if value > 0:
                    yield self._mutant("boundary", node, f"{value - 1}", names)
            case ast.Constant(value=float(value)):
                yield self._mutant("constant", node, f"{value * 2 + 1}", names)
            case ast.IfExp(test=test):
                yield from self._negated(test, names)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._negated(test, names)
            case ast.Call(func=function, args=[first, second, *_]):
                yield from self._swapped(node, first, second, names)
                if isinstance(function, ast.Name) and function.id in {"min", "max"}:
                    yield self._mutant("min and max", function, {"min": "max", "max": "min"}[function.id], names)
            case _:
                pass

    def _compared(self, node: ast.Compare, names: tuple[str, ...]) -> Iterator[Mutant]:
        for place, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:
                ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                changed = ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
                operator = "boundary" if type(op) in _ORDERED else "comparison"
                yield self._mutant(operator, node, ast.unparse(changed), names)

    def _swapped(self, node: ast.Call, first: ast.expr, second: ast.expr, names: tuple[str, ...]) -> Iterator[Mutant]:
        """The first two arguments change places, unless their order cannot matter or their types surely differ."""
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        if isinstance(node.func, ast.Name) and node.func.id in {
            "min",
            "max",
            "isinstance",
            "getattr",
            "hasattr",
            "range",
        }:
            return
        texts = self._source.segment(first), self._source.segment(second)
        if texts[0] == texts[1] or any(
            isinstance(arg, ast.Constant | ast.Lambda | ast.JoinedStr) for arg in (first, second)
        ):
            return
        changed = ast.Call(func=node.func, args=[second, first, *node.args[2:]], keywords=node.keywords)
        yield self._mutant("arguments swapped", node, ast.unparse(changed), names)


_ORDERED = {ast.Lt, ast.LtE, ast.Gt, ast.GtE}


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
