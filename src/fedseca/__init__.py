"""Byzantine-robust aggregation for federated learning: FedSECA and the rules it was measured against."""

from fedseca import ops
from fedseca.aggregators import AGGREGATORS, Aggregation, Aggregator, make_aggregator, register
from fedseca.attacks import ATTACKS, Attack, make_attack
from fedseca.declare import param
from fedseca.errors import FedsecaError, NotEnoughClients
from fedseca.federation import History, Scenario, simulate
from fedseca.server import Round, Server, aggregate
from fedseca.updates import Updates
from fedseca.version import __version__

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "Aggregation",
    "Aggregator",
    "Attack",
    "FedsecaError",
    "History",
    "NotEnoughClients",
    "Round",
    "Scenario",
    "Server",
    "Updates",
    "__version__",
    "aggregate",
    "make_aggregator",
    "make_attack",
    "ops",
    "param",
    "register",
    "simulate",
]
