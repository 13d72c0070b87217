"""Each path that the native APIs name has a row in the table of rights: who may call it is decided with the call.

``tests/security`` compares the table with what brokers really serve; this is the part of it that takes no broker.
"""

from __future__ import annotations

from danube.model import (
    api,
    cluster_api,
    history_api,
    policy_api,
    query_api,
    quotas,
    registry_api,
    stage_api,
    storage_api,
)
from danube.security.rights import RULES

APIS = (
    api.Method,
    cluster_api.ClusterMethod,
    history_api.HistoryMethod,
    policy_api.PolicyMethod,
    query_api.QueryMethod,
    quotas.QuotaMethod,
    registry_api.RegistryMethod,
    stage_api.StageMethod,
    storage_api.StorageMethod,
)


def test_every_native_path_has_a_row_in_the_table_of_rights() -> None:
    paths = {path for each in APIS for path in vars(each).values() if isinstance(path, str) and path.startswith("/")}
    assert len(paths) > 45
    missing = sorted(paths - RULES.keys())
    assert missing == [], "add them to danube/security/rights.py, and run python -m tests.security.rights_matrix"
