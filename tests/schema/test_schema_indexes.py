"""The indexes of the registry against plain ones."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import DataLossError
from danube.schema.indexes import Carriers, Schemas
from danube.schema.modes import SchemaType
from danube.schema.records import NumberRecord, encode


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from("abc"))))
def test_carriers_are_those_of_a_dict_of_sets(steps):
    carriers, model = Carriers(), defaultdict(set)
    for is_added, number, name in steps:
        if is_added:
            carriers.add(number, name)
            model[number].add(name)
        else:
            carriers.discard(number, name)
            model[number].discard(name)
        for each in range(4):
            assert sorted(carriers.of(each)) == sorted(model[each])


def test_schemas_are_read_from_their_records():
    schemas = Schemas()
    record = NumberRecord(SchemaType.AVRO, '"int"', b"h" * 32)
    schemas.put(7, encode(record))
    assert schemas.get(7) == record
    assert (7 in schemas, 8 in schemas, schemas.get(8)) == (True, False, None)
    assert dict(schemas.items()) == {7: record}
    assert schemas.keys() == {7}
    schemas.put(7, None)
    schemas.put(8, None)
    assert not list(schemas.items())
    schemas.put(9, b"\xc1")
    with pytest.raises(DataLossError, match="of number 9"):
        schemas.get(9)
