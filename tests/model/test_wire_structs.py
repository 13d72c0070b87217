"""Structs of the wire: large ones are built with keywords, which does not change their bytes."""

from __future__ import annotations

import msgspec
import pytest

from danube.model import api, history_api, query_api, stage_api, storage_api
from danube.model.query_api import LogPart

LARGE = [
    struct
    for module in (api, history_api, query_api, stage_api, storage_api)
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct.__module__ == module.__name__
    # A LogPart is copied, by position, from each part that a query reads.
    if struct.__struct_config__.array_like and len(struct.__struct_fields__) >= 10 and struct is not LogPart
]


@pytest.mark.parametrize("struct", LARGE, ids=lambda struct: struct.__name__)
def test_large_structs_are_made_with_keywords_and_sent_in_order(struct: type[msgspec.Struct]) -> None:
    names = struct.__struct_fields__
    with pytest.raises(TypeError, match="positional"):
        struct(*range(len(names)))
    made = struct(**{name: number for number, name in enumerate(names)})
    tag = [struct.__struct_config__.tag] if struct.__struct_config__.tag is not None else []
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made)) == [*tag, *range(len(names))]


def test_the_large_structs_are_known() -> None:
    assert {"BrokerInfo", "TopicInfo", "SubscriptionInfo", "StorageStatus"} <= {struct.__name__ for struct in LARGE}
