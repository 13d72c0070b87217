"""The command tree: the names of all commands, and where they are. Only a command that is asked for is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from danube.cli._plain_options import with_typer_options
from danube.cli._root import EXIT_CODES, Group, RootGroup, root
from danube.model.entry_points import load_target

__all__ = ["app"]

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "danube.cli.serve:serve",
    "storage-server": "danube.cli.storage_server:storage_server",
    "produce": "danube.cli.produce:produce",
    "consume": "danube.cli.consume:consume",
    "read": "danube.cli.read:read",
    "search": "danube.cli.search:search",
    "request": "danube.cli.request:request",
    "explain": "danube.cli.explain:explain",
    "trace": "danube.cli.trace:trace",
    "top": "danube.cli.top:top",
    "check": "danube.cli.check:check",
    "info": "danube.cli.info:info",
    "log-level": "danube.cli.log_level:log_level",
    "metrics": "danube.cli.metrics:metrics",
    "generate": "danube.cli.generate:generate_app",
    "doctor": "danube.cli.doctor:doctor",
    "debug": "danube.cli.debug:debug_app",
    "mcp": "danube.cli.mcp:mcp",
    "plugins": "danube.cli.plugins:plugins",
    "version": "danube.cli.info:version",
    "topics": "danube.cli.topic_history:topics_app",
    "namespaces": "danube.cli.namespaces:namespaces_app",
    "subscriptions": "danube.cli.subscriptions:subscriptions_app",
    "policies": "danube.cli.policies:policies_app",
    "schemas": "danube.cli.schemas:schemas_app",
    "dlq": "danube.cli.dlq:dlq_app",
    "stages": "danube.cli.stages:stages_app",
    "definitions": "danube.cli.definitions:definitions_app",
    "jobs": "danube.cli.jobs:jobs_app",
    "connections": "danube.cli.connections:connections_app",
    "storage": "danube.cli.storage:storage_app",
    "cluster": "danube.cli.cluster:cluster_app",
    "security": "danube.cli.security:security_app",
    "grant": "danube.cli.grants:grant",
    "revoke": "danube.cli.grants:revoke",
    "roles": "danube.cli.roles:roles_app",
    "principals": "danube.cli.principals:principals_app",
    "tokens": "danube.cli.tokens:tokens_app",
    "keys": "danube.cli.keys:keys_app",
    "issuers": "danube.cli.issuers:issuers_app",
    "bench": "danube.cli.bench:bench_app",
    "context": "danube.cli.context:context_app",
    "cheat": "danube.cli.cheat:cheat",
    "help": "danube.cli.help:show_help",
}
"""Commands by name: a function, or the Typer application of a group, as ``module:name``."""
PLAIN: Final = ("serve",)
"""Commands whose options are declared without Typer."""


class _Commands(Mapping[str, Any]):
    """The commands by name; each is imported when it is got."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _load(name: str, target: str) -> Any:
    found = load_target(target)
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, cls=Group)
        return typer.main.get_group(alone).commands[name]
    alone.command(name)(with_typer_options(found) if name in PLAIN else found)
    return typer.main.get_command(alone)


class _Root(RootGroup):
    """The group behind ``danube``, with the commands of this package."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing adds to them


app = typer.Typer(
    name="danube",
    cls=_Root,
    callback=root,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
