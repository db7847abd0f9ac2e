"""The engine of a method's DP-SGD steps: that of `idpgan.privacy.dpsgd`, or Opacus, which is imported on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from idpgan.models.validate import validate_private_critic
from idpgan.privacy.event import Event
from idpgan.privacy.opacus_history import opacus_epsilons
from idpgan.training.config import StepsConfig

if TYPE_CHECKING:
    from idpgan.privacy.opacus_steps import OpacusSteps


def opacus_steps(config: Any, network: nn.Module, optimizer: torch.optim.Optimizer) -> OpacusSteps | None:
    """Return Opacus' steps of a network where ``config``, the section [method], asks for them; else None."""
    if config.engine != "opacus":
        return None
    from idpgan.privacy.opacus_steps import OpacusSteps

    return OpacusSteps(network, optimizer, physical_batch=config.max_physical_batch, secure_mode=config.secure_mode)


def validate_network(network: nn.Module, config: StepsConfig) -> None:
    """Refuse layers that mix records, and what the engine cannot differentiate, in its words and ours.

    Raises:
        ConfigError: Naming every offending layer and its reason.
    """
    said: Sequence[str] = ()
    if config.engine == "opacus":
        from idpgan.privacy.opacus_steps import objections

        said = [f"Opacus says: {words}" for words in objections(network)]
    validate_private_critic(network, also=said)


def engine_words(config: Any, events: Sequence[Event], delta: float) -> str:
    """Return what a report says of another engine than ours, a clause: its name, and what its accountants say."""
    if getattr(config, "engine", "idpgan") != "opacus":
        return ""
    draws = ", each number half the sum of four (secure_mode)" if config.secure_mode else ""
    said = ", ".join(f"{name} {value}" for name, value in opacus_epsilons(tuple(events), delta).items())
    return (
        f"{draws}; gradients, clipping and sums by Opacus, whose accountants say of the same steps and delta: epsilon "
        f"{said}. They price the same pair of distributions (add-or-remove-one, where N is not public) from above: "
        "PRV adds its numerical error of at most 0.01, RDP converts Renyi divergences of fixed orders"
    )
