"""``danube info`` and ``danube version``: show the status of a broker, and the versions installed here."""

from __future__ import annotations

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_record

__all__ = ["info", "version"]


def info(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the status of the broker."""
    show_record(to_plain(run_with_client(lambda client: client.admin.info(), url, context)), output)


def version(output: OutputOption = Output.TABLE) -> None:
    """Show versions, for a bug report."""
    import platform
    from importlib.metadata import version as installed

    from danube import __version__

    parts = ["trio", "anyio", "h2", "msgspec"]
    record = {"danube": __version__, "python": platform.python_version()}
    record |= {part: installed(part) for part in parts}
    if output is Output.TABLE:
        others = ", ".join(f"{name} {number}" for name, number in record.items() if name != "danube")
        print(f"danube {__version__} ({others}; {platform.system()} {platform.machine()})")
        raise typer.Exit
    show_record(record, output)
