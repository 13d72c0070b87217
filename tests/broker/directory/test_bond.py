"""Journal and metadata record each other's state: if one of them lost data, the broker does not start."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RunningBroker, read_all, small_config, wait_until

from danube.broker import Broker, Seams, run_broker
from danube.broker.directory.identity_file import ACCEPT_NAME
from danube.broker.directory.losses import JournalRecord, find_losses
from danube.broker.doctor import _data
from danube.log import Standing
from danube.log._files import parse_journal_name
from danube.log.format import FILE_HEADER_SIZE, Block, parse_blocks
from danube.metadata import begin_incarnation, open_store
from danube.metadata.raft.inspection import inspect
from danube.model import Limits
from danube.model.errors import ConfigurationError, DanubeError, DataDirectoryError, DataLossError, UnavailableError

TOPICS = ["/default/one", "/default/two"]
PAYLOAD = bytes(100_000)


async def start(directory: Path, nursery: trio.Nursery) -> RunningBroker:
    return await RunningBroker(small_config(directory), nursery).start()


def settled(running: RunningBroker) -> bool:
    """Whether each side has been told of the other's last step."""
    journal = running.broker.runtime.journal
    return journal.told_revision >= journal.noted_revision and running.broker._bond.told_file == journal.proven()[0]


async def copy_running(source: Path, target: Path) -> None:
    """Copy a directory in use; journals may rename their spare files meanwhile."""
    while True:
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            shutil.rmtree(target)
            await trio.sleep(0.05)


async def write(directory: Path, *, crash: bool, rolls: bool = False) -> None:
    """Let a broker acknowledge messages of two topics; copy its directory as ``kill -9`` or a clean end leave it."""
    running_in = directory.with_name("running")
    async with trio.open_nursery() as nursery:
        running = await start(running_in, nursery)
        async with running.client() as client:
            for topic in TOPICS:
                await client.admin.create_topic(topic)
                async with client.producer(topic) as producer:
                    await producer.send_many([b"%d" % number for number in range(10)])
                    for _ in range(25 if rolls else 0):
                        await producer.send(PAYLOAD)
            async with client.consumer(TOPICS[0], subscription="s", start="earliest") as consumer:
                await (await consumer.receive_batch()).ack()
        await wait_until(lambda: settled(running))
        if crash:
            await copy_running(running_in, directory)
        await running.drain()
    if not crash:
        shutil.copytree(running_in, directory)
    shutil.rmtree(running_in)


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files; those that a look may leave, and that hold nothing, are left out."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
        and path.name not in ("lock", "metadata.db-shm")
        and (path.name, path.stat().st_size) != ("metadata.db-wal", 0)
    }


async def known(directory: Path) -> object:
    """Return all that a start must not change when it is refused.

    The metadata are compared by what they say: a member of a group votes for itself, and its log gets another file.
    """
    files = {name: data for name, data in contents(directory).items() if not name.startswith("metadata/")}
    try:
        async with inspect(directory, Limits()) as found:
            return files, await found.store.list("/")
    except DanubeError as error:
        return files, type(error)


def in_metadata(directory: Path) -> Path:
    """Return the table's file."""
    return directory / "metadata" / "metadata.db"


def remove_metadata(directory: Path) -> None:
    """Remove the metadata."""
    shutil.rmtree(directory / "metadata")


async def outcome(directory: Path) -> str:
    """Start a broker on a directory that was tampered with, and return what it says; empty if nothing is missing."""
    before = await known(directory)
    async with trio.open_nursery() as nursery:
        try:
            running = await start(directory, nursery)
        except (DanubeError, ExceptionGroup) as error:
            refused: BaseException = error
        else:
            refused = Exception()
        if refused.args:
            while isinstance(refused, ExceptionGroup):
                refused = refused.exceptions[0]
            assert isinstance(refused, DataLossError | DataDirectoryError), repr(refused)
            assert await known(directory) == before, "something was changed"
            return str(refused)
        async with running.client() as client:
            try:
                for topic in TOPICS:
                    assert (await read_all(client, topic))[:10] == [b"%d" % number for number in range(10)]
                (info,) = await client.admin.describe_subscription(TOPICS[0], "s")
                assert info.floor >= 10
            except DataLossError as error:
                return str(error)
            finally:
                await running.drain()
    return ""


def active(directory: Path) -> str:
    """Return the name of the journal file that was written last."""
    return max(path.name for path in directory.glob("journal-*") if path.read_bytes()[:4] == b"DNJF")


def damage(path: Path, how: str) -> None:
    """Remove a file, or cut it to a share of its size."""
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * float(how))])


HARMLESS = ("spare-", "lock")
"""Files that hold nothing."""


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "ended"])
@pytest.mark.parametrize(
    "how", ["remove", "0", "0.5", *(pytest.param(each, marks=pytest.mark.extended) for each in ("0.01", "0.99"))]
)
async def test_no_file_of_the_data_directory_is_missed_in_silence(tmp_path: Path, how: str, crash: bool) -> None:
    original = tmp_path / "original"
    await write(original, crash=crash)
    names = sorted(name for name in contents(original) if not name.startswith(HARMLESS))
    said: dict[str, str] = {}
    for name in names:
        shutil.copytree(original, tmp_path / "tampered")
        damage(tmp_path / "tampered" / name, how)
        said[name] = await outcome(tmp_path / "tampered")
        shutil.rmtree(tmp_path / "tampered")
    assert "journal" in said[active(original)]
    assert "metadata" in said["metadata/log/" + active(original / "metadata" / "log")]
    # What is left out here holds nothing, or nothing that the log of the metadata does not hold: "outcome" has found
    # everything in its place.
    unused = {name for name in names if "journal-" in name and (original / name).read_bytes()[:4] != b"DNJF"}
    in_the_log = {"metadata/metadata.db", "metadata/metadata.db-wal"}
    unused |= {name for name in names if name.startswith("group-") and how not in ("remove", "0")}  # zeros at its end
    assert {name for name, text in said.items() if not text} <= unused | in_the_log


@pytest.mark.parametrize("count", [6, pytest.param(150, marks=pytest.mark.extended)])
async def test_a_flipped_byte_of_the_metadata_log_is_not_missed_in_silence(tmp_path: Path, count: int) -> None:
    """Except in its last block, which passes for a torn write unless the journal has recorded a later revision."""
    original = tmp_path / "original"
    await write(original, crash=True)
    log = Path("metadata") / "log"
    victim = log / active(original / log)
    content = (original / victim).read_bytes()
    used = len(content.rstrip(b"\0"))
    file_id = parse_journal_name(victim.name)
    assert file_id is not None
    last = max(each.position for each in parse_blocks(content, file_id, FILE_HEADER_SIZE) if isinstance(each, Block))
    chance = random.Random(count)
    for number in range(count):
        shutil.copytree(original, tmp_path / "tampered")
        flipped = bytearray(content)
        place = used - 1 - chance.randrange(100) if number % 2 else 4096 + chance.randrange(used - 4096)
        flipped[place] ^= 1 << chance.randrange(8)
        (tmp_path / "tampered" / victim).write_bytes(flipped)
        said = await outcome(tmp_path / "tampered")
        assert "metadata log is damaged" in said or "recorded" in said or place >= last
        shutil.rmtree(tmp_path / "tampered")


async def test_metadata_put_back_from_an_old_copy_are_refused(tmp_path: Path) -> None:
    await write(tmp_path / "data", crash=False)
    shutil.copytree(tmp_path / "data" / "metadata", tmp_path / "old")
    async with trio.open_nursery() as nursery:
        running = await start(tmp_path / "data", nursery)
        async with running.client() as client:
            await client.admin.create_topic("/default/three")
        await running.drain()
    remove_metadata(tmp_path / "data")
    shutil.copytree(tmp_path / "old", tmp_path / "data" / "metadata")
    assert "old copy" in await outcome(tmp_path / "data")


async def test_the_journal_of_another_broker_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        await write(tmp_path / name, crash=False)
    remove_metadata(tmp_path / "one")
    shutil.copytree(tmp_path / "two" / "metadata", tmp_path / "one" / "metadata")
    assert "or of another broker" in await outcome(tmp_path / "one")


def test_the_process_ends_with_code_74_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(lambda: write(tmp_path / "data", crash=True))
    remove_metadata(tmp_path / "data")
    assert run_broker(small_config(tmp_path / "data")) == 74
    said = capsys.readouterr().err
    assert "record no journal" in said
    assert "Nothing was changed" in said
    assert ACCEPT_NAME in said


def test_the_doctor_compares_without_a_start(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    assert _data(str(directory), Limits()) == []
    trio.run(lambda: write(directory, crash=True))
    (check,) = _data(str(directory), Limits())
    assert check.ok, check
    (directory / active(directory)).unlink()
    (check,) = _data(str(directory), Limits())
    assert not check.ok
    assert "is missing" in check.detail
    in_metadata(directory).with_name("metadata.db-wal").unlink()
    in_metadata(directory).write_bytes(b"scribble" * 1000)
    (check,) = _data(str(directory), Limits())
    assert "damaged" in check.detail


@pytest.mark.parametrize("lost", ["metadata", "journal"])
async def test_a_loss_that_is_accepted_is_accepted_once(tmp_path: Path, lost: str) -> None:
    directory = tmp_path / "data"
    await write(directory, crash=True)
    if lost == "metadata":
        remove_metadata(directory)
    else:
        (directory / active(directory)).unlink()
    assert await outcome(directory)
    (directory / ACCEPT_NAME).touch()
    async with trio.open_nursery() as nursery:
        running = await start(directory, nursery)
        assert not (directory / ACCEPT_NAME).exists()
        async with running.client() as client:
            topics = [info.topic for info in await client.admin.list_topics()]
            assert topics == ([] if lost == "metadata" else TOPICS)
            await client.admin.create_topic("/default/new")
            async with client.producer("/default/new") as producer:
                await producer.send(b"after")
            await wait_until(lambda: settled(running))
            await running.restart(crash=True)
            assert await read_all(client, "/default/new") == [b"after"]
        await running.drain()
    remove_metadata(directory)
    assert "record no journal" in await outcome(directory)


async def test_a_directory_where_the_journal_alone_is_new_or_the_metadata_forget(tmp_path: Path) -> None:
    """Metadata that forget leave a journal that belongs to none; a journal of others is not given up for them."""
    config = small_config(tmp_path / "data", metadata="memory")
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            running = await RunningBroker(config, nursery).start()
            async with running.client() as client:
                assert await client.admin.list_topics() == []
                await client.admin.create_topic(TOPICS[0])
            await running.drain()
        running = await start(tmp_path / "data", nursery)
        await running.drain()
        with pytest.raises(ConfigurationError, match="loses its data"):
            await Broker(config, Seams(lambda: 0, random.Random())).run()


WHOLE = Standing(True, 7, 50, 3, 1000, (), {}, frozenset())
KNOWN = JournalRecord(7, 3, 1000)


@pytest.mark.parametrize(
    ("standing", "record", "revision", "said"),
    [
        (WHOLE, KNOWN, 50, ""),
        (WHOLE, KNOWN, 60, ""),
        (WHOLE, JournalRecord(7), 50, ""),
        (Standing(False, 0, 0, 0, 0, (), {}, frozenset()), None, 0, ""),
        (Standing(False, 0, 0, 0, 0, (), {}, frozenset()), JournalRecord(7), 5, ""),
        (Standing(False, 0, 0, 0, 0, (), {}, frozenset()), KNOWN, 50, "the journal is missing"),
        (WHOLE, None, 0, "record no journal"),
        (WHOLE, KNOWN, 49, "the journal has recorded revision 50"),
        (WHOLE, JournalRecord(8, 3, 1000), 50, "belongs to another broker"),
        (WHOLE, JournalRecord(7, 4, 1000), 50, "journal-0000000000000004.log is missing or empty"),
        (WHOLE, JournalRecord(7, 3, 1001), 50, "sequence 1001 was synced"),
        (WHOLE._replace(identity=6), JournalRecord(7, 3, 1000, former_identity=6), 49, ""),
        (WHOLE._replace(identity=0), JournalRecord(7, 3, 1000), 50, "belongs to another broker"),
        (WHOLE._replace(missing_files=(2,)), KNOWN, 50, "journal-0000000000000002.log is missing"),
        (WHOLE._replace(cut_files={"f": 5}), KNOWN, 50, "f has been cut to 5 bytes"),
        (WHOLE._replace(cut_files={"f": 5}), JournalRecord(7, 3, 1000, ("f",)), 50, ""),
    ],
)
def test_the_comparison_of_journal_and_metadata_finds_each_loss(
    standing: Standing, record: JournalRecord | None, revision: int, said: str
) -> None:
    losses = find_losses(standing, record, revision)
    assert len(losses) == bool(said)
    assert said in "".join(losses)


# --- A new incarnation of the metadata ---


async def put_back(directory: Path, backup: Path, *, incarnation: int = 99) -> None:
    """Restore the metadata from a backup, as a command does that begins a new incarnation."""
    remove_metadata(directory)
    shutil.copytree(backup, directory / "metadata")
    async with open_store("embedded://", data_directory=directory) as store:
        await begin_incarnation(store, incarnation, "restored from monday")


async def life_after_a_backup(directory: Path) -> Path:
    """Two topics, a backup; then more messages, a further topic, and one of the two is deleted."""
    await write(directory, crash=False)
    backup = shutil.copytree(directory / "metadata", directory.with_name("monday"))
    async with trio.open_nursery() as nursery:
        running = await start(directory, nursery)
        async with running.client() as client:
            async with client.producer(TOPICS[0]) as producer:
                await producer.send(b"after the backup")
            async with client.consumer(TOPICS[0], subscription="s") as consumer:
                await (await consumer.receive_batch()).ack()
                await consumer.flush_acks()
            await client.admin.delete_topic(TOPICS[1])
            async with client.producer("/default/three") as producer:
                await producer.send_many([b"x"] * 5)
        await running.drain()
    return backup


async def test_metadata_that_were_put_back_on_purpose_are_reconciled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data"
    await put_back(directory, await life_after_a_backup(directory))
    async with trio.open_nursery() as nursery:
        running = await start(directory, nursery)
        assert "a new incarnation (restored from monday)" in caplog.text
        assert f"they begin at offset 0 ({TOPICS[1]})" in caplog.text
        assert "that the metadata do not know" in caplog.text
        async with running.client() as client:
            assert await read_all(client, TOPICS[0]) == [*(b"%d" % number for number in range(10)), b"after the backup"]
            (info,) = await client.admin.describe_subscription(TOPICS[0], "s")
            assert info.floor == 11, "cursors are in the journal"
            (stranded,) = await client.admin.list_stranded()
            assert stranded.end_offset == 5
            assert await read_all(client, TOPICS[1]) == [], "it was deleted after the backup"
            async with client.consumer(TOPICS[1], subscription="new", start="earliest") as consumer:
                async with client.producer(TOPICS[1]) as producer:
                    assert (await producer.send(b"again")).offset == 0
                await (await consumer.receive_batch()).ack()
                await consumer.flush_acks()
            for crash in (True, False):
                caplog.clear()
                await running.restart(crash=crash)
                assert "incarnation" not in caplog.text, "once"
                assert await read_all(client, TOPICS[1]) == [b"again"]
                (info,) = await client.admin.describe_subscription(TOPICS[1], "new")
                assert info.floor == 1
                assert await client.admin.list_stranded() == [stranded]
            await wait_until(lambda: settled(running))
        await running.drain()


async def started_and_ended(directory: Path) -> None:
    async with trio.open_nursery() as nursery:
        await (await start(directory, nursery)).drain()


async def test_a_reconciliation_is_repeated_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata know the journal's next identity before the journal does."""
    directory = tmp_path / "data"
    await put_back(directory, await life_after_a_backup(directory))

    async def crash(*args: object, **how: object) -> None:
        raise UnavailableError("the broker crashes")

    for place in ("danube.broker.broker.recover", "danube.broker.directory.bond.Bond.begin"):
        with monkeypatch.context() as patch:
            patch.setattr(place, crash)
            with pytest.raises((UnavailableError, ExceptionGroup)):
                await started_and_ended(directory)
    async with trio.open_nursery() as nursery:
        running = await start(directory, nursery)
        assert running.broker.info().stranded_topics == 1
        await running.drain()


async def test_losses_that_a_new_incarnation_does_not_excuse(tmp_path: Path) -> None:
    """A journal that is behind its record in the backup, and metadata that do not know it."""
    directory = tmp_path / "data"
    backup = await life_after_a_backup(directory)
    shutil.copytree(directory, tmp_path / "copy")
    await put_back(directory, backup)
    for name in contents(directory):
        if name.startswith("journal"):
            (directory / name).unlink()
    assert "the journal is missing" in await outcome(directory)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory)
    remove_metadata(directory)
    async with open_store("embedded://", data_directory=directory) as store:
        await begin_incarnation(store, 7, "made new")
    assert "record no journal" in await outcome(directory)


@pytest.mark.parametrize(
    ("standing", "record", "said"),
    [
        (WHOLE, KNOWN, ""),
        (WHOLE, None, "record no journal"),
        (WHOLE, JournalRecord(8, 3, 1000), "belongs to another broker"),
        (WHOLE, JournalRecord(7, 4, 1000), "journal-0000000000000004.log is missing or empty"),
        (WHOLE, JournalRecord(7, 3, 1001), "sequence 1001 was synced"),
        (WHOLE, JournalRecord(7, 3, 1000, incarnation_id=5), "the journal has recorded revision 50"),
        (WHOLE._replace(missing_files=(2,)), KNOWN, "journal-0000000000000002.log is missing"),
        (WHOLE._replace(cut_files={"f": 5}), KNOWN, "f has been cut to 5 bytes"),
    ],
)
def test_losses_that_a_new_incarnation_excuses(standing: Standing, record: JournalRecord | None, said: str) -> None:
    """Metadata at revision 20, of incarnation 5."""
    losses = find_losses(standing, record, 20, 5)
    assert len(losses) == bool(said)
    assert said in "".join(losses)
