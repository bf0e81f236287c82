"""Byzantine-robust aggregation for federated learning: FedSECA and the rules it was measured against."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedseca.version import __version__ as __version__

if TYPE_CHECKING:
    from fedseca import ops as ops
    from fedseca.aggregators import AGGREGATORS as AGGREGATORS
    from fedseca.aggregators import Aggregation as Aggregation
    from fedseca.aggregators import Aggregator as Aggregator
    from fedseca.aggregators import make_aggregator as make_aggregator
    from fedseca.attacks import ATTACKS as ATTACKS
    from fedseca.attacks import Attack as Attack
    from fedseca.attacks import Knowledge as Knowledge
    from fedseca.attacks import make_attack as make_attack
    from fedseca.declare import diagnostic as diagnostic
    from fedseca.declare import param as param
    from fedseca.errors import FedsecaError as FedsecaError
    from fedseca.errors import MissingDependency as MissingDependency
    from fedseca.errors import NotEnoughClients as NotEnoughClients
    from fedseca.federation import History as History
    from fedseca.federation import Scenario as Scenario
    from fedseca.federation import simulate as simulate
    from fedseca.parts import register as register
    from fedseca.server import Round as Round
    from fedseca.server import Server as Server
    from fedseca.server import aggregate as aggregate
    from fedseca.steps import STEPS as STEPS
    from fedseca.steps import Mix as Mix
    from fedseca.steps import StepAfter as StepAfter
    from fedseca.steps import StepBefore as StepBefore
    from fedseca.updates import State as State
    from fedseca.updates import Updates as Updates
    from fedseca.verdict import Verdict as Verdict

# Importing torch takes seconds, which `fedseca --help` does not need: each name is fetched when it is first asked for.
_HOMES = {
    "aggregators": ["AGGREGATORS", "Aggregation", "Aggregator", "make_aggregator"],
    "attacks": ["ATTACKS", "Attack", "Knowledge", "make_attack"],
    "declare": ["diagnostic", "param"],
    "errors": ["FedsecaError", "MissingDependency", "NotEnoughClients"],
    "federation": ["History", "Scenario", "simulate"],
    "ops": ["ops"],
    "parts": ["register"],
    "server": ["Round", "Server", "aggregate"],
    "steps": ["STEPS", "Mix", "StepAfter", "StepBefore"],
    "updates": ["State", "Updates"],
    "verdict": ["Verdict"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name in _HOMES or name == "testing":  # `fedseca.errors.StateError`: a name of the house itself
        return import_module(f"fedseca.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fedseca' has no attribute {name!r}")
    home = import_module(f"fedseca.{_HOME[name]}")
    globals()[name] = found = home if name == _HOME[name] else getattr(home, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
