"""The command tree. Importing this module imports every command's options, but none of their work."""

from __future__ import annotations

import typer

from danube.cli import (
    bench,
    consume,
    doctor,
    info,
    plugins,
    produce,
    read,
    request,
    serve,
    storage_server,
    topic_history,
)
from danube.cli._root import EXIT_CODES, RootGroup, root
from danube.cli.context import context_app
from danube.cli.dlq import dlq_app
from danube.cli.namespaces import namespaces_app
from danube.cli.policies import policies_app
from danube.cli.stages import stages_app
from danube.cli.storage import storage_app
from danube.cli.subscriptions import subscriptions_app
from danube.cli.topics import topics_app

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
app.command("storage-server")(storage_server.storage_server)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("read")(read.read)
app.command("request")(request.request)
topic_history.add_commands(topics_app)
app.add_typer(topics_app, name="topics")
app.add_typer(namespaces_app, name="namespaces")
app.add_typer(subscriptions_app, name="subscriptions")
app.add_typer(policies_app, name="policies")
app.add_typer(dlq_app, name="dlq")
app.add_typer(stages_app, name="stages")
app.add_typer(storage_app, name="storage")
app.add_typer(bench.bench_app, name="bench")
app.add_typer(context_app, name="context")
app.command("info")(info.info)
app.command("doctor")(doctor.doctor)
app.command("plugins")(plugins.plugins)
app.command("version")(info.version)
