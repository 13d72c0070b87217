"""Commands of other packages: entry points of the group ``danube.commands``.

The name of the entry point is the name of the command; its target is a Typer application, whose module must be light to
import, because ``danube --help`` shows it. Entry points are loaded only when a command is requested that is not built
in, or when all are listed. Commands of known packages that are not installed are included, too, and state what to
install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from danube.model.entry_points import entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "extension_names", "find_extension"]

GROUP: Final = "danube.commands"

_KNOWN: Final = {"pipeline": "pip install 'pyspark-danube[pipeline]'"}
"""Commands of optional packages, and how to install these."""


def extension_names() -> list[str]:
    """Return the names of all commands that :func:`find_extension` finds."""
    return sorted({*_KNOWN, *(point.name for point in entry_points(group=GROUP))})


def find_extension(name: str) -> Any:
    """Return the command of this name, None if no package has it.

    If its package is not installed, or cannot be imported, the command raises ConfigurationError when it is run.
    """
    for point in entry_points(group=GROUP, name=name):
        return _load(point)
    if name in _KNOWN:
        return _missing(name, f"`danube {name}` is not installed", f"get it with: {_KNOWN[name]}")
    return None


def _load(point: EntryPoint) -> Any:
    try:
        app = point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "its package"
        return _missing(
            point.name,
            f"`danube {point.name}` cannot be loaded: {error}",
            f"install {package} again, with its dependencies",
        )
    command = typer.main.get_command(app)
    command.name = point.name
    return command


def _missing(name: str, what: str, remedy: str) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(
        name,
        short_help=f"({remedy})",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def missing() -> None:
        from danube.model.errors import ConfigurationError

        raise ConfigurationError(f"{what}; {remedy}")

    return typer.main.get_command(app)
