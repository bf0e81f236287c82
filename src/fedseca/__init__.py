"""Byzantine-robust aggregation for federated learning: FedSECA and the rules it was measured against."""

from fedseca import ops
from fedseca.aggregators import AGGREGATORS, Aggregation, Aggregator, make_aggregator
from fedseca.attacks import ATTACKS, Attack, Knowledge, make_attack
from fedseca.declare import diagnostic, param
from fedseca.errors import FedsecaError, MissingDependency, NotEnoughClients
from fedseca.federation import History, Scenario, simulate
from fedseca.parts import register
from fedseca.server import Round, Server, aggregate
from fedseca.steps import STEPS, Mix, StepAfter, StepBefore
from fedseca.updates import State, Updates
from fedseca.verdict import Verdict
from fedseca.version import __version__

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "STEPS",
    "Aggregation",
    "Aggregator",
    "Attack",
    "FedsecaError",
    "History",
    "Knowledge",
    "MissingDependency",
    "Mix",
    "NotEnoughClients",
    "Round",
    "Scenario",
    "Server",
    "State",
    "StepAfter",
    "StepBefore",
    "Updates",
    "Verdict",
    "__version__",
    "aggregate",
    "diagnostic",
    "make_aggregator",
    "make_attack",
    "ops",
    "param",
    "register",
    "simulate",
]
