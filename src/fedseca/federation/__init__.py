"""A simulated federation: honest and Byzantine clients train a model over rounds."""

from fedseca.federation.client import Federation
from fedseca.federation.folder import read_history
from fedseca.federation.history import History
from fedseca.federation.loop import simulate
from fedseca.federation.scenario import Scenario

__all__ = ["Federation", "History", "Scenario", "read_history", "simulate"]
