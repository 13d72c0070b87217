"""The command tree. Importing this module imports every command's options, but none of their work."""

from __future__ import annotations

import typer

from danube.cli import doctor, serve
from danube.cli._root import EXIT_CODES, RootGroup, root

__all__ = ["app"]

app = typer.Typer(
    name="danube",
    cls=RootGroup,
    callback=root,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
