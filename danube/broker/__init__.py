"""The broker: topics, publish and consume calls, administration, configuration and life cycle."""

from __future__ import annotations

from danube.broker.broker import Broker, Seams
from danube.broker.faces import Face, FaceMaker
from danube.broker.run import run_broker
from danube.broker.runtime.config import BrokerConfig, parse_size
from danube.broker.runtime.config_file import load_config

__all__ = [
    "Broker",
    "BrokerConfig",
    "Face",
    "FaceMaker",
    "Seams",
    "load_config",
    "parse_size",
    "run_broker",
]
