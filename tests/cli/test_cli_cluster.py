"""``danube cluster``: what the commands print, for a cluster without one of its brokers, and for a broker alone."""

from __future__ import annotations

import json

import pytest
from brokers import BrokerProcess
from cluster.cluster_views import status, told, topics, view, whole
from typer.testing import CliRunner

from danube.broker.operations.merging import known_of
from danube.cli import _cluster_doctor as cluster_doctor
from danube.cli import cluster as cluster_module
from danube.cli import topics as topics_module
from danube.cli.app import app
from danube.cluster.explain import explain_broker, explain_topic, place_of
from danube.cluster.gaps import GapRecord
from danube.cluster.status import KnownTopic
from danube.model import Durability
from danube.model.checks import Check
from danube.model.cluster_api import MetadataStanding, Upgraded
from danube.model.ids import BrokerId, Offset, TopicId
from danube.model.records import TopicRecord

AWAY = """\
cluster danube · 3 brokers · coordinator b2 · metadata: leader b1, term 7, 3 voters, 1 not heard, 0 behind
broker  address        state        topics  in/s      out/s     disk
b1      10.0.0.1:6650  active            2  11.4 MiB  29.6 MiB  2.0 GiB of 12.0 GiB
b2      10.0.0.2:6650  active            1  11.4 MiB  29.6 MiB  2.0 GiB of 12.0 GiB
b3      10.0.0.3:6650  away 12 min       2  -         -         -
! 1 of 3 voters of the metadata not heard; if another fails, nothing can be created, moved or sealed
! 2 topics of durability 'disk' wait for broker b3, away for 12 min; see: danube cluster explain b3
"""
VOTERS = """\
metadata: leader b1, term 7, 3 voters, 1 not heard, 0 behind
member  broker  address        role    applied  behind
65      b1      10.0.0.1:6650  leader  50       0
66      b2      10.0.0.2:6650  voter   50       0
67      -       -              voter   -        -
"""
BROKERS = """\
broker  address        state   version  level  starts  up     connections  rtt     clock     lag     storages
b1      10.0.0.1:6650  active  0.3.0        1       1  100 s            0  1.0 ms  +0.000 s  2.0 ms  -
b2      10.0.0.2:6650  active  0.3.0        1       2  100 s            0  1.0 ms  +0.000 s  2.0 ms  -
b3      10.0.0.3:6650  active  0.3.0        1       3  100 s            0  1.0 ms  +0.000 s  2.0 ms  -
"""
EXPLAINED = """\
b3: away
Broker b3 has had no session for 12 min (started 3 times). It was last at 10.0.0.3:6650. 2 topics wait for it.
> Start b3 on its data directory; its topics are served again as soon as it is back.

topic        durability  state    owner  address        epoch  reason   sealed to
/default/t4  disk        waiting  b3     10.0.0.3:6650      2  created  8113
/default/t5  disk        waiting  b3     10.0.0.3:6650      2  created  -
"""


@pytest.fixture
def answered(monkeypatch):
    """Have the commands get an answer without a broker."""

    def answer(result):
        monkeypatch.setattr(cluster_module, "run_with_client", lambda work, url, context: result)

    return answer


def printed(*arguments, code=0):
    done = CliRunner().invoke(app, ["cluster", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture
def away():
    found = view()
    return status(found, told(1, 2), topics(found, 4, 5))


def test_the_status_names_what_waits(answered, away):
    answered(away)
    assert printed("status") == AWAY
    assert printed("status", "-o", "raw").splitlines()[2] == "b3\t10.0.0.3:6650\taway 12 min\t2\t-\t-\t-"
    shown = json.loads(printed("status", "-o", "json"))
    assert [row["state"] for row in shown["brokers"]] == ["active", "active", "away"]
    assert len(shown["warnings"]) == 2


def test_voters(answered, away):
    answered(away)
    assert printed("voters") == VOTERS
    assert [each["role"] for each in json.loads(printed("voters", "-o", "json"))["members"]] == [
        "leader",
        "voter",
        "voter",
    ]
    answered(status(whole(), told(1, 2, 3, metadata=MetadataStanding(engine="etcd", kept_by="etcd at e:2379"))))
    assert printed("voters") == "metadata: kept by etcd at e:2379\n"
    assert printed("voters", "-o", "raw") == ""


def test_brokers(answered):
    answered(status(whole(), told(1, 2, 3)))
    assert printed("brokers") == BROKERS
    assert [row["name"] for row in json.loads(printed("brokers", "-o", "json"))] == ["b1", "b2", "b3"]


def test_racks_are_shown_if_there_are_any(answered):
    found = status(whole(), told(1, 2, 3))
    found.brokers[1].rack = "east-1"
    answered(found)
    assert [line.split()[2] for line in printed("status").splitlines()[1:4]] == ["rack", "-", "east-1"]
    (head, *rows) = (line.split() for line in printed("brokers").splitlines())
    assert rows[1][-2:] == ["east-1", "-"]
    assert head[-2:] == ["rack", "storages"]


def test_an_explanation_says_what_to_do(answered, away):
    found = view()
    places = [place_of(found, TopicId(each), KnownTopic(f"/default/t{each}", Durability.DISK)) for each in (4, 5)]
    places[0].sealed_end = 8113
    answered(explain_broker(found, away.brokers[2], away, places, 5, {}))
    assert printed("explain", "b3") == EXPLAINED + "... and 3 more\n"
    assert printed("explain", "b3", "-o", "raw").splitlines()[0].startswith("/default/t4\tdisk\twaiting\tb3")
    assert json.loads(printed("explain", "b3", "-o", "json"))["more"] == 3


def test_what_was_lost_is_listed(answered):
    gap = GapRecord(start=Offset(2), end=Offset(10), broker=BrokerId(3), since_s=1_000.0, by="ann")
    found = whole(gaps={TopicId(3): [gap]}, wall_clock_s=11_800.0)
    place = place_of(found, TopicId(3), KnownTopic("/default/t3", Durability.DISK))
    place.state = "served"
    answered(explain_topic(found, "/default/t3", [place]))
    assert (
        printed("explain", "/default/t3")
        == """\
/default/t3: served
Topic /default/t3 is served by broker b2 at 10.0.0.2:6650, which owns it in epoch 2 (it was created there). \
Offsets 2 to 9 of /default/t3 were lost with broker b3, which was declared gone 3 h ago by ann: subscriptions wait for \
them.
> To give back what the disk of b3 has, if it still exists: danube cluster return-tail --data-dir DIRECTORY, while no \
broker runs on it. To give it up: danube topics forget-gap /default/t3

topic        from  to  broker  since                        by   state
/default/t3     2  10  b3      1970-01-01T00:16:40.000000Z  ann  waited for
"""
    )
    (shown,) = json.loads(printed("explain", "/default/t3", "-o", "json"))["gaps"]
    assert (shown["start"], shown["end"], shown["broker"], shown["open"]) == (2, 10, "b3", True)
    answered(status(found, told(1, 2, 3), topics(found, 3)))
    assert "\n! subscriptions of 1 topic wait for what was lost with broker b3, " in printed("status")
    assert json.loads(printed("status", "-o", "json"))["lost"][0]["topics"] == 1


def test_a_list_of_topics_names_the_brokers_whose_part_is_not_counted(monkeypatch):
    rows = [
        known_of("/default/here", TopicRecord(Durability.DISK, 0, [TopicId(1)], 0)),
        known_of("/default/parts", TopicRecord(Durability.DISK, 2, [TopicId(2), TopicId(3)], 0)),
        known_of("/default/there", TopicRecord(Durability.DISK, 0, [TopicId(4)], 0)),
    ]
    monkeypatch.setattr(topics_module, "run_with_client", lambda work, url, context: rows)
    whole_list = CliRunner().invoke(app, ["topics", "list"])
    assert "silent" not in whole_list.stdout
    assert whole_list.stderr == ""
    rows[1].silent, rows[2].silent = ["b2", "b10"], ["b2"]
    rows[1].end_offset = 70
    done = CliRunner().invoke(app, ["topics", "list"])
    assert (
        done.stdout
        == """\
topic           durability  partitions  start offset  end offset  stored bytes  subscriptions  silent
/default/here   disk                 0  0             0           0             -              -
/default/parts  disk                 2  0             70          0             -              b2, b10
/default/there  disk                 0  -             -           -             -              b2
"""
    )
    assert done.stderr == (
        "! b2, b10 do not answer: what they have of these topics is not counted; see: danube cluster status\n"
    )
    shown = json.loads(CliRunner().invoke(app, ["topics", "list", "-o", "json"]).stdout)
    assert [row["silent"] for row in shown] == [[], ["b2", "b10"], ["b2"]]


def test_checks_of_the_doctor_are_lines_with_their_remedies(monkeypatch):
    checks = [
        Check("metadata", True, "all is well", "never shown"),
        Check("broker b2", False, "does not answer", "start it"),
        Check("loop", False, "late", ""),
    ]
    monkeypatch.setattr(cluster_doctor, "check_cluster_at", lambda url: checks)
    done = CliRunner().invoke(app, ["doctor", "--cluster"])
    assert done.exit_code == 1
    assert (
        done.stdout
        == """\
ok      metadata   all is well
FAILED  broker b2  does not answer
                   > start it
FAILED  loop       late
"""
    )
    raw = CliRunner().invoke(app, ["doctor", "--cluster", "-o", "raw"]).stdout
    assert raw.splitlines()[1] == "broker b2\tno\tdoes not answer\tstart it"


def test_a_real_broker_alone(tmp_path):
    with BrokerProcess(tmp_path, "--log-level", "warning") as running:
        found = printed("status", "--url", running.url)
        assert found.startswith("cluster danube · 1 broker · ")
        assert f"b1      127.0.0.1:{running.port}  active" in found
        assert printed("explain", "b1", "--url", running.url).startswith("b1: active\nBroker b1 at 127.0.0.1:")
        checked = CliRunner().invoke(app, ["doctor", "--cluster", "-o", "json", "--url", running.url])
        checks = {check["check"]: check["detail"] for check in json.loads(checked.stdout) if check["ok"]}
        assert checks["broker b1"].startswith(f"127.0.0.1:{running.port} answers in ")
        assert checks["metadata"] == "leader b1, term 1, 1 voter; all members are up to date"
        assert checks["links of b1"] == "there is no other broker"
        done = CliRunner().invoke(app, ["cluster", "explain", "b7", "--url", running.url])
        assert done.exit_code == 66
        assert "error: there is no broker 'b7' in this cluster; its brokers are b1." in done.stderr


def test_an_upgrade_tells_the_level_before_and_after(answered):
    answered(Upgraded(2, 1))
    assert printed("upgrade") == "the feature level of the cluster is 2 now; it was 1\n"
    assert printed("upgrade", "-o", "raw") == "2\n"
    assert json.loads(printed("upgrade", "-o", "json")) == {"level": 2, "before": 1}
    answered(Upgraded(2, 2))
    assert printed("upgrade") == "the feature level of the cluster is 2 already, the newest one of its brokers\n"
