"""EDM without any privacy: the reference that `diffusion` is compared with.

The same generator and the same loss (Karras et al. 2022) as `synthesis.diffusion.method`, trained on raw images. It
starts at the spectrum of photographs in the place of released sums. Only the charged steps read images. Beside
EDM itself the denoiser has a closed form in the place of a skip connection, and images are drawn by Heun's method in
coordinates in which that form is exact. With ``method.start = "moments"`` that form has the moments of the images, as a
base should whose moments private ones will replace: its network then learns what such moments lack.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from pydantic import Field, model_validator

from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.models import diffusion, gaussian
from idpgan.models.config import ModelConfig
from idpgan.privacy import Event
from idpgan.synthesis import moments, networks
from idpgan.synthesis.diffusion.config import BETAS, MODEL, refuse_other_generators
from idpgan.synthesis.product import GivesGenerator
from idpgan.training.config import MOST_STEPS, MethodConfig, RunConfig, TrainingConfig
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan

_RNG_STREAM = 12  # of training.seed; 0 and 1 are the initial weights


class EdmConfig(MethodConfig):
    """[method] of edm.

    Attributes:
        learning_rate: Of Adam.
        ema_decay: Weight of the past in the averaged network, which is released.
        start: What the closed form is of: the "spectrum" of photographs, or the "moments" of the images, read in the
            first step.
    """

    name: Literal["edm"] = "edm"
    learning_rate: float = Field(2e-3, gt=0)
    ema_decay: float = Field(0.995, ge=0, lt=1)
    start: Literal["spectrum", "moments"] = "spectrum"


class EdmTraining(TrainingConfig):
    """[training] of edm.

    Attributes:
        steps: Steps of the network, on raw images.
        batch_size: Images in a step, exactly so many.
    """

    steps: int = Field(4000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(128, ge=1, le=1_000_000)
    tick_steps: int = Field(50, ge=1)


class EdmRun(RunConfig):
    """A whole config file of edm."""

    model: ModelConfig = MODEL
    method: EdmConfig = EdmConfig()
    training: EdmTraining = EdmTraining()

    @model_validator(mode="after")
    def _check_generator(self) -> EdmRun:
        refuse_other_generators(self)
        if self.model.drawn.shape:
            raise ConfigError(
                f'model.drawing = "{self.model.drawing}" brings images into place on a released template, and method '
                "edm releases none. Leave it out, or take method diffusion."
            )
        return self


class Edm(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: Only its private part is read, without its null records.
        ledger: Charged by the loop, for reads without a proof.

    Attributes:
        generator: With the averaged network, in eval mode.
        newest: With the network that is trained.
    """

    SAVED = ("networks",)

    plan: RunPlan

    def _set_up(self, split: Split) -> None:
        config, own = self.plan.config, self.config
        self._images = place(split.private.existing(least=1), self.device)
        self.networks = networks.Generators(
            config,
            split.shape,
            device=self.device,
            adam=networks.AdamSettings(own.learning_rate, *BETAS),
            ema_decay=own.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest = cast(diffusion.DiffusionGenerator, self.networks.newest)
        spectrum = gaussian.low_spectrum(split.image_shape, config.model.latent_dim)
        spread = ((spectrum.variance * self.newest.latent_dim).sqrt() * moments.CONTRAST).to(self.device)
        self.newest.set_moments(torch.zeros_like(self.newest.mean), spread.diag().expand(len(self.newest.mean), -1, -1))
        self.networks.start_from(self.newest)
        self.generator = self.networks.average

    def step_event(self) -> Event:
        """Every step reads raw images."""
        return self.plan.raw_read

    def step(self, step: int) -> Stats:
        """Lower the EDM loss of a batch, which is drawn with replacement, by one step of Adam."""
        if step == 1 and self.config.start == "moments":
            self._start_at_moments()
        rng, size = self.networks.rng, self._run.training.batch_size
        batch = self._images.select(torch.randint(len(self._images), (size,), generator=rng, device=self.device))
        batch = batch.to(self.device)
        images = to_float(batch.images).flatten(1)
        levels = diffusion.training_levels(torch.randn(size, generator=rng, device=self.device))
        normal = torch.randn(images.shape, generator=rng, device=self.device)
        labels = batch.labels if self.newest.num_classes else None
        inputs, target = self.newest.problem(images, labels, levels, normal)
        known = torch.zeros(size, dtype=torch.int64, device=self.device) if labels is None else labels
        loss = (self.newest.network(inputs, levels, known) - target).square().mean()
        self.networks.step_generator(loss)
        return {"loss": loss.detach()}

    def _start_at_moments(self) -> None:
        """Take the normal distributions that `gaussian` would release without noise."""
        map_of = moments.MomentMap(self.newest.image_shape, self._run.model.latent_dim)
        sums = torch.zeros(len(self.newest.mean), map_of.dimensions, dtype=torch.float64)
        conditional = bool(self.newest.num_classes)
        for vectors, cells, _ in moments.private_moments(self._images, map_of, conditional=conditional, cap=None):
            sums.index_add_(0, cells.cpu(), vectors.cpu())
        normals = moments.estimate_normals(sums, map_of, 0.0)
        self.newest.set_moments(normals.mean.to(self.device), normals.factor.to(self.device))
        self.networks.start_from(self.newest)


Settings, Plan, Method = EdmRun, RunPlan, Edm
