"""Routes of what is attached to topics, and of the broker seen from within; a part of the one table. Pure."""

from __future__ import annotations

from typing import Final

from danube.model import api, inspect_api, log_api
from danube.model.cluster_api import ClusterMethod
from danube.model.connection_api import ConnectionMethod
from danube.model.history_api import HistoryMethod
from danube.model.inspect_api import InspectMethod
from danube.model.log_api import LogMethod
from danube.model.metrics_api import MetricsMethod
from danube.model.overview_api import OverviewMethod
from danube.model.policy_api import PolicyMethod
from danube.web.inspect_bodies import ConsumerPage, Expansion, ProducerPage, ReaderPage
from danube.web.route import API, LIST, PARTITION, SUBSCRIPTION, TOPIC, Parameter, Route
from danube.web.twins import twin

__all__ = ["BUNDLE", "GZIP", "INSPECT_ROUTES"]

GZIP: Final = "application/gzip"

BUNDLE: Final = (
    InspectMethod.TASKS,
    api.Method.INFO,
    OverviewMethod.FINDINGS,
    OverviewMethod.SUBSCRIPTIONS,
    api.Method.LIST_TOPICS,
    ConnectionMethod.LIST,
    HistoryMethod.STORAGES_STATUS,
    ClusterMethod.STATUS,
    PolicyMethod.SHOW,
    InspectMethod.DOCTOR,
    InspectMethod.PLUGINS,
    MetricsMethod.METRICS,
)
"""The calls of a bundle."""

INSPECT_ROUTES: Final = (
    Route(
        "GET",
        f"{TOPIC}/producers",
        "list_producers",
        "The producers of a topic: those connected, and those whose sequence numbers are remembered.",
        (api.Method.LOOKUP_TOPIC, api.Method.DESCRIBE_TOPIC),
        (PARTITION, *LIST),
        answer=ProducerPage,
    ),
    Route(
        "GET",
        f"{TOPIC}/readers",
        "list_readers",
        "The readers of a topic: consumers without a subscription.",
        (InspectMethod.READERS,),
        (PARTITION, *LIST),
        answer=ReaderPage,
    ),
    Route(
        "GET",
        f"{SUBSCRIPTION}/consumers",
        "list_consumers",
        "The consumers of a subscription.",
        (api.Method.DESCRIBE_SUBSCRIPTION,),
        (PARTITION, *LIST),
        answer=ConsumerPage,
    ),
    Route(
        "POST",
        f"{TOPIC}:expand",
        "expand_topic",
        "Give a partitioned topic more partitions; messages stay where they are, and later ones of a key may go"
        " elsewhere.",
        (InspectMethod.EXPAND,),
        body=Expansion,
        answer=twin(api.TopicInfo),
    ),
    Route(
        "GET",
        f"{API}/doctor",
        "run_doctor",
        "Check the machine of the broker, its sealing and its storages.",
        (InspectMethod.DOCTOR,),
        answer=twin(inspect_api.CheckList),
    ),
    Route(
        "GET",
        f"{API}/plugins",
        "list_plugins",
        "The storage backends and metadata engines that are installed at the broker.",
        (InspectMethod.PLUGINS,),
        answer=twin(inspect_api.PluginList),
    ),
    Route(
        "GET",
        f"{API}/debug/tasks",
        "show_tasks",
        "The tree of tasks of the broker: who waits where. Without values of variables.",
        (InspectMethod.TASKS,),
        (Parameter("limit", int, "Most tasks.", 1_000, 1, inspect_api.MAX_TASK_ROWS),),
        answer=twin(inspect_api.TaskTree),
    ),
    Route(
        "GET",
        f"{API}/debug/bundle",
        "download_bundle",
        "What a bug report needs, as a tar.gz: state, findings, subscriptions, topics, connections, storages, cluster,"
        " policies, checks, plugins, tasks, metrics, configuration and limits. Without messages and secrets.",
        BUNDLE,
        answer_types=(GZIP,),
        lasting=True,
    ),
    Route(
        "PUT",
        f"{API}/debug/log-level",
        "change_log_level",
        "Change the level of the broker's log for a time.",
        (LogMethod.CHANGE_LEVEL,),
        body=twin(log_api.ChangeLogLevel),
        answer=twin(log_api.LogLevel),
    ),
)
"""The rows."""
