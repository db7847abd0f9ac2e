"""CUDA graphs on a processor: a recorder in the place of the driver's plays the operators that it saw."""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from idpgan.privacy import dpsgd, layer_gradients

READS = "_local_scalar_dense", "nonzero", "is_nonzero"  # the host would wait for an answer


def storages(values):
    return {part.untyped_storage()._cdata for part in tree_leaves(values) if isinstance(part, torch.Tensor)}


class Recording(TorchDispatchMode):
    """What `torch.cuda.CUDAGraph` is to the package: the operators between begin and end, on the same memory."""

    spoiled = None  # (number of an operator, what is done to its result in a replay)
    replays = 0

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in READS):
            raise RuntimeError("operation not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made

    def sums(self):
        """The totals that are added to, the last first."""
        return [made for func, _, _, made in reversed(self.calls) if "add_" in str(func)]

    @torch.no_grad()
    def replay(self):
        Recording.replays += 1
        for func, args, kwargs, made in self.calls:
            again = func(*args, **kwargs)
            if not storages(made) <= storages((args, kwargs)):  # neither a view nor in place
                for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)
        if Recording.spoiled:
            Recording.spoiled(self)


@pytest.fixture
def driver(monkeypatch):
    """torch.cuda with a graph and a stream, and a package that asks no tensor, as for a GPU."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(Recording, "spoiled", None)
    monkeypatch.setattr(Recording, "replays", 0)
    for module in (dpsgd, layer_gradients):
        monkeypatch.setattr(module, "is_gpu", lambda device: True)


class Stream:
    def wait_stream(self, other):
        pass
