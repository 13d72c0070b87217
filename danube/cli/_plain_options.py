"""Options that are declared and read without Typer, for a command whose process lives long: ``danube serve``.

Typer, and what it loads, takes a third of the time in which a broker starts, and 12 MB for as long as it runs. So the
parameters of such a command are annotated with :class:`PlainOption`, and both readers follow that signature:
:func:`read_plain` reads the ordinary command line; all others (``--help``, a wrong option, a missing value) are left to
Typer, with the command that :func:`with_typer_options` makes. So there is one declaration, and one text of each error.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

__all__ = ["VARIABLES", "PlainOption", "read_plain", "with_environment", "with_typer_options"]

VARIABLES: Final = "DANUBE_"
"""How the names of environment variables for options begin."""
_READ_ELSEWHERE: Final = frozenset({"insecure"})
_BOOLS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class PlainOption:
    """The annotation of a parameter whose type is a text, a list of texts, a StrEnum or a bool, or None.

    Args:
        names: by default, that of the parameter; of a flag ``--on/--off``.
        metavar: what the help shows for the value.
        help: one sentence.
    """

    def __init__(self, *names: str, help: str, metavar: str | None = None) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar


def read_plain(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments that a command line gives to a command; None: Typer has to read it.

    Args:
        command: all its parameters are annotated with :class:`PlainOption`, and have defaults.
        words: those after the name of the command.
    """
    options = {
        name: (parameter, kind) for parameter, kind, option in _options(command) for name in _names(parameter, option)
    }
    values: dict[str, Any] = {}
    left = list(reversed(words))
    while left:
        name, equals, value = left.pop().partition("=")
        parameter, kind = options.get(name, ("", None))
        if kind is None or (equals and not name.startswith("--")):
            return None
        if kind is bool:
            if equals:
                return None
            values[parameter] = not name.startswith("--no-")
            continue
        if not equals:
            value = left.pop() if left else ""
        if not value or value[0] == "-" or not value.isprintable():
            return None
        if get_origin(kind) is list:
            values.setdefault(parameter, []).append(value)
        elif issubclass(kind, enum.StrEnum):
            if value not in kind.__members__.values():
                return None
            values[parameter] = kind(value)
        else:
            values[parameter] = value
    return values


def with_environment(command: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command, with those that the command line does not give from the environment.

    ``DANUBE_DATA_DIR`` stands for ``--data-dir``; a list has commas, a bool is 1, true, yes, 0, false or no. Empty
    variables count as absent.

    Args:
        command: as of :func:`read_plain`.
        values: given on the command line; None counts as absent.

    Raises:
        ConfigurationError: a variable is not a value of its option.
    """
    found = {name: value for name, value in values.items() if value is not None}
    for parameter, kind, _ in _options(command):
        variable = VARIABLES + parameter.upper()
        text = os.environ.get(variable, "")
        if text and parameter not in found and parameter not in _READ_ELSEWHERE:
            found[parameter] = _converted(variable, text, kind)
    return found


def _converted(variable: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is list:
        return [each.strip() for each in text.split(",") if each.strip()]
    if kind is bool or issubclass(kind, enum.StrEnum):
        known = _BOOLS if kind is bool else {member.value: member for member in kind}
        if text.lower() not in known:
            from danube.model.errors import ConfigurationError

            raise ConfigurationError(f"{variable}={text!r} is not one of {', '.join(known)}")
        return known[text.lower()]
    return text


def with_typer_options(command: Callable[..., int]) -> Callable[..., None]:
    """Return a command for Typer, with the options of a plain one; it leaves with the exit code that this returns."""
    import typer

    @functools.wraps(command)
    def typer_command(**values: Any) -> None:
        raise typer.Exit(command(**with_environment(command, values)))

    signature = inspect.signature(command)
    hints = {
        parameter: Annotated[kind | None, typer.Option(*option.names, metavar=option.metavar, help=option.help)]
        for parameter, kind, option in _options(command)
    }
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    typer_command.__annotations__ = {**hints, "return": None}
    typer_command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=None
    )
    return typer_command


def _options(command: Callable[..., Any]) -> list[tuple[str, Any, PlainOption]]:
    """Return the parameters of a command: name, type without None, and option."""
    found = []
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        if parameter != "return":
            declared, option = get_args(hint)
            (kind,) = [each for each in get_args(declared) if each is not NoneType]
            found.append((parameter, kind, option))
    return found


def _names(parameter: str, option: PlainOption) -> list[str]:
    names = option.names or ("--" + parameter.replace("_", "-"),)
    return [each for name in names for each in name.split("/")]
