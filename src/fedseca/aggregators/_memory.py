"""What a rule remembers of each client, under `name/client id`, until the client has been away for too long."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedseca.updates import State

ROUND = "round"
_SEEN = "seen"


def begun() -> State:
    """Before the first round nothing is known of any client."""
    return {ROUND: torch.zeros((), dtype=torch.int64)}


def recalled(state: State, name: str, client_id: str) -> Tensor | None:
    """What was kept of a client under this name, if anything was."""
    return state.get(f"{name}/{client_id}")


def remembered(state: State, name: str, of_clients: Mapping[str, Tensor], patience: int) -> State:
    """The next state: of this round's clients anew, of the others what it was, for `patience` rounds of absence."""
    number = int(state[ROUND])
    new = {ROUND: torch.tensor(number + 1)}
    for key, value in state.items():
        client_id = key.partition("/")[2]
        if client_id and number - int(state[f"{_SEEN}/{client_id}"]) <= patience:
            new[key] = value
    for client_id, value in of_clients.items():
        new[f"{name}/{client_id}"] = value
        new[f"{_SEEN}/{client_id}"] = torch.tensor(number)
    return new
