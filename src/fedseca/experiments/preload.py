"""What a cell needs, imported once for all cells: each is forked from a process that has it.

Making the first optimizer of a process imports torch's compiler, which takes seconds; here it is made once. So does
the first aggregate, with Numba.
"""

import contextlib

import torch

import fedseca.experiments.workers
import fedseca.ops.cpu  # noqa: F401

torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
with contextlib.suppress(ImportError):
    import sklearn.datasets  # noqa: F401
