"""EDM without any privacy: the reference that `diffusion` is compared with.

The same generator and the same loss (Karras et al. 2022) as `synthesis.diffusion`, trained on raw images. It
starts at the spectrum of photographs in the place of released sums. Only the charged steps read images. Beside
EDM itself the denoiser has a closed form in the place of a skip connection, and images are drawn by Heun's method in
coordinates in which that form is exact. With ``method.start = "moments"`` that form has the moments of the images, as a
base should whose moments private ones will replace: its network then learns what such moments lack.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch

from idpgan.config import key
from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.models import diffusion, gaussian
from idpgan.privacy import Event
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import moments, networks, product
from idpgan.synthesis.diffusion_plan import BETAS, MODEL, refuse_other_generators
from idpgan.training import method
from idpgan.training.config import MOST_STEPS, ReleaseConfig, settings
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan as Plan

_RNG_STREAM = 12  # of training.seed; 0 and 1 are the initial weights


def _check_generator(config: Any) -> None:
    refuse_other_generators(config)
    if config.model.drawn.shape:
        raise ConfigError(
            f'model.drawing = "{config.model.drawing}" brings images into place on a released template, and method '
            "edm releases none. Leave it out, or take method diffusion."
        )


Settings = settings(
    "edm",
    method=[
        {
            "learning_rate": key(float, 2e-3, "Of Adam.", gt=0),
            "ema_decay": key(
                float, 0.995, "Weight of the past in the averaged network, which is released.", ge=0, lt=1
            ),
            "start": key(
                Literal["spectrum", "moments"],
                "spectrum",
                'What the closed form is of: the "spectrum" of photographs, or the "moments" of the images, read in '
                "the first step.",
            ),
        }
    ],
    training=[
        {
            "steps": key(int, 4000, "Steps of the network, on raw images.", ge=1, le=MOST_STEPS),
            "batch_size": key(int, 128, "Images in a step, exactly so many.", ge=1, le=1_000_000),
            "tick_steps": key(int, 50, "Steps between two ticks: save, statistics, sample grid, metrics.", ge=1),
        }
    ],
    model=MODEL,
    checks=[_check_generator],
)


class Method(method.Method):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: Only its private part is read, without its null records.
        ledger: Charged by the loop, for reads without a proof.

    Attributes:
        generator: With the averaged network, in eval mode.
        newest: With the network that is trained.
    """

    SAVED = ("networks",)

    plan: Plan

    def _set_up(self, split: Split) -> None:
        config, section = self._run, self.config
        self._images = place(split.private.existing(least=1), self.device)
        self.networks = networks.Generators(
            config,
            split.shape,
            device=self.device,
            adam=networks.AdamSettings(section.learning_rate, *BETAS),
            ema_decay=section.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest = cast(diffusion.DiffusionGenerator, self.networks.newest)
        spectrum = gaussian.low_spectrum(split.image_shape, config.model.latent_dim)
        spread = ((spectrum.variance * self.newest.latent_dim).sqrt() * moments.CONTRAST).to(self.device)
        self.newest.set_moments(torch.zeros_like(self.newest.mean), spread.diag().expand(len(self.newest.mean), -1, -1))
        self.networks.start_from(self.newest)
        self.generator = self.networks.average

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the averaged generator."""
        return product.artifact(self.generator, self._run, config)

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
