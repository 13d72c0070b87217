"""Sphinx: the API reference from the docstrings; ``tox -e docs`` builds it, see ``build.py``.

A role names its target as code would: ``:meth:`Client.consumer``` is the method of the nearest class of that name, seen
from the docstring. A role that resolves to nothing is a warning, and so an error. Names of other packages are looked up
in those packages and printed without a link, so that no build depends on the network.
"""

from __future__ import annotations

import builtins
import importlib
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from docutils import nodes

from danube.client import _outbox, _receipt
from danube.metadata import _plugins
from danube.metadata.raft import links
from danube.model.version import __version__

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# A msgspec.Struct evaluates the types of its fields for its signature, those imported for type checkers included.
_receipt.OutBatch = _outbox.OutBatch  # type: ignore[misc]
_plugins.PeerLinks = links.PeerLinks  # type: ignore[misc]

project = "Danube"
release = __version__
copyright = "the Danube authors"  # noqa: A001 - Sphinx's name for it
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"Danube {release}"
html_copy_source = False
nitpicky = True
suppress_warnings = ["ref.python"]  # a short name in a signature that several modules have: the nearest one is not told
default_role = "code"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False


class _Names:
    """All documented names, found by what they end with."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.by_last: dict[str, list[str]] = defaultdict(list)
        for name in objects:
            self.by_last[name.rpartition(".")[2]].append(name)

    def find(self, target: str, module: str) -> str | None:
        """Return the documented name that ends with ``target`` and is nearest to ``module``."""
        found = [name for name in self.by_last[target.rpartition(".")[2]] if f".{name}".endswith(f".{target}")]
        if found:
            return min(found, key=lambda name: (-_common(name, module), name.count("."), name))
        value = _load(target) if target.startswith("danube.") else None
        home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if home in self.objects:
            return home  # the target is the name under which a package exports it
        if value is not None and hasattr(value, "__qualname__"):
            return self.find(value.__qualname__, getattr(value, "__module__", module))
        owner, _, member = target.rpartition(".")
        return self._find_inherited(owner, member, module) if owner else None

    def _find_inherited(self, owner: str, member: str, module: str) -> str | None:
        """Return the name of a member in the base class that defines it; of an undocumented one, the class."""
        class_name = self.find(owner, module)
        cls = _load(class_name) if class_name else None
        if not isinstance(cls, type):
            return None
        for base in cls.__mro__:
            if member in vars(base) or member in getattr(base, "__annotations__", ()):
                name = self.find(f"{base.__name__}.{member}", base.__module__) if base is not cls else None
                return name or class_name
        return None


def _common(name: str, module: str) -> int:
    """Return how many of its first parts a name has in common with a module."""
    count = 0
    for mine, other in zip(name.split("."), module.split("."), strict=False):
        if mine != other:
            break
        count += 1
    return count


@cache
def _load(name: str) -> object:
    """Return the object of a full name; None if there is none."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
            for part in parts[split:]:
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        return found
    return None


def _resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Any) -> nodes.Node | None:
    """Resolve what Sphinx itself did not: short names, names of other packages, and types in signatures."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    target, module = node["reftarget"].lstrip("."), node.get("py:module") or ""
    if (scope := node.get("py:class")) and not isinstance(content, nodes.Text):
        scope = f"{module}.{scope}"
    name = _names(app, domain.objects).find(target, scope or module)
    if name is not None:
        entry = domain.objects[name]
        uri = app.builder.get_relative_uri(node["refdoc"], entry.docname)
        return nodes.reference("", "", content, internal=True, refuri=f"{uri}#{entry.node_id}", reftitle=name)
    if not isinstance(content, nodes.literal):
        return content  # an annotation or the type of an argument, not a role: type variables, aliases, other packages
    if isinstance(_load(target), TypeVar):
        return content  # of an alias, which is shown as it is written
    if hasattr(builtins, target) or (not target.startswith("danube") and _load(target) is not None):
        return content
    return None


def _names(app: Sphinx, objects: dict[str, Any]) -> _Names:
    names: _Names | None = getattr(app, "_danube_names", None)
    if names is None:
        names = _Names(objects)
        app._danube_names = names  # type: ignore[attr-defined]
    return names


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("missing-reference", _resolve)
