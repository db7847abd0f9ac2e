"""The networks of a GAN with their optimizers and random numbers, built, saved and restored in one place.

Two generators: the *newest*, which is trained, and the *average* of its weights over the steps, which is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from idpgan.data.load import DataShape
from idpgan.models import checkpoint, initialize, optimizers
from idpgan.models.generator import Generator
from idpgan.ranks import ALONE, Ranks
from idpgan.training.config import RunConfig
from idpgan.training.method import load_state_of, state_of


@dataclass(frozen=True)
class AdamSettings:
    """Settings of the optimizer of one network (Kingma and Ba, "Adam", 2015).

    Attributes:
        rate: Learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        l2: Weight of the term ``l2 / 2 * ||w||^2`` in the loss.
        decay: Decoupled weight decay, times the learning rate (Loshchilov and Hutter, "AdamW", 2019); not with `l2`.
    """

    rate: float
    beta1: float
    beta2: float
    l2: float = 0.0
    decay: float = 0.0

    @classmethod
    def of(cls, section: Any) -> Self:
        """Return those of the keys ``learning_rate``, ``beta1``, ``beta2`` and ``l2`` of [method]."""
        return cls(section.learning_rate, section.beta1, section.beta2, l2=section.l2)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer of a network; fused: one call per step, not one per tensor."""
        kind, weight_decay = (optimizers.AdamW, self.decay) if self.decay else (optimizers.Adam, self.l2)
        betas = (self.beta1, self.beta2)
        trained = [weight for weight in network.parameters() if weight.requires_grad]
        return kind(trained, lr=self.rate, betas=betas, weight_decay=weight_decay, fused=True)


class Generators:
    """Newest generator and average, the optimizer, and the random numbers of training; never privacy noise.

    Args:
        config: [model] makes the generator, ``training.seed`` its weights and the random numbers.
        shape: Of the data.
        ema_decay: Weight of the past in the average; 0 releases the newest weights.
        stream: Of ``training.seed``, for the random numbers; 0 and 1 are the initial weights.

    Attributes:
        newest: The generator that is trained.
        average: The generator that is released, in eval mode.
        rng: Latent vectors, labels and batches are drawn from it.
        ranks: The processes that share each step; the weights and `rng` are the same on all of them.

    Raises:
        ConfigError: If the images have a shape that no network is built for, or labels are asked for and missing.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("newest", "average", "generator_optimizer", "rng")

    def __init__(
        self,
        config: RunConfig,
        shape: DataShape,
        *,
        device: torch.device,
        adam: AdamSettings,
        ema_decay: float,
        stream: int,
    ) -> None:
        seed, classes = config.training.seed, shape.classes
        self.newest = checkpoint.build_generator(config.model, shape.image_shape, len(classes), seed=seed).to(device)
        self.newest.classes = classes if self.newest.num_classes else ()
        self._average = initialize.Ema(self.newest, ema_decay)
        self.average = cast(Generator, self._average.module)
        self.generator_optimizer = adam.optimizer(self.newest)
        self.rng = torch.Generator("cpu" if device.type == "meta" else device)
        self.rng.manual_seed(initialize.torch_seed(seed, stream))
        self.ranks: Ranks = ALONE

    def state(self) -> dict[str, Any]:
        """Return what `load_state` needs."""
        return state_of(self, self.SAVED)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        load_state_of(self, self.SAVED, state)

    def start_from(self, generator: Generator) -> None:
        """Begin at the weights of a generator of the same layout, newest and average alike; before the first step."""
        weights = generator.state_dict()
        self.newest.load_state_dict(weights)
        self.average.load_state_dict(weights)

    def own_rng(self) -> torch.Generator:
        """Return random numbers that no other rank draws; alone, `rng` itself.

        They are seeded by the next number of `rng` and the rank, so that `rng` stays the same on all ranks.
        """
        if self.ranks.alone:
            return self.rng
        seed = torch.randint(1 << 62, (), generator=self.rng, device=self.rng.device).item()
        return torch.Generator(self.rng.device).manual_seed(initialize.torch_seed(int(seed), self.ranks.rank))

    def latents(self, num: int, rng: torch.Generator | None = None) -> Tensor:
        """Draw latent vectors, (num, latent_dim) standard normal numbers, from `rng`, the same on all ranks."""
        return torch.randn(num, self.newest.latent_dim, generator=rng or self.rng, device=self.rng.device)

    def fakes(self, num: int) -> tuple[Tensor, Tensor | None]:
        """Generate images (num, C, H, W) of the newest generator, labels uniform where it has any; gradients flow.

        Several ranks generate ``num`` images together, each those of its share.
        """
        num, rng = self.ranks.rows(num), self.own_rng()
        classes, labels = self.newest.num_classes, None
        if classes:  # uniform: the generator must not know the private class frequencies
            labels = torch.randint(classes, (num,), generator=rng, device=rng.device)
        return self.newest(self.latents(num, rng), labels), labels

    def step_generator(self, loss: Tensor) -> None:
        """Lower a loss, 0-d, by one step of the newest generator; the average follows. No other network is touched.

        On several ranks the loss is a sum over them (`training.distributed.sum_over_ranks`). Batch normalization sees
        the images of one rank; its running statistics are averaged over all.
        """
        self.generator_optimizer.zero_grad()
        trained = [weight for weight in self.newest.parameters() if weight.requires_grad]
        loss.backward(inputs=trained)  # leaves no gradient on critic or features
        self._add_up(trained)
        self.generator_optimizer.step()
        self._average.update(self.newest)

    def _add_up(self, weights: Sequence[Tensor]) -> None:
        """Add up the gradients of all ranks, and average what batch normalization has seen since the last step."""
        if self.ranks.alone:
            return
        self.ranks.sum([weight.grad for weight in weights if weight.grad is not None])
        layers = [layer for layer in self.newest.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        moved = [(layer.running_mean, layer.running_var) for layer in layers if layer.training]
        statistics = [tensor for pair in moved for tensor in pair if tensor is not None]
        self.ranks.sum(statistics)
        for tensor in statistics:
            tensor /= self.ranks.size


class Networks(Generators):
    """A GAN: the `Generators`, and a critic on the device, with its optimizer.

    Args:
        critic_adam: Settings of its optimizer; None = those of the generator's.
    """

    SAVED = (*Generators.SAVED, "critic", "critic_optimizer")

    def __init__(
        self,
        config: RunConfig,
        shape: DataShape,
        critic: nn.Module,
        *,
        device: torch.device,
        adam: AdamSettings,
        critic_adam: AdamSettings | None = None,
        ema_decay: float,
        stream: int,
    ) -> None:
        super().__init__(config, shape, device=device, adam=adam, ema_decay=ema_decay, stream=stream)
        self.critic = critic
        self.critic_optimizer = (critic_adam or adam).optimizer(critic)

    def step_critic(self, loss: Tensor) -> None:
        """Lower a loss, 0-d, by one step of the critic, as `step_generator` does. No other network is touched."""
        self.critic_optimizer.zero_grad()
        weights = list(self.critic.parameters())
        loss.backward(inputs=weights)  # not the interpolates, which are leaves too
        self._add_up(weights)
        self.critic_optimizer.step()
