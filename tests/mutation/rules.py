"""Code without mutants, because no test should detect them or because they can never matter."""

from __future__ import annotations

import ast

__all__ = ["is_told", "skipped", "skips_inside"]

_FOR_HUMANS = {"__repr__", "__str__", "__rich__", "describe_error"}
"""Functions whose results are read by people only."""

_ASSERTIONS = {"strict"}
"""Arguments that assert something."""

_LOGGERS = {"log", "_log"}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_told(node: ast.AST) -> bool:
    """Whether a call writes a log line or a warning, makes an error (its text, that is), or does nothing when run."""
    if isinstance(node, ast.Await):
        return is_told(node.value)
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute) and _name(function.value) in _LOGGERS:
        return True
    name = _name(function)
    # checkpoint() lets others run: which of them and when is the scheduler's business.
    return name in {"warn", "cast", "checkpoint", "getLogger"} or name.endswith(("Error", "Exception", "Warning"))


def skipped(node: ast.AST) -> bool:
    """Whether neither a node nor what is in it is mutated."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name in _FOR_HUMANS or any(
                _name(d) in {"overload", "abstractmethod"} for d in node.decorator_list
            )
        case ast.ClassDef():
            return any(_name(base) == "Protocol" for base in node.bases)
        case ast.If(test=test):
            return _name(test) == "TYPE_CHECKING"
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call():
            return is_told(node)
        case ast.keyword():
            return node.arg in _ASSERTIONS
        case _:
            return False


def skips_inside(node: ast.AST) -> set[str]:
    """The fields of a node that are not looked into: annotations, decorators, what is raised, what is caught."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return {"decorator_list", "returns"}
        case ast.ClassDef():
            return {"decorator_list", "bases", "keywords"}
        case ast.arg() | ast.AnnAssign():
            return {"annotation"}
        case ast.Raise():
            return {"exc", "cause"}
        case ast.ExceptHandler():
            return {"type"}
        case _:
            return set()
