"""How the scripts connect. Of a job: url, and if any ca, cert and key (files of certificates) and token."""

from __future__ import annotations

from typing import Any

from danube import DanubeClientBuilder


def builder_of(job: dict[str, Any]) -> Any:
    """Return what builds the client of a job."""
    builder = DanubeClientBuilder().service_url(job["url"])
    if "cert" in job:
        builder = builder.with_mtls(job["ca"], job["cert"], job["key"])
    elif "ca" in job:
        builder = builder.with_tls(job["ca"])
    return builder.with_token(job["token"]) if "token" in job else builder
