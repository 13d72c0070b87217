"""``danube plugins``: lists storage backends and metadata engines, their options, and known packages with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._output import Output, OutputOption, show_rows
from danube.model.entry_points import load_target

if TYPE_CHECKING:
    import msgspec

__all__ = ["plugins"]


def plugins(
    options: Annotated[
        str, typer.Option("--options", metavar="SCHEME", help="Show the options of one plugin, with their defaults.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List storage backends and metadata engines, installed ones and known packages with others.

    The scheme of a URL selects a plugin, for example s3://bucket/prefix. Options are set in the query of the URL
    (s3://bucket?region=eu-west-1) or in the table of the configuration file. Secret values are never shown.
    """
    if options:
        show_rows(_options(options), ["kind", "option", "type", "default", "secret", "description"], output)
    else:
        show_rows(_installed() + _missing(), ["kind", "scheme", "package", "version", "summary"], output)


def _found() -> list[tuple[str, Any]]:
    """Return kind and plugin of everything that is installed."""
    from danube import metadata, storage

    return [
        *(("storage", plugin) for plugin in storage.installed_plugins()),
        *(("metadata", plugin) for plugin in metadata.installed_plugins()),
    ]


def _installed() -> list[dict[str, Any]]:
    from danube.broker.operations.inspecting import installed_plugins

    return [
        {
            "kind": each.kind,
            "scheme": each.scheme,
            "installed": True,
            "built_in": each.built_in,
            "package": each.package,
            "version": each.version,
            "summary": each.summary,
            "install": None,
        }
        for each in installed_plugins()
    ]


def _missing() -> list[dict[str, Any]]:
    from danube import metadata, storage

    present = {(kind, plugin.scheme) for kind, plugin in _found()}
    known = [("storage", storage.KNOWN_PACKAGES, storage.install_command)]
    known += [("metadata", metadata.KNOWN_PACKAGES, metadata.install_command)]
    return [
        {
            "kind": kind,
            "scheme": scheme,
            "installed": False,
            "built_in": False,
            "package": package,
            "version": None,
            "summary": f"not installed: {command(scheme)}",
            "install": command(scheme),
        }
        for kind, packages, command in known
        for scheme, package in packages.items()
        if (kind, scheme) not in present
    ]


def _options(scheme: str) -> list[dict[str, Any]]:
    from danube import metadata
    from danube.model.errors import ConfigurationError
    from danube.storage import ALIASES, load_plugin

    found = [(kind, plugin.target) for kind, plugin in _found() if plugin.scheme == ALIASES.get(scheme, scheme)]
    if not found and scheme in metadata.KNOWN_PACKAGES:
        raise ConfigurationError(
            f"the metadata engine {scheme!r} is not installed; to add it: {metadata.install_command(scheme)}"
        )
    if not found:
        # Either fsspec with a protocol, or the error that says what to install.
        return _options_of("storage", load_plugin(scheme).config)
    rows = []
    for kind, target in found:
        try:
            config = load_target(target).config
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"the {kind} plugin {scheme!r} ({target}) cannot be loaded: {error}") from error
        rows += _options_of(kind, config)
    return rows


def _options_of(kind: str, config: type[msgspec.Struct]) -> list[dict[str, Any]]:
    import inspect

    import msgspec

    from danube.storage import is_secret

    types: dict[str, Any] = {}
    descriptions: dict[str, str] = {}
    for part in reversed(config.__mro__):
        types |= inspect.get_annotations(part)
        descriptions |= _field_docstrings(part)
    rows = []
    for field in msgspec.structs.fields(config):
        if field.default_factory is not msgspec.NODEFAULT:
            default: Any = field.default_factory()
        else:
            default = field.default
        rows.append(
            {
                "kind": kind,
                "option": field.encode_name,
                "type": _type_name(types[field.name]),
                "default": "(required)" if field.required else _plain(default),
                "secret": is_secret(field.encode_name),
                "description": descriptions.get(field.name, ""),
            }
        )
    return rows


def _field_docstrings(owner: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class, from its source; Python does not keep them at run time."""
    import ast
    import inspect
    import textwrap

    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    except (OSError, TypeError):
        return {}  # no source: a builtin, or an installation without it
    (found,) = tree.body
    assert isinstance(found, ast.ClassDef)
    texts = {}
    for field, below in zip(found.body, found.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


def _type_name(annotation: Any) -> str:
    """Return a type as it is written, or the name of a class."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
