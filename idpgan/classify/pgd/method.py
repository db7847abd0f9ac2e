r"""pgd: adversarial training (Madry, Makelov, Schmidt, Tsipras, Vladu 2018, eq. 2.1).

``min_w E max_(|d|_inf <= radius) loss(w, x + d, y)``: every batch is attacked by projected gradient ascent on the
newest weights, and the network takes an Adam step on what comes of it. Nothing hides the training images, so proven is
infinite: the method is there to be attacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.attacks.adversarial import pgd
from idpgan.classify.pgd.config import EVENT, REPORT, Config
from idpgan.classify.training import GivesClassifier
from idpgan.data.load import Split, place
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy import Event, Ledger, Noise, PrivacyReport
from idpgan.training import method
from idpgan.training.method import Stats

_RNG_STREAM = 1  # of training.seed; 0 is the initial weights


class PgdAdversarial(GivesClassifier):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: Only its private part is read, without its null records.
        ledger: Charged by the loop, for reads without a proof.
        device: Where network and data live.

    Raises:
        ConfigError: If config and data do not fit together.
        DataError: If there are null records only: nothing is promised that this could break.
    """

    def __init__(self, config: Config, split: Split, *, ledger: Ledger, device: torch.device) -> None:
        config.check(split.shape)
        self.config, self._training, self.device = config.method, config.training, device
        self._images = place(split.private.existing(least=1), device)
        self.newest = config.classifier(split.image_shape, split.classes).to(device).eval()
        self.optimizer = torch.optim.Adam(self.newest.parameters(), self.config.learning_rate)
        self._rng = torch.Generator().manual_seed((config.training.seed + _RNG_STREAM * 0x9E3779B97F4A7C15) % 2**63)

    @property
    def product(self) -> PrivateClassifier:
        """The newest weights: the network has no layer that differs between training and use."""
        return self.newest

    @property
    def noises(self) -> tuple[Noise, ...]:
        """No step draws secret noise."""
        return ()

    def prepare(self) -> None:
        """Nothing is read before the steps."""

    def step_event(self) -> Event:
        """Every step reads raw images."""
        return EVENT

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """Every step pays for itself."""
        return ()

    def step(self, step: int) -> Stats:
        """Attack a batch, and take an Adam step on the attacked images."""
        chosen = torch.randint(len(self._images), (self._training.batch_size,), generator=self._rng)
        batch = self._images.select(chosen).to(self.device)
        labels, share = cast(Tensor, batch.labels), step / self._training.steps
        radius = self.config.radius * min(1.0, share / self.config.warmup_share if self.config.warmup_share else 1.0)
        attacked = pgd(
            self.newest, batch.images, labels, radius=radius, steps=self.config.attack_steps,
            step_size=self.config.step_size, seed=int(torch.randint(2**62, (1,), generator=self._rng)),
        )  # fmt: skip
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * (1 + math.cos(math.pi * share)) / 2
        logits = self.newest(attacked)
        loss = cross_entropy(logits, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "accuracy": (logits.argmax(1) == labels).float().mean()}

    def privacy(self) -> PrivacyReport:
        """Nothing is claimed or proven."""
        return REPORT

    def state(self) -> dict[str, Any]:
        """Return weights, optimizer and the order of batches."""
        return {
            "newest": self.newest.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._rng.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.newest.load_state_dict(state["newest"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._rng.set_state(state["rng"])


Method: Callable[..., method.Method] = PgdAdversarial
