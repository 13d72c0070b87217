"""``danube schemas``: subjects of the schema registry, their versions and settings, and the topics that have them."""

from __future__ import annotations

import base64
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, print_json, show_record, show_rows
from danube.cli._questions import YesOption, confirm
from danube.model.errors import IncompatibleSchemaError, InvalidArgumentError, exit_code

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.schema_api import SchemaInfo, SchemaReference, SubjectInfo

__all__ = ["schemas_app"]

schemas_app = typer.Typer(no_args_is_help=True, help="Register, show, compare and delete schemas of messages.")

_TYPES: Final = {".avsc": "avro", ".json": "json_schema", ".proto": "protobuf", ".desc": "protobuf"}
_PLAIN: Final = ("string", "bytes", "number")
_MOST_BYTES: Final = 4 << 20
"""Largest file that is read; the broker's limit is lower."""
_MOST_NAMED: Final = 10
"""Most topics that a question names."""

_Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Such as /default/orders-value.")]
_Version = Annotated[str, typer.Argument(metavar="SUBJECT[@VERSION]", help="The latest version, or the given one.")]
_File = Annotated[
    str,
    typer.Argument(metavar="FILE", help="With the suffix .avsc, .json, .proto or .desc; none for a type without text."),
]
_Type = Annotated[
    str, typer.Option("--type", metavar="TYPE", help="avro, json_schema, protobuf, string, bytes or number.")
]
_References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference", metavar="NAME=SUBJECT[@VERSION]", help="A schema that this one refers to; repeat for more."
    ),
]
_Message = Annotated[str, typer.Option(metavar="NAME", help="Of protobuf: the message of payloads, if not the first.")]


@schemas_app.command("register")
def register_schema(
    subject: _Subject,
    file: _File = "",
    schema_type: _Type = "",
    reference: _References = None,
    message: _Message = "",
    description: Annotated[str, typer.Option(help="A description, for lists.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="For people; repeat for more.")] = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register a schema as the next version of a subject; the subject is created with its first one.

    A schema that the subject has already is not registered again.
    """
    kind, text = _read(file, schema_type)
    references = [_reference(each) for each in reference or ()]
    found = run_with_client(
        lambda client: client.schemas.register(
            subject, kind, text, references=references, message=message, description=description, tags=tag or ()
        ),
        url,
        context,
    )
    if output is Output.JSON:
        print_json({"subject": subject, **to_plain(found)})
        return
    known = "" if found.is_new else "  (registered before)"
    print(f"{subject}  version {found.version}  id {found.number}  {kind}{known}")


@schemas_app.command("check")
def check_schema(
    subject: _Version,
    file: _File = "",
    schema_type: _Type = "",
    reference: _References = None,
    message: _Message = "",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="Instead of that of the subject.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whether a schema is compatible with a subject, and why not; it is not registered.

    The exit code is 78 if it is not. With @VERSION it is compared with that version only.
    """
    kind, text = _read(file, schema_type)
    references = [_reference(each) for each in reference or ()]
    name, version = _split(subject)
    found = run_with_client(
        lambda client: client.schemas.check(
            name, kind, text, references=references, message=message, version=version or 0, level=level
        ),
        url,
        context,
    )
    if output is Output.JSON:
        print_json(to_plain(found))
    elif found.is_compatible:
        compared = ", ".join(map(str, found.versions))
        with_them = f"with version {compared}" if found.versions else "there is no version to compare with"
        print(f"compatible ({found.level.upper()}, {with_them})")
    for each in found.objections if output is not Output.JSON else ():
        print(f"incompatible ({each.level.upper()} with version {each.version}): {each.text}")
    if not found.is_compatible:
        raise typer.Exit(exit_code(IncompatibleSchemaError("")))


@schemas_app.command("list")
def list_subjects(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only subjects that begin with it.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Also those whose versions are all deleted.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the subjects."""
    found = run_with_client(lambda client: client.schemas.subjects(prefix, deleted=deleted), url, context)
    rows = [to_plain(row) for row in found]
    for row in rows:
        row["type"] = row.pop("schema_type")
    show_rows(rows, ["subject", "type", "version", "versions", "level", "mode"], output)


@schemas_app.command("show")
def show_schema(
    subject: _Version,
    by_id: Annotated[bool, typer.Option("--id", help="SUBJECT is the id of a schema.")] = False,
    versions: Annotated[bool, typer.Option("--versions", help="The versions and settings of the subject.")] = False,
    text: Annotated[bool, typer.Option("--text", help="The text of the schema only.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a version of a subject with its schema. Deleted versions are shown if they are named."""
    if versions:
        name = _split(subject)[0]
        _show_subject(run_with_client(lambda client: client.schemas.subject(name, deleted=True), url, context), output)
        return
    if by_id:
        number = _number("the id of a schema", subject)
        found = run_with_client(lambda client: client.schemas.get(number), url, context)
    else:
        found = _version(subject, url, context)
    if text:
        print(found.text)
        return
    plain = to_plain(found)
    if output is Output.JSON:
        print_json(plain)
        return
    show_record(_fields(found), output)
    if found.text:
        print(f"\n{found.text}")


@schemas_app.command("diff")
def diff_versions(
    subject: _Subject,
    old: Annotated[int, typer.Argument(metavar="OLD", help="A version.")],
    new: Annotated[int, typer.Argument(metavar="NEW", help="Another one; -1: the latest.")] = -1,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Show in which lines the texts of two versions differ; JSON is put into lines first."""

    async def versions(client: Client) -> list[SchemaInfo]:
        return [await client.schemas.version(subject, each, deleted=each > 0) for each in (old, new)]

    found = run_with_client(versions, url, context)
    texts = [(f"{subject}@{each.version}", _lines(each)) for each in found]
    (old_name, before), (new_name, after) = texts
    for line in difflib.unified_diff(before, after, old_name, new_name, lineterm=""):
        print(line)


@schemas_app.command("compatibility")
def set_compatibility(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='"" means all without a level of their own.')],
    level: Annotated[
        str,
        typer.Argument(
            metavar="[LEVEL]", help="none, backward, forward or full; the last three also with -transitive."
        ),
    ] = "",
    json_policy: Annotated[
        str | None, typer.Option(metavar="POLICY", help="For JSON Schema: strict, lenient or upstream.")
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove the level, so that it is inherited.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or set with which versions new ones must be compatible."""
    if level or unset or json_policy is not None:
        wanted = level or ("" if unset else None)
        run_with_client(
            lambda client: client.schemas.set_compatibility(subject, level=wanted, json_policy=json_policy),
            url,
            context,
        )
    found = run_with_client(lambda client: client.schemas.subject(subject), url, context)
    show_record({"level": found.effective.level, "json policy": found.effective.json_policy}, output)


@schemas_app.command("mode")
def set_mode(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='"" means all without a mode of their own.')],
    mode: Annotated[
        str,
        typer.Argument(metavar="[MODE]", help='read-write, read-only or import; of all ("") also read-only-override.'),
    ] = "",
    unset: Annotated[bool, typer.Option("--unset", help="Remove the mode, so that it is inherited.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Change to import although there are versions.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or set what may be changed."""
    if mode or unset:
        wanted = mode.replace("read-write", "readwrite").replace("read-only", "readonly") or None
        run_with_client(lambda client: client.schemas.set_mode(subject, wanted, force=force), url, context)
    found = run_with_client(lambda client: client.schemas.subject(subject), url, context)
    show_record({"mode": found.effective.mode}, output)


@schemas_app.command("delete")
def delete_schema(
    subject: _Version,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove what is deleted already; its versions are never used again.")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Delete a subject, or one version of it. On a terminal it asks first.

    Stored messages can still be decoded, also after --permanent: a schema goes with `danube schemas purge` only.
    """
    name, version = _split(subject)
    confirm(yes, lambda: f"Delete {subject}{' permanently' if permanent else ''}?")
    gone = run_with_client(lambda client: client.schemas.delete(name, version or 0, permanent=permanent), url, context)
    print(f"deleted {name}: version {', '.join(map(str, gone))}")


@schemas_app.command("purge")
def purge_schema(
    number: Annotated[int, typer.Argument(metavar="ID", help="Of a schema that no version has any more.")],
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Remove a schema. Stored messages with its id can no longer be decoded.

    On a terminal it asks first, and names the topics whose subject has had the schema. Which messages have an id is not
    known: topics that had another subject when they were written, or none, are not among them.
    """
    confirm(
        yes, lambda: _purging(run_with_client(lambda client: client.schemas.get(number, topics=True), url, context))
    )
    run_with_client(lambda client: client.schemas.purge(number), url, context)
    print(f"removed schema {number}")


@schemas_app.command("bind")
def bind_topic(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Plain or partitioned.")],
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]", help="Of its messages.")] = "",
    unset: Annotated[bool, typer.Option("--unset", help="Let the topic have no subject.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Give a topic the subject of the schemas of its messages.

    What happens to messages without one of them says the policy schema_validation: `danube policies set`.
    """
    if bool(subject) is unset:
        raise InvalidArgumentError("give a subject, or --unset")
    run_with_client(lambda client: client.schemas.bind(topic, subject), url, context)
    print(f"{topic} has {f'subject {subject}' if subject else 'no subject'}")


def _purging(found: SchemaInfo) -> str:
    """Return the question whether to remove a schema."""
    question = f"Remove schema {found.number}? Messages with this id, of any topic, can no longer be decoded."
    if not found.topics:
        return f"{question} No topic has a subject that had it."
    listed = ", ".join(found.topics[:_MOST_NAMED])
    more = f" and {len(found.topics) - _MOST_NAMED} others or more" if len(found.topics) > _MOST_NAMED else ""
    return f"{question} Its subject is, or was, that of {listed}{more}."


# --- What is read


def _read(file: str, schema_type: str) -> tuple[str, str]:
    """Return the type and the text of the schema in a file."""
    if not file:
        if schema_type not in _PLAIN:
            raise InvalidArgumentError(f"give a FILE, or --type with one of: {', '.join(_PLAIN)}")
        return schema_type, ""
    path = Path(file)
    kind = schema_type or _TYPES.get(path.suffix, "")
    if not kind:
        raise InvalidArgumentError(f"{file}: the suffix tells no type of schemas; give --type")
    with path.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise InvalidArgumentError(f"{file} is larger than {_MOST_BYTES} bytes, which no schema may have")
    if path.suffix == ".desc":
        return kind, _descriptor(file, content)
    try:
        return kind, content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{file} is not UTF-8 text: {error}") from None


def _descriptor(file: str, content: bytes) -> str:
    """Return what protoc has written as a schema: the last file of the set, in Base64."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(content)
        last = found.file[-1]
    except (DecodeError, IndexError):
        raise InvalidArgumentError(
            f"{file} is no FileDescriptorSet; make it with: protoc --include_imports -o{file} FILE.proto"
        ) from None
    return base64.b64encode(last.SerializeToString()).decode()


def _reference(text: str) -> SchemaReference:
    from danube.model.schema_api import SchemaReference

    name, equals, target = text.partition("=")
    subject, version = _split(target)
    if not name or not equals or not subject:
        raise InvalidArgumentError(f"{text!r} is no reference; write NAME=SUBJECT or NAME=SUBJECT@VERSION")
    return SchemaReference(name, subject, version or -1)


def _split(text: str) -> tuple[str, int | None]:
    """Return a subject and the version behind an ``@``, if it has one."""
    name, at, version = text.rpartition("@")
    if at and version == "latest":
        return name, -1
    if at and version.isascii() and version.isdigit() and len(version) < 10:
        return name, int(version)
    return text, None


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidArgumentError(f"{text!r} is not {what}")
    return int(text)


def _version(text: str, url: str | None, context: str | None) -> SchemaInfo:
    name, version = _split(text)
    return run_with_client(
        lambda client: client.schemas.version(name, version or -1, deleted=(version or 0) > 0), url, context
    )


# --- What is shown


def _lines(found: SchemaInfo) -> list[str]:
    import msgspec

    if found.schema_type in ("avro", "json_schema"):
        return msgspec.json.format(found.text, indent=2).splitlines()
    if found.descriptor:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        from danube.schema.proto_text import text_of

        return text_of(FileDescriptorProto.FromString(found.descriptor)).splitlines()
    return found.text.splitlines()


def _fields(found: SchemaInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if found.subject:
        fields |= {"subject": found.subject, "version": f"{found.version}{' (deleted)' if found.is_deleted else ''}"}
    fields |= {"id": found.number, "type": found.schema_type}
    optional = {
        "name": found.name,
        "message": found.message,
        "references": ", ".join(f"{each.name}={each.subject}@{each.version}" for each in found.references),
        "carriers": ", ".join(f"{subject}@{version}" for subject, version in found.carriers),
        "created by": found.created_by,
        "description": found.description,
        "tags": ", ".join(found.tags),
        "metadata": ", ".join(f"{name}={value}" for name, value in found.metadata.items()),
    }
    return fields | {name: value for name, value in optional.items() if value}


def _show_subject(found: SubjectInfo, output: Output) -> None:
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    settings = found.effective
    fields: dict[str, Any] = {"subject": found.subject, "level": settings.level, "mode": settings.mode}
    if found.topics:
        fields["topics"] = ", ".join(found.topics)
    show_record(fields, output)
    rows = [
        {
            "version": each.version,
            "id": each.number,
            "type": each.schema_type,
            "created by": each.created_by or "-",
            "description": each.description or "-",
            "state": "deleted" if each.is_deleted else "live",
        }
        for each in found.versions
    ]
    print()
    show_rows(rows, ["version", "id", "type", "created by", "description", "state"], output)
