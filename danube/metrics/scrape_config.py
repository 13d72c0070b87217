"""A configuration of Prometheus that scrapes brokers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["scrape_config"]


def scrape_config(targets: Sequence[str], *, rules: str, token_file: str = "") -> str:
    """Return the configuration as YAML.

    Args:
        targets: ``host:port`` of the HTTP port of each broker.
        rules: name of the file of alerts.
        token_file: with a token of a principal that may read metrics; empty: the brokers ask for none.
    """
    hosts = ", ".join(msgspec.json.encode(target).decode() for target in targets)
    lines = [
        "global:",
        "  scrape_interval: 15s",
        "  evaluation_interval: 15s",
        "rule_files:",
        f"  - {msgspec.json.encode(rules).decode()}",
        "scrape_configs:",
        "  - job_name: danube",
    ]
    if token_file:
        lines += ["    authorization:", f"      credentials_file: {msgspec.json.encode(token_file).decode()}"]
    lines += ["    static_configs:", f"      - targets: [{hosts}]"]
    return "\n".join(lines) + "\n"
