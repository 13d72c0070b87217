"""Compatible schemas decode: checked with protobuf's own runtime, over random descriptors."""

from __future__ import annotations

import base64
from collections import Counter
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from danube.schema import Policy, SchemaType, Source, parse

F = FieldDescriptorProto
SCALARS = (F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_ENUM, F.TYPE_SINT32,
           F.TYPE_SINT64, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_FIXED32, F.TYPE_SFIXED32, F.TYPE_FIXED64,
           F.TYPE_SFIXED64, F.TYPE_FLOAT, F.TYPE_DOUBLE)  # fmt: skip
NEAR = {F.TYPE_INT32: F.TYPE_INT64, F.TYPE_INT64: F.TYPE_UINT32, F.TYPE_UINT32: F.TYPE_BOOL, F.TYPE_BOOL: F.TYPE_ENUM,
        F.TYPE_ENUM: F.TYPE_INT32, F.TYPE_STRING: F.TYPE_BYTES, F.TYPE_BYTES: F.TYPE_STRING,
        F.TYPE_FIXED32: F.TYPE_SFIXED32, F.TYPE_SINT64: F.TYPE_SINT32}  # fmt: skip


def field(random: Random, message: DescriptorProto, number: int, syntax: str) -> None:
    made = message.field.add(name=f"f{number}", number=number, label=F.LABEL_OPTIONAL)
    roll = random.random()
    if roll < 0.2:
        made.type, made.type_name = F.TYPE_MESSAGE, random.choice((".M", ".N"))
    elif roll < 0.3:
        kept = [each for each in message.nested_type if each.name != f"F{number}Entry"]  # of a field that was deleted
        del message.nested_type[:]
        message.nested_type.extend(kept)
        entry = message.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=F.TYPE_STRING)
        entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=F.TYPE_INT32)
        made.type, made.type_name = F.TYPE_MESSAGE, f".{message.name}.F{number}Entry"
        made.label = F.LABEL_REPEATED
        return
    else:
        made.type = random.choice(SCALARS)
        if made.type == F.TYPE_ENUM:
            made.type_name = ".E"
        if syntax == "proto2" and random.random() < 0.2:
            made.label = F.LABEL_REQUIRED
            return
    if random.random() < 0.2:
        made.label = F.LABEL_REPEATED
    elif message.oneof_decl and random.random() < 0.4:
        made.oneof_index = 0


def file(random: Random) -> FileDescriptorProto:
    syntax = random.choice(("proto2", "proto3", "proto3"))
    made = FileDescriptorProto(name="a.proto", syntax=syntax)
    enum = made.enum_type.add(name="E")
    for number in range(random.randint(1, 3)):
        enum.value.add(name=f"E{number}", number=number)
    for name in "MN":
        message = made.message_type.add(name=name)
        if random.random() < 0.6:
            message.oneof_decl.add(name="o")
        for number in random.sample(range(1, 9), random.randint(1, 5)):
            field(random, message, number, syntax)
        tidy(message)
    return made


def tidy(message: DescriptorProto) -> None:
    """A oneof needs a field."""
    if message.oneof_decl and not any(each.HasField("oneof_index") for each in message.field):
        del message.oneof_decl[:]


def evolved(random: Random, old: FileDescriptorProto) -> FileDescriptorProto:
    made = FileDescriptorProto()
    made.CopyFrom(old)
    for _ in range(random.randint(1, 3)):
        message = random.choice(made.message_type)
        roll = random.random()
        if random.random() < 0.15 and len(made.enum_type[0].value) > 1:
            del made.enum_type[0].value[-1]
            continue
        if roll < 0.3:
            free = [number for number in range(1, 9) if number not in {each.number for each in message.field}]
            if free:
                field(random, message, random.choice(free), made.syntax)
        elif roll < 0.45 and len(message.field) > 1:
            del message.field[random.randrange(len(message.field))]
        elif message.field:
            each = random.choice(message.field)
            if roll < 0.75 and each.type in NEAR:
                each.type = NEAR[each.type] if random.random() < 0.7 else random.choice(SCALARS)
                each.type_name = ".E" if each.type == F.TYPE_ENUM else ""
                if each.type != F.TYPE_ENUM:
                    each.ClearField("type_name")
            elif roll < 0.85 and each.label == F.LABEL_OPTIONAL and not each.HasField("oneof_index"):
                each.label = F.LABEL_REPEATED
            elif roll < 0.95:
                each.ClearField("oneof_index")
            elif message.oneof_decl and each.label == F.LABEL_OPTIONAL:
                each.oneof_index = 0
        tidy(message)
    return made


def classes(each: FileDescriptorProto) -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(each.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(name)) for name in "MN"}


def scalar(random: Random, kind: int) -> Any:
    if kind == F.TYPE_STRING:
        return random.choice(("", "text", "\u00e4"))
    if kind == F.TYPE_BYTES:
        return random.choice((b"", b"\xff\xfe", b"bytes"))
    if kind in (F.TYPE_FLOAT, F.TYPE_DOUBLE):
        return random.choice((0.0, -1.5, 1e9))
    if kind == F.TYPE_BOOL:
        return random.random() < 0.5
    large = kind in (F.TYPE_INT64, F.TYPE_UINT64, F.TYPE_SINT64, F.TYPE_FIXED64, F.TYPE_SFIXED64)
    signed = kind in (F.TYPE_INT32, F.TYPE_INT64, F.TYPE_SINT32, F.TYPE_SINT64, F.TYPE_SFIXED32, F.TYPE_SFIXED64)
    most = 2 ** ((63 if large else 31) + (not signed)) - 1
    return random.choice((0, 1, most, -1 if signed else 7))


def fill(random: Random, message: Any, depth: int = 0) -> None:
    for each in message.DESCRIPTOR.fields:
        if not each.is_required and random.random() < 0.3:
            continue
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        if is_map:
            getattr(message, each.name)["key"] = 7
        elif each.message_type is not None:
            if depth < 2:
                inner = getattr(message, each.name)
                fill(random, inner.add() if each.is_repeated else inner, depth + 1)
        elif each.is_repeated:
            if each.enum_type is None:
                getattr(message, each.name).extend(scalar(random, each.type) for _ in range(random.randint(0, 2)))
        else:
            setattr(
                message,
                each.name,
                random.choice(each.enum_type.values).number if each.enum_type else scalar(random, each.type),
            )


def check_same(old: Any, new: Any) -> None:
    """Single fields whose types have not changed have their values."""
    theirs = {each.number: each for each in old.DESCRIPTOR.fields}
    for each in new.DESCRIPTOR.fields:
        other = theirs.get(each.number)
        if other is None or each.type != other.type or each.is_repeated or other.is_repeated:
            continue
        if each.message_type is not None or each.containing_oneof is not None or other.containing_oneof is not None:
            continue
        if each.enum_type is None or getattr(old, other.name) in each.enum_type.values_by_number:
            assert getattr(new, each.name) == getattr(old, other.name)


def try_pair(seed: int, seen: Counter[str]) -> None:
    random = Random(seed)
    old = file(random)
    pair = [old, evolved(random, old)]
    if random.random() < 0.5:
        pair.reverse()
    texts = [base64.b64encode(each.SerializeToString()).decode() for each in pair]
    writer, reader = (parse(Source(SchemaType.PROTOBUF, text)) for text in texts)
    if reader.refuses(writer, Policy.STRICT):
        seen["no"] += 1
        return
    seen["yes"] += 1
    writers, readers = (classes(each) for each in pair)
    for name in "MN":
        written = writers[name]()
        fill(random, written)
        if not written.IsInitialized():  # a message within one that got none
            continue
        found = readers[name].FromString(written.SerializeToString())
        assert found.IsInitialized(), "this runtime reads a message that lacks what is required, others refuse it"
        check_same(written, found)
        seen["read"] += 1


def run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            try_pair(seed, seen)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return seen


def test_messages_of_compatible_protobuf_schemas_decode() -> None:
    seen = run(range(300))
    assert seen["yes"] > 100, seen
    assert seen["no"] > 70, seen
    assert seen["read"] > 180, seen


@pytest.mark.long
def test_messages_of_compatible_protobuf_schemas_decode_many_times() -> None:
    assert run(range(1_000, 101_000))["yes"] > 30_000
