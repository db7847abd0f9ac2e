"""A generator that follows a growing collection: retrained from the latest running sums, all under one guarantee.

The sums of the aggregate's features over all images so far are released after every part
(`idpgan.continual.running_sums`, which has the proof). Each generator is computed from them and is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from idpgan.continual.running_sums import RunningSums, SumsStream
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.features import DATALESS
from idpgan.models.generator import Generator
from idpgan.privacy import Ledger, Noise, Unit
from idpgan.synthesis.aggregate.config import AggregatePlan, AggregateRun
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.aggregate.vectors import private_vectors


def running_sums(config: AggregateRun, split: Split, parts: int) -> RunningSums:
    """Return the mechanism that releases the sums of a config's features after each of at most 1,024 ``parts``.

    The privacy section of the config holds for all parts together; the split holds the public facts about the data.

    Raises:
        ConfigError: If the config needs what a stream does not have: a feature map that is fixed before the first part.
    """
    if config.method.features not in DATALESS:
        raise ConfigError(
            'a stream needs features that are there before the data: set method.features = "random" or "scattering".'
        )
    if config.method.teacher_share:
        raise ConfigError("a stream releases sums and trains no teacher: set method.teacher_share = 0.")
    if config.privacy.unit is not Unit.IMAGE:
        raise ConfigError("a stream of images is released for unit image; set privacy.unit to image.")
    return RunningSums(AggregatePlan(config, split.shape).sums, parts)


class Follower:
    """Takes images part by part, and trains a generator of all images so far on request.

    Formal guarantee: (privacy.epsilon, privacy.delta), unit image, the config's relation, for all generators of all
    parts together; every image is in one part.

    Args:
        config: Settings of idp-gan-aggregate.
        split: Image size, classes, declared number of private images, public images. Its private ones are not read.
        parts: The most parts.
        ledger: Charged once, before the first part is read; None = one in memory, with the config's target.
        noise: None = the operating system's.

    Raises:
        ConfigError: If config and data do not fit, or the features would have to be learned.
    """

    def __init__(
        self,
        config: AggregateRun,
        split: Split,
        parts: int,
        *,
        ledger: Ledger | None = None,
        device: torch.device | str = "cpu",
        noise: Noise | None = None,
    ) -> None:
        self.config, self._split, self._device = config, split, torch.device(device)
        self.noise = Noise.system() if noise is None else noise
        self._plan, mechanism = AggregatePlan(config, split.shape), running_sums(config, split, parts)
        self._plan.check()
        self.ledger = Ledger.of(self._plan.price) if ledger is None else ledger
        self.stream = SumsStream(mechanism, ledger=self.ledger, noise=self.noise)

    def add(self, images: Images) -> None:
        """Read the next part, once; charged before."""
        method = self._method(self._plan)
        motion, conditional = self.config.method.augment, method.rows > 1
        self.stream.push(
            private_vectors(images, method.features, self.noise, conditional=conditional, motion=motion, cap=None)
        )

    def train(
        self, part: int | None = None, seed: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Generator:
        """Train a generator by the config's steps, and return its average, in eval mode.

        Args:
            part: Train on the sums of so many parts; None = all that arrived.
            seed: Of weights and latent vectors; None = the config's.
            progress: Called with (steps done, steps in all).
        """
        plan, training = self._plan, self.config.training
        part = self.stream.count if part is None else part
        if seed is not None:
            other = self.config.model_copy(update={"training": training.model_copy(update={"seed": seed})})
            plan = AggregatePlan(other, self._split.shape)
        method = self._method(plan)
        features = self._method(self._plan).features  # those whose sums were released, whatever the seed
        method.start_from(self.stream.answer(part), self.stream.mechanism.noise_std(part), features)
        for step in range(1, training.steps + 1):
            method.step(step)
            if progress is not None:
                progress(step, training.steps)
        return method.generator

    def _method(self, plan: AggregatePlan) -> IdpAggregate:
        """Return the method, which is never asked to read or to charge."""
        return IdpAggregate(plan, self._split, ledger=Ledger.of(plan.price), device=self._device, noise=self.noise)
