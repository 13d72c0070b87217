"""The structure of the code: which modules are pure, where durabilities are compared, and which types ids have.

import-linter holds the modules listed in its contracts to them (``tox -e lint``). These tests hold the list of pure
modules to the code: it is complete, and the share of pure code does not shrink.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
CONTRACT = "Pure cores do no I/O"
LEFT_OUT = ("danube.cli", "danube.testing")
GENERATED = re.compile(r"danube[.]client[.]sync[.]_facade|danube[.]compat[.]proto[.]\w+_pb2")
"""Generated modules, pure or not, do not count: a share of the code that is written is the point."""
LEAST_SHARE = 0.51
"""Share of the lines of code in modules under the contract, without those left out. Raise it when it has grown."""
CLAIM = re.compile(r"(^|[.]\s+)Pure\b")
"""A module calls itself pure with a sentence that begins with this word."""
TYPES = {
    "topic_id": "TopicId",
    "topic_ids": "TopicId",
    "producer_id": "ProducerId",
    "producer_epoch": "ProducerEpoch",
    "resume_epoch": "ProducerEpoch",
    "owner_epoch": "OwnerEpoch",
    "writer_epoch": "OwnerEpoch",
}
"""The types of :mod:`danube.model.ids` that fields, variables and parameters of these names have."""
OFFSETS = ("base_offset", "end_offset", "next_offset", "sealed_offset", "start_offset")
"""Names of offsets in the packages whose offsets have a type."""
SUMS = ("TopicInfo", "RestoredTopic")
"""Structs whose offsets are sums over partitions."""


class Module:
    """One module: its tree, and the modules that it imports, those for type checkers included."""

    def __init__(self, name: str, path: Path) -> None:
        source = path.read_text("utf-8")
        self.name = name
        self.is_package = path.name == "__init__.py"
        self.lines = source.count("\n")
        self.tree = ast.parse(source)
        self.doc = ast.get_docstring(self.tree) or ""
        self.is_async = False
        self.imported: set[str] = set()
        for node in statements(self.tree):
            self.is_async = self.is_async or isinstance(node, ast.AsyncFunctionDef)
            if isinstance(node, ast.Import):
                self.imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                assert node.module is not None, "imports are absolute"
                self.imported.update(f"{node.module}.{alias.name}" for alias in node.names)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, and what holds them; expressions are left out, because there are many."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):
                left.extend(inner)


@cache
def modules() -> dict[str, Module]:
    """Return the modules by name, without those left out."""
    found = {}
    for path in sorted((CHECKOUT / "danube").rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not is_in(name, LEFT_OUT):
            found[name] = Module(name, path)
    return found


@cache
def contract() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the modules and packages under the contract, and the modules that it forbids."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    (found,) = [each for each in settings["tool"]["importlinter"]["contracts"] if each["name"].startswith(CONTRACT)]
    return tuple(found["source_modules"]), frozenset(found["forbidden_modules"])


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or below one of them."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@cache
def qualified() -> frozenset[str]:
    """Return the modules that do no I/O, nor anything that they import, and have no asynchronous functions."""
    every, forbidden = modules(), contract()[1]

    def resolved(module: Module) -> set[str]:
        return {name if name in every else name.rpartition(".")[0] for name in module.imported}

    ours = {name: resolved(module) & every.keys() for name, module in every.items()}
    impure = {
        name for name, module in every.items() if any(each.partition(".")[0] in forbidden for each in module.imported)
    }
    while more := {name for name, imported in ours.items() if name not in impure and imported & impure}:
        impure |= more
    return frozenset(name for name, module in every.items() if name not in impure and not module.is_async)


def below(package: str) -> list[str]:
    """Return the modules of a package, itself included."""
    return [name for name in modules() if is_in(name, (package,))]


def test_every_pure_module_is_under_the_contract() -> None:
    listed, _ = contract()
    missing = sorted(
        name
        for name in qualified()
        if not is_in(name, listed)
        # A package in the list stands for everything in it.
        and (not modules()[name].is_package or all(each in qualified() for each in below(name)))
    )
    assert not missing, "add them to the contract in pyproject.toml"


def test_every_module_that_calls_itself_pure_is_under_the_contract() -> None:
    listed, _ = contract()
    claiming = [name for name, module in modules().items() if CLAIM.search(module.doc)]
    assert len(claiming) > 20
    assert [name for name in claiming if not is_in(name, listed)] == []


def test_the_contract_lists_modules_that_exist_and_each_once() -> None:
    listed, _ = contract()
    assert [name for name in listed if name not in modules()] == []
    assert [name for name in listed if is_in(name, tuple(each for each in listed if each != name))] == []


def test_modules_of_tests_have_different_names() -> None:
    """pytest imports them by these names alone; two of the same name end a whole run before its first test."""
    names = [path.name for path in (CHECKOUT / "tests").rglob("*.py")]
    packages = {"__init__.py", "__main__.py", "conftest.py"}
    assert sorted({name for name in names if names.count(name) > 1} - packages) == []


def test_the_share_of_pure_code_does_not_shrink() -> None:
    listed, _ = contract()
    written = {name: module.lines for name, module in modules().items() if not GENERATED.fullmatch(name)}
    assert len(modules()) - len(written) == 8, "the generated modules"
    pure = sum(lines for name, lines in written.items() if is_in(name, listed))
    share = pure / sum(written.values())
    assert share >= LEAST_SHARE, f"{share:.4f}"


def comparisons(name: str, enumeration: str) -> list[str]:
    """Return the lines of a module in which a value is compared with a member of an enumeration."""
    found = []
    for node in ast.walk(modules()[name].tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            if any(isinstance(each.value, ast.Name) and each.value.id == enumeration for each in inner):
                found.append(f"{name}:{node.lineno}")
    return found


def test_durabilities_are_compared_by_their_levels_only() -> None:
    compared = []
    for name in modules():
        if is_in(name, ("danube.broker", "danube.history")) and not is_in(name, ("danube.broker.durability",)):
            compared += comparisons(name, "Durability")
    assert not compared, "ask the topic or its level for a trait instead"


def test_only_the_choice_of_the_machine_depends_on_the_type_of_a_subscription() -> None:
    compared = [line for name in modules() for line in comparisons(name, "SubscriptionType")]
    assert compared, "the choice itself is one"
    assert [line for line in compared if not line.startswith("danube.dispatch:")] == [], (
        "ask the type for a trait instead (SUBSCRIPTION_TRAITS in danube/model/policies.py)"
    )


def annotations(tree: ast.AST) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield annotated names, each with the class whose field it is (or an empty string) and its annotation."""
    owners: dict[ast.AST, str] = {}
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            owners.update(dict.fromkeys(node.body, node.name))
        elif isinstance(node, ast.AnnAssign):
            name = node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")
            yield name, owners.get(node, ""), node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if each.annotation is not None:
                    yield each.arg, "", each.annotation


def test_ids_epochs_and_offsets_are_declared_with_their_types() -> None:
    typed, plain = 0, []
    for name, module in modules().items():
        has_offsets = is_in(name, ("danube.model", "danube.log", "danube.history", "danube.broker"))
        for declared, owner, annotation in annotations(module.tree):
            wanted = TYPES.get(declared.lstrip("_"))
            if declared.lstrip("_") in OFFSETS and has_offsets and owner not in SUMS:
                wanted = "Offset"
            if wanted is not None and wanted in ast.unparse(annotation):
                typed += 1
            elif wanted is not None:
                plain.append(f"{name}:{annotation.lineno} {declared}: {ast.unparse(annotation)}")
    assert typed > 150
    assert plain == [], "use the types of danube/model/ids.py"
