"""Build the API reference: ``python docs/reference/build.py OUTPUT``; a warning is an error.

Each module of ``danube`` gets a page. An object is documented once: where it is defined, or, if that is a private
module, in the package that exports it.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sphinx.cmd.build import main as sphinx_build

HERE = Path(__file__).parent
PUBLIC = {
    "For applications": ["danube", "danube.client", "danube.client.sync", "danube.model"],
    "For plugins and tests": ["danube.metadata", "danube.storage", "danube.testing"],
}
"""Packages for users, in the order of the front page; all others come behind them."""
LEFT_OUT = ("danube.cli", "danube.compat.proto", "danube.__main__", "danube.testing.simulation.__main__")
"""Commands, which ``--help`` documents, generated code, and modules that run a program when they are imported."""


def modules() -> Iterator[ModuleType]:
    """Import all modules."""
    import danube

    yield danube
    for found in pkgutil.walk_packages(danube.__path__, "danube."):
        if not f"{found.name}.".startswith(tuple(f"{name}." for name in LEFT_OUT)):
            yield importlib.import_module(found.name)


def is_private(name: str) -> bool:
    """Whether a module has an underscore in front of one of its parts."""
    return any(part.startswith("_") for part in name.split("."))


def exported(module: ModuleType) -> dict[str, object]:
    """Return the classes and functions that a package exports out of private modules directly below it."""
    found = {}
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not hasattr(value, "__name__"):
            continue  # an object: its module would be that of its class
        home, _, last = (getattr(value, "__module__", None) or "").rpartition(".")
        if home == module.__name__ and last.startswith("_") and not is_private(home):
            found[name] = value
    return found


def page(module: ModuleType, taken: set[str]) -> str:
    """Return the page of a module: what it exports, then what it defines."""
    name = module.__name__
    # What a public package exports is documented there, and not a second time where it is defined.
    hidden = sorted(item.rpartition(".")[2] for item in taken if item.rpartition(".")[0] == name)
    if name == "danube":
        hidden = ["Client", "connect"]  # they are those of danube.client
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", "   :members:", "   :ignore-module-all:"]
    if hidden:
        lines.append(f"   :exclude-members: {', '.join(hidden)}")
    for item, value in exported(module).items():
        if not getattr(value, "__doc__", None):
            continue
        lines.append("")
        if isinstance(value, type):
            foreign = [base.__name__ for base in value.__mro__ if not base.__module__.startswith("danube")]
            lines += [f".. autoclass:: {name}.{item}", "   :members:", f"   :inherited-members: {', '.join(foreign)}"]
        elif callable(value):
            lines.append(f".. autofunction:: {name}.{item}")
    return "\n".join([*lines, ""])


def front_page(names: list[str]) -> str:
    """Return the table of contents."""
    title = "Danube: API reference"
    lines = [title, "=" * len(title), "", "Made from the docstrings. Modules with an underscore are private."]
    listed: set[str] = set()
    for heading, packages in PUBLIC.items():
        chosen = [
            name
            for name in names
            if name not in listed
            and not is_private(name)
            and any(name == package or (package != "danube" and name.startswith(f"{package}.")) for package in packages)
        ]
        listed.update(chosen)
        lines += contents(heading, chosen)
    lines += contents("The broker from inside", [name for name in names if name not in listed and not is_private(name)])
    lines += contents("Private modules", [name for name in names if is_private(name)])
    return "\n".join([*lines, ""])


def contents(heading: str, names: list[str]) -> list[str]:
    """Return a table of contents with a heading."""
    return [
        "",
        heading,
        "-" * len(heading),
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *(f"   {name}" for name in names),
    ]


def main(output: Path) -> int:
    """Write the pages and let Sphinx render them; return its exit code."""
    source = output / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    found = list(modules())
    taken = {f"{value.__module__}.{value.__name__}" for module in found for value in exported(module).values()}
    for module in found:
        (source / f"{module.__name__}.rst").write_text(page(module, taken))
    (source / "index.rst").write_text(front_page([module.__name__ for module in found]))
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--conf-dir", str(HERE), "--jobs", "auto"]
    return sphinx_build([*options, str(source), str(output / "html")])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")))
