"""Byzantine-robust aggregation for federated learning: FedSECA and the rules it was measured against."""

from fedseca import ops
from fedseca.aggregators import AGGREGATORS, Aggregation, Aggregator, make_aggregator, register
from fedseca.declare import param
from fedseca.errors import FedsecaError, NotEnoughClients
from fedseca.server import Round, Server, aggregate
from fedseca.updates import Updates

__version__ = "0.1.0"

__all__ = [
    "AGGREGATORS",
    "Aggregation",
    "Aggregator",
    "FedsecaError",
    "NotEnoughClients",
    "Round",
    "Server",
    "Updates",
    "aggregate",
    "make_aggregator",
    "ops",
    "param",
    "register",
]
