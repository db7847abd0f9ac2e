"""Adapters: the few weights of a public network that private steps move, in the network or beside its own.

A network is *adapted* in place: all of its weights are frozen but those that ``model.trained`` names, and modules that
add a product of two small matrices (Hu et al., "LoRA", 2022) or vectors of classes stand around its layers. At first an
adapted network computes what it did before; `merged` adds what was learned to the weights and takes the modules away.

The parts of ``model.trained``: "labels" (vectors of the classes), "biases" (all vectors of weights: biases, and scales
of normalization; Ben Zaken et al., "BitFit", 2022), "lora:R" (rank R beside the projections of attention, or where a
network has none, beside all its linear and convolutional layers), "lora:R:PATTERN" (beside the layers of these names),
or a pattern of names of weights. ``*`` in a pattern stands for anything. Releases of idpgan 0.3 may have "tangent:R"
(`idpgan.models.tangent`).
"""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from idpgan.errors import ConfigError
from idpgan.models.initialize import seeded_init
from idpgan.models.tangent import Tangent
from idpgan.removed import gone

LABELS, BIASES, LORA, TANGENT, VOTES = "labels", "biases", "lora", "tangent", "votes"  # the last two went
RANK = re.compile(rf"({LORA}|{TANGENT}):([1-9][0-9]{{0,3}})(?::(.+))?")
_ATTENTION = re.compile(r"(.*\.)?(to_q|to_k|to_v|to_out\.0)")
_SHOWN = 12  # names in a message


class Lora(nn.Module):
    """A layer, frozen, and beside it a product of two of rank R; the second is zero at first.

    Args:
        layer: A linear layer, or a convolution in one group.
        rank: R.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down: Any  # layers, both of the kind of the first
        self.up: Any
        if isinstance(layer, nn.Linear):
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)
        else:
            same: Any = {key: getattr(layer, key) for key in ("kernel_size", "stride", "padding", "dilation")}
            self.down = nn.Conv2d(layer.in_channels, rank, bias=False, **same)
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer makes of the inputs, and what the product adds."""
        made: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return made

    def merged(self) -> nn.Module:
        """Return the layer with the product in its weight."""
        product = torch.tensordot(self.up.weight.flatten(1), self.down.weight, 1)
        self.layer.weight.data += product.detach()
        return self.layer


class LabelVectors(nn.Module):
    """A linear layer, frozen, of inputs that begin with the class, one number each, and a vector added a class."""

    def __init__(self, layer: nn.Linear, num_classes: int) -> None:
        super().__init__()
        self.layer, self._num = layer, num_classes
        self.labels = nn.Linear(num_classes, layer.out_features, bias=False)
        nn.init.zeros_(self.labels.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer makes of the inputs, and the vector of their class."""
        made: Tensor = self.layer(inputs) + self.labels(inputs[..., : self._num])
        return made

    def merged(self) -> nn.Module:
        """Return the layer with the vectors in its weight."""
        self.layer.weight.data[:, : self._num] += self.labels.weight.detach()
        return self.layer


def refuse_gone(trained: Sequence[str]) -> None:
    """Refuse the parts that earlier versions trained."""
    kinds = {TANGENT: f'model.trained = "{TANGENT}:R"', VOTES: f'model.trained = "{VOTES}:K:R"'}
    for part in trained:
        if line := gone(kinds.get(part.partition(":")[0], "")):
            raise ConfigError(line)


def adapt(network: nn.Module, trained: Sequence[str], *, seed: int = 0) -> None:
    """Freeze a network but for the parts that ``trained`` names, and put modules around its layers.

    Args:
        network: Changed in place. A network with classes lists in ``label_layers`` the names of its linear layers whose
            inputs begin with the class, or of its embeddings with one row for each of the classes.
        seed: Of the first factors of LoRA.

    Raises:
        ConfigError: If a part names nothing, or what cannot be adapted; the message lists what can.
    """
    network.requires_grad_(False)
    for part in sorted(trained, key=lambda part: (bool(RANK.fullmatch(part)), part == LABELS)):  # modules come last
        if part == LABELS:
            _adapt_labels(network)
        elif part == BIASES:
            vectors = {name: weight for name, weight in network.named_parameters() if weight.ndim == 1}
            _train(vectors, part, network)
        elif found := RANK.fullmatch(part):
            with seeded_init(seed, stream=2):
                _adapt_layers(network, found[1], int(found[2]), found[3])
        else:
            own = dict(network.named_parameters())
            _train({name: own[name] for name in fnmatch.filter(own, part)}, part, network)


def _train(weights: Mapping[str, nn.Parameter], part: str, network: nn.Module) -> None:
    if not weights:
        raise ConfigError(
            f'model.trained: "{part}" names no weight of the network. It has '
            f"{_listed(name for name, _ in network.named_parameters())}."
        )
    for weight in weights.values():
        weight.requires_grad_(True)


def _adapt_labels(network: nn.Module) -> None:
    """Put vectors of classes beside linear layers, and train whole embeddings of classes."""
    names: Sequence[str] = getattr(network, "label_layers", ())
    num = int(getattr(network, "num_classes", 0))
    if not names or num < 1:
        raise ConfigError(
            'model.trained: "labels" are vectors of the classes, and the network knows none. Take labeled data with '
            "model.conditional = true, or train another part."
        )
    for name in names:
        layer = network.get_submodule(name)
        if isinstance(layer, nn.Embedding):
            if layer.num_embeddings != num:  # a row that no class uses gets noise and nothing else
                raise ConfigError(f"{name} has {layer.num_embeddings} rows, and the data {num} classes.")
            layer.weight.requires_grad_(True)
        elif isinstance(layer, nn.Linear):
            network.set_submodule(name, LabelVectors(layer, num))


def _adapt_layers(network: nn.Module, kind: str, rank: int, pattern: str | None) -> None:
    """Put changes of a rank beside the layers of a pattern, or those that are usual."""
    inside = tuple(
        f"{name}." for name, each in network.named_modules() if isinstance(each, Lora | Tangent | LabelVectors)
    )
    own = {name: layer for name, layer in network.named_modules() if not name.startswith(inside)}
    can = {name: layer for name, layer in own.items() if _takes(layer, rank)}
    if pattern is None:
        attention = [name for name in can if _ATTENTION.fullmatch(name)]
        chosen = attention or [*can]
    else:
        named = fnmatch.filter(own, pattern)
        weighty = [name for name in named if [*own[name].parameters(recurse=False)]]  # not what only holds others
        chosen = [name for name in weighty if name in can]
        if wrong := [name for name in weighty if name not in can]:
            chosen, pattern = [], f"{pattern}, of which '{wrong[0]}' cannot be adapted,"
    if not chosen:
        what = f"with the pattern {pattern} " if pattern else ""
        raise ConfigError(
            f'model.trained: "{kind}:{rank}" {what}adapts nothing. A rank below {rank + 1} fits beside linear layers '
            f"and convolutions in one group that are wider: {_listed(can)}."
        )
    made = Tangent if kind == TANGENT else Lora
    for name in chosen:
        network.set_submodule(name, made(cast(nn.Linear | nn.Conv2d, can[name]), rank))


def _takes(layer: nn.Module, rank: int) -> bool:
    """Tell whether a product of a rank is smaller than the weight of a layer, and can stand beside it."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return False
    if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer.padding_mode != "zeros"):
        return False
    out, into = layer.weight.flatten(1).shape
    return rank < min(out, into) and not isinstance(getattr(layer, "padding", 0), str)


def trained_weights(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a network that are not frozen, by name."""
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


def adapter_weights(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return what an adapted network has beside the public one: what is trained, and the frames of tangents."""
    frames = {
        f"{name}.{frame}": module.get_parameter(frame)
        for name, module in network.named_modules()
        if isinstance(module, Tangent)
        for frame in ("left", "right")
    }
    return trained_weights(network) | frames


@torch.no_grad()
def merged(network: nn.Module) -> nn.Module:
    """Return a copy of an adapted network whose layers hold what was learned beside them."""
    made = copy.deepcopy(network)
    for name, module in [*made.named_modules()]:
        if isinstance(module, Lora | LabelVectors):
            made.set_submodule(name, module.merged())
    return made


def label_rows(known: Sequence[str], classes: Sequence[str], looks: Mapping[str, str]) -> list[int | None]:
    """Return which class of a public network each class is, by its name or its look; None where it is none of them."""
    found = []
    for each in classes:
        names = (each, looks.get(each, each).replace("not ", "no ", 1))
        found.append(next((known.index(name) for name in names if name in known), None))
    return found


def rows_of(table: Tensor, rows: Sequence[int | None]) -> Tensor:
    """Return rows of a table (K, D), and the mean of all where a row is None; zeros of an empty table."""
    mean = table.mean(0) if len(table) else table.new_zeros(table.shape[1])
    return torch.stack([mean if row is None else table[row] for row in rows]) if rows else table[:0]


def _listed(names: Iterable[str]) -> str:
    listed = [*names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more if listed else "none"
