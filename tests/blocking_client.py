"""Generates the blocking half of the client, ``danube/client/sync/_facade.py``, from the asynchronous classes.

``python -m tests.blocking_client`` writes the file; with ``--check`` it only reports whether the file is current.

For each class the generator reads its source: public methods with signatures and docstrings, properties, and the public
attributes that its body declares. What it writes for each of them:

================================  =====================================================================================
asynchronous class                blocking class
================================  =====================================================================================
``async def method``              calls it in the loop, and waits for its result
``def method``                    calls it in the loop (those in ``DIRECT``: in the calling thread)
``@asynccontextmanager``          a ``with`` block of the blocking form of what it opens
property, declared attribute      a property (those in ``IN_LOOP`` are computed in the loop)
attribute that is such a class    an attribute with its blocking form
================================  =====================================================================================

Members that a class in ``CORES`` has are written by hand. The layout is that of ``ruff format``.
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "danube" / "client"
TARGET = CLIENT / "sync" / "_facade.py"
WIDTH = 120

CLASSES = {
    "Pending": ("_receipt", "Pending"),
    "Producer": ("_producer", "Producer"),
    "Consumer": ("_receiver", "Receiver", "_consumer", "Consumer"),
    "Reader": ("_receiver", "Receiver", "_reader", "Reader"),
    "Requester": ("_requests", "Requester"),
    "Responder": ("_requests", "Responder"),
    "Admin": ("_admin", "Admin"),
    "Security": ("_security", "Security"),
    "Storages": ("_storages", "Storages"),
    "LogReading": ("_log_reading", "LogReading"),
    "Logs": ("_logs", "Logs"),
    "Jobs": ("_jobs", "Jobs"),
    "Stage": ("_stages", "Stage"),
    "Stages": ("_stages", "Stages"),
    "Schemas": ("_schemas", "Schemas"),
    "Client": ("_client", "Client"),
}
"""Modules and names of the asynchronous class, after those of its bases, in the order of the generated file."""

CORES = {
    "Consumer": ("_receiver", "ReceiverCore", "_consumer", "ConsumerCore"),
    "Reader": ("_receiver", "ReceiverCore"),
    "LogReading": ("_reading", "LogReadingCore"),
}
"""The base written by hand: its module and name, after those of its own bases."""

BASES = {
    "Producer": "Handle[_producer.Producer[P]], Generic[P]",
    "Consumer": "ConsumerCore[V]",
    "Reader": "ReceiverCore[_reader.Reader[V], V]",
    "LogReading": "LogReadingCore",
}
"""The same as an expression, and the bases of generic classes."""

BY_HAND = {"Batch": "_messages", "Message": "_messages", "Handler": "_handlers"}
"""Other blocking counterparts, and their modules."""

ARGUMENTS = {"Handler": "in_thread({}, self._loop)"}
"""How an argument of a type is passed on."""

RESULTS = {"Message": "message_of({}, self._loop)", "Pending": "Pending({}, self._loop)"}
"""How a result of a type is returned."""

HELPERS = {"in_thread": "_handlers", "message_of": "_messages"}

DIRECT = {"partition_for"}
"""Plain methods that only read what never changes."""

IN_LOOP = {"gaps", "position", "waiting"}
"""Properties that go through collections, which the loop may be changing, or that need its clock."""

PHRASES = {
    "async with ": "with ",
    "await ": "",
    "``await`` the result or :meth:`flush` later": "wait for the result or :meth:`flush` later",
    " The event loop must run: a loop that only calls ``send_nowait`` sends nothing until it awaits something, and"
    " eventually reaches the limit.": "",
    "; ``await`` it for its receipt": "",
    "Awaiting is optional and can be repeated or cancelled without effect on the message. A failure that was not"
    " awaited": "Waiting for its receipt is optional and can be repeated. A failure that was not waited for",
    "; the same as awaiting the object itself": "",
    "Safe to use from many tasks of one event loop.": "Safe to use from many threads.",
    "messages that one task sends": "messages that one thread sends",
    "Several tasks may take": "Several threads may take",
    "several tasks take": "several threads take",
    "Another task has": "Another thread has",
    "Cancelling before": "Interrupting before",
    "cancelling later": "interrupting later",
    "Cancelling abandons": "An interrupt abandons",
    "Cancellation stops": "An interrupt stops",
    "a call that is cancelled": "a call that is interrupted",
    "even if the caller is cancelled": "even if the caller is interrupted",
    "in one task at a time": "in one thread at a time",
    " Use it in the event loop in which it was made.": "",
    "Works under Trio and asyncio. ": "",
    ", an asynchronous function that gets": ", a function that runs in a thread, gets",
    "when the block is left, unfinished requests are given back and delivered again.": "leaving the block waits until"
    " the running ones have returned; their requests are given back and delivered again.",
}
"""Phrases of docstrings, and what they become."""

FORBIDDEN = re.compile(r"\basync|\bawait|event loop|\bTrio\b", re.IGNORECASE)

HEADER = '''"""The blocking classes; behaviour and errors as of the asynchronous classes of the same names.

Generated by ``python -m tests.blocking_client``: change the asynchronous classes, and run it.
"""

# ruff: noqa: A002 - the words of the API
'''


class GeneratorError(Exception):
    """The asynchronous class has something that the generator has no rule for."""


# --- Reading ---------------------------------------------------------------------------------------------------------


class Module:
    """The source of a module."""

    def __init__(self, path: Path, package: str) -> None:
        self.source = path.read_text()
        self.package = package
        self.name = path.stem
        tree = ast.parse(self.source)
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
        self.imported = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (str(node.module), alias.name)
        self.defined = {
            target.id
            for node in tree.body
            for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
            if isinstance(target, ast.Name)
        }

    def text(self, node: ast.AST) -> str:
        """Return the source of a node, in one line."""
        return " ".join(str(ast.get_source_segment(self.source, node)).split())


@dataclass
class Member:
    """A public member of a class."""

    module: Module
    node: ast.AsyncFunctionDef | ast.FunctionDef | ast.AnnAssign
    doc: str

    @property
    def decorators(self) -> set[str]:
        """Names of the decorators."""
        decorators = [] if isinstance(self.node, ast.AnnAssign) else self.node.decorator_list
        return {each.id for each in decorators if isinstance(each, ast.Name)}


def members_of(module: Module, name: str) -> dict[str, Member]:
    """Return the public members of a class."""
    found: dict[str, Member] = {}
    body = module.classes[name].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                raise GeneratorError(f"{name}.{node.target.id} has no docstring")
            found[node.target.id] = Member(module, node, textwrap.dedent(str(after.value.value)))
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name[0] != "_":
            found[node.name] = Member(module, node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for each in ast.walk(node):
                stored = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                if stored and each.attr[0] != "_" and each.attr not in found:
                    raise GeneratorError(f"{name}.{each.attr} is not declared in the body of the class")
    return found


# --- Writing ---------------------------------------------------------------------------------------------------------


def laid_out(before: str, items: list[str], after: str, indent: int) -> list[str]:
    """Return a signature or a call as ``ruff format`` lays it out."""
    space = " " * indent
    line = f"{space}{before}{', '.join(items)}{after}"
    if len(line) <= WIDTH:
        return [line]
    line = f"{space}    {', '.join(items)}"
    if len(line) <= WIDTH:
        return [space + before, line, space + after]
    return [space + before, *(f"{space}    {item}," for item in items), space + after]


def docstring(doc: str, indent: int) -> list[str]:
    """Return the lines of a docstring, with the words of the blocking client."""
    if not doc:
        raise GeneratorError("a public member has no docstring")
    lines: list[str] = []
    for paragraph in re.split(r"\n(?=\n)|\n(?=\s*\S+:(?:\s|$))", doc.strip()):
        text = paragraph
        for phrase, other in PHRASES.items():
            # Lines may be broken anywhere within a phrase.
            text = re.sub(r"\s+".join(map(re.escape, phrase.split(" "))), other, text)
        if FORBIDDEN.search(text):
            raise GeneratorError(f"add what this becomes to PHRASES: {text}")
        if text != paragraph or max(map(len, text.split("\n"))) > WIDTH - indent:
            text = _wrapped(text, WIDTH - indent)
        lines += text.split("\n")
    space = " " * indent
    lines[0] = f'"""{lines[0]}'
    if len(lines) == 1:
        return [f'{space}{lines[0]}"""']
    return [*(f"{space}{line}".rstrip() for line in lines), f'{space}"""']


def _wrapped(paragraph: str, width: int) -> str:
    """Return a paragraph with its lines broken again, and indented as before."""
    blank = "\n" * (len(paragraph) - len(paragraph.lstrip("\n")))
    indents = [line[: len(line) - len(line.lstrip())] for line in paragraph.strip("\n").split("\n")]
    lines = textwrap.wrap(
        " ".join(paragraph.split()),
        width - 3,  # of the quotes
        initial_indent=indents[0],
        subsequent_indent=indents[-1],
        break_long_words=False,
        break_on_hyphens=False,
    )
    return blank + "\n".join(lines)


class Facade:
    """The generated module."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        self.imports: set[tuple[str, str]] = {("danube.client.sync._handles", "Handle")}
        self.lines: list[str] = []

    def module(self, name: str, folder: str = "") -> Module:
        """Return a module of the client."""
        path = CLIENT / folder / f"{name}.py"
        package = f"danube.client.{folder}".rstrip(".")
        return self.modules.setdefault(str(path), Module(path, package))

    def use(self, module: Module, node: ast.AST) -> str:
        """Return the source of an annotation or a default, and import the names in it."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._use_name(module, each.id)
        return module.text(node)

    def _use_name(self, module: Module, name: str) -> None:
        if name in BY_HAND:
            self.imports.add((f"danube.client.sync.{BY_HAND[name]}", name))
        elif name not in CLASSES:
            if name in module.imported:
                self.imports.add(module.imported[name])
            elif name in module.defined or name in module.classes:
                self.imports.add((f"{module.package}.{module.name}", name))

    def add(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines

    def parameters(self, module: Module, node: ast.AsyncFunctionDef | ast.FunctionDef) -> tuple[list[str], list[str]]:
        """Return the parameters as declared, and as they are passed on."""
        arguments = node.args
        declared: list[str] = []
        passed: list[str] = []
        positional = arguments.args
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        if arguments.posonlyargs or arguments.vararg:
            raise GeneratorError(f"{node.name} has parameters that the generator does not know")
        for each, default in zip(positional, defaults, strict=True):
            if each.arg == "self":
                declared.append("self")
            else:
                declared.append(self._declared(module, each, default))
                passed.append(_converted(each))
        if arguments.kwonlyargs:
            declared.append("*")
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            declared.append(self._declared(module, each, default))
            passed.append(f"{each.arg}={_converted(each)}")
        if arguments.kwarg is not None:
            declared.append(f"**{self._declared(module, arguments.kwarg, None)}")
            passed.append(f"**{arguments.kwarg.arg}")
        return declared, passed

    def _declared(self, module: Module, argument: ast.arg, default: ast.expr | None) -> str:
        assert argument.annotation is not None
        text = f"{argument.arg}: {self.use(module, argument.annotation)}"
        return text if default is None else f"{text} = {self.use(module, default)}"

    def method(self, member: Member) -> None:
        """Write a method."""
        module, node = member.module, member.node
        assert isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
        assert node.returns is not None
        declared, passed = self.parameters(module, node)
        target = f"self._inner.{node.name}"
        if "asynccontextmanager" in member.decorators:
            assert isinstance(node.returns, ast.Subscript)
            kind = self.use(module, node.returns.slice)
            self.imports |= {("contextlib", "AbstractContextManager"), ("danube.client.sync._handles", "opened")}
            self.add(*laid_out(f"def {node.name}(", declared, f") -> AbstractContextManager[{kind}]:", 4))
            self.add(*docstring(member.doc, 8))
            opening = laid_out(f"opening = {target}(", passed, ")", 8)
            self.add(*opening, f"        return opened(self._loop, opening, {kind.partition('[')[0]})")
            self._use_helpers(passed)
            return
        returns = self.use(module, node.returns)
        self.add(*laid_out(f"def {node.name}(", declared, f") -> {returns}:", 4), *docstring(member.doc, 8))
        if node.name in DIRECT:
            before = f"{target}("
        elif isinstance(node, ast.AsyncFunctionDef):
            before, passed = "self._loop.run(", [target, *passed]
        else:
            before, passed = "self._loop.call(", [target, *passed]
        if returns in RESULTS:
            result = RESULTS[returns].format("result")
            self.add(*laid_out(f"result = {before}", passed, ")", 8), f"        return {result}")
            self._use_helpers([result])
        else:
            self.add(*laid_out(before if returns == "None" else f"return {before}", passed, ")", 8))
        self._use_helpers(passed)

    def _use_helpers(self, texts: list[str]) -> None:
        for helper, where in HELPERS.items():
            if any(f"{helper}(" in text for text in texts):
                self.imports.add((f"danube.client.sync.{where}", helper))

    def property(self, name: str, member: Member) -> None:
        """Write a property."""
        node = member.node
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else node.returns
        assert annotation is not None
        self.add("    @property", f"    def {name}(self) -> {self.use(member.module, annotation)}:")
        self.add(*docstring(member.doc, 8))
        value = f"self._inner.{name}"
        self.add(f"        return self._loop.call(lambda: {value})" if name in IN_LOOP else f"        return {value}")

    def write_class(self, name: str) -> None:
        """Write a class."""
        path = CLASSES[name]
        members: dict[str, Member] = {}
        for module_name, class_name in zip(path[::2], path[1::2], strict=True):
            members |= members_of(self.module(module_name), class_name)
        module = self.module(path[-2])
        by_hand = set()
        base = BASES.get(name, f"Handle[{path[-2]}.{path[-1]}]")
        if name in CORES:
            core = CORES[name]
            for module_name, class_name in zip(core[::2], core[1::2], strict=True):
                by_hand |= set(members_of(self.module(module_name, "sync"), class_name))
            self.imports.add((f"danube.client.sync.{core[-2]}", core[-1]))
        if "Generic" in base:
            self.imports |= {("typing", "Generic"), ("danube.client._generics", "P")}
        if f"{path[-2]}." in base:
            self.imports.add(("danube.client", path[-2]))
        self.add("", "", f"class {name}({base}):", *docstring(ast.get_docstring(module.classes[path[-1]]) or "", 4))
        parts = {
            each: kind
            for each, member in members.items()
            if isinstance(member.node, ast.AnnAssign) and (kind := module.text(member.node.annotation)) in CLASSES
        }
        if parts:
            self.imports |= {("danube.client", path[-2]), ("danube.client.sync._loop", "Loop")}
            self.add("")
            for each, kind in parts.items():
                self.add(f"    {each}: {kind}", *docstring(members[each].doc, 4))
            self.add("", f"    def __init__(self, inner: {path[-2]}.{path[-1]}, loop: Loop) -> None:")
            self.add("        super().__init__(inner, loop)")
            for each, kind in parts.items():
                self.add(f"        self.{each} = {kind}(inner.{each}, loop)")
        for each, member in members.items():
            if each in by_hand or each in parts:
                continue
            self.add("")
            if isinstance(member.node, ast.AnnAssign) or "property" in member.decorators:
                self.property(each, member)
            else:
                self.method(member)

    def write_connect(self) -> None:
        """Write the function that connects."""
        module = self.module("_client")
        node = module.functions["connect"]
        declared, passed = self.parameters(module, node)
        declared.append('backend: Literal["asyncio", "trio"] = "asyncio"')
        doc = (ast.get_docstring(node) or "").replace(
            "\n\nRaises:", "\n    backend: the library whose loop runs in the background thread.\n\nRaises:"
        )
        self.imports |= {("collections.abc", "Iterator"), ("contextlib", "contextmanager"), ("typing", "Literal")}
        self.imports |= {("danube.client", "_client"), ("danube.client.sync._loop", "run_block")}
        self.add("", "", "@contextmanager", *laid_out("def connect(", declared, ") -> Iterator[Client]:", 0))
        self.add(*docstring(doc, 4))
        self.add(*laid_out("connecting = _client.connect(", passed, ")", 4))
        self.add("    with run_block(connecting, backend) as (inner, loop):", "        yield Client(inner, loop)")

    def imported(self) -> list[str]:
        """Return the lines that import."""
        found: dict[str, list[str]] = {}
        for module, name in self.imports:
            found.setdefault(module, []).append(name)
        sections: tuple[list[str], list[str]] = ([], [])
        for module in sorted(found):
            names = sorted(
                found[module],
                key=lambda name: (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name),
            )
            line = f"from {module} import {', '.join(names)}"
            lines = [line]
            if len(line) > WIDTH:
                lines = [f"from {module} import (", *(f"    {name}," for name in names), ")"]
            sections[module.startswith("danube")].extend(lines)
        return ["from __future__ import annotations", "", *sections[0], "", *sections[1], ""]

    def text(self) -> str:
        """Return the text of the module."""
        for name in CLASSES:
            self.write_class(name)
        self.write_connect()
        names = laid_out("__all__ = [", [f'"{name}"' for name in [*sorted(CLASSES), "connect"]], "]", 0)
        return "\n".join([HEADER, *self.imported(), *names, *self.lines, ""])


def _converted(argument: ast.arg) -> str:
    kind = argument.annotation.id if isinstance(argument.annotation, ast.Name) else ""
    return ARGUMENTS[kind].format(argument.arg) if kind in ARGUMENTS else argument.arg


def generated() -> str:
    """Return the text that ``_facade.py`` must have."""
    return Facade().text()


def main() -> int:
    """Write the file, or with ``--check`` report how it differs."""
    text = generated()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    written = TARGET.read_text()
    if written == text:
        return 0
    sys.stdout.writelines(difflib.unified_diff(written.splitlines(True), text.splitlines(True), "written", "generated"))
    sys.stderr.write(f"{TARGET} is not current; run: python -m tests.blocking_client\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
