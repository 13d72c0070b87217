"""Routes that move topics between brokers; a part of the one table. Pure."""

from __future__ import annotations

from typing import Final

from danube.model import cluster_api, history_api
from danube.model.cluster_api import ClusterMethod
from danube.model.history_api import HistoryMethod
from danube.web.route import API, TOPIC, Route
from danube.web.twins import twin, without

__all__ = ["MOVING_ROUTES"]

MOVING_ROUTES: Final = (
    Route(
        "POST",
        f"{API}/broker:drain",
        "drain_broker",
        "Have a broker give all its topics to others, and get none; or (with dry_run) say how far it is.",
        (ClusterMethod.DRAIN,),
        body=twin(cluster_api.DrainBroker),
        answer=twin(cluster_api.BrokerDrain),
    ),
    Route(
        "POST",
        f"{API}/broker:activate",
        "activate_broker",
        "Have a drained broker get topics again.",
        (ClusterMethod.ACTIVATE,),
        body=twin(cluster_api.ActivateBroker),
        answer=twin(cluster_api.BrokerDrain),
    ),
    Route(
        "POST",
        f"{API}/cluster:balance",
        "balance_cluster",
        "Order topics to move until the load of all brokers is even; or (with dry_run) show the plan.",
        (ClusterMethod.BALANCE,),
        body=twin(cluster_api.BalanceCluster),
        optional_body=True,
        answer=twin(cluster_api.BalancePlan),
    ),
    Route(
        "POST",
        f"{API}/broker:forget",
        "forget_broker",
        "Say what is lost if a broker does not return; or (with accept_loss) have others go on with its topics.",
        (ClusterMethod.FORGET,),
        body=twin(cluster_api.ForgetBroker),
        answer=twin(cluster_api.Forgotten),
    ),
    Route(
        "POST",
        f"{TOPIC}:move",
        "move_topic",
        "Order a topic, or all its partitions, to move to a broker; or (with dry_run) show what would be ordered.",
        (ClusterMethod.MOVE,),
        body=without(cluster_api.MoveTopic, "topic"),
        answer=twin(cluster_api.MoveList),
    ),
    Route(
        "POST",
        f"{TOPIC}:forget-gap",
        "forget_gap",
        "Have subscriptions wait no longer for what was lost with a broker; or (with dry_run) show it.",
        (ClusterMethod.FORGET_GAPS,),
        body=without(cluster_api.ForgetGaps, "topic"),
        optional_body=True,
        answer=twin(cluster_api.ForgottenGaps),
    ),
    Route(
        "POST",
        f"{TOPIC}:unload",
        "unload_topic",
        "Disconnect all clients from a topic, and move its messages to its storage.",
        (HistoryMethod.UNLOAD_TOPIC,),
        answer=twin(history_api.SealedTopics),
        lasting=True,
    ),
)
