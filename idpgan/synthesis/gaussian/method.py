r"""Gaussian: noisy first and second moments of low frequencies, released once, and images drawn from them.

The only private read is `prepare`: for every class the sum of ``v(x)`` (`moments`: count, mean and second moments of
DCT coefficients in one vector of norm at most 1) over its images, plus rounded Gaussian noise on everything at once
(`privacy.sums.CellSums`). What follows is linear algebra on the released sums (`estimate`), and costs nothing: there is
no training, and the run ends with the release. The images are blurred, and as private as those of any sound method; a
generator that is trained for hours has to be better than they are.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.families import build_generator
from idpgan.models.gaussian import GaussianGenerator
from idpgan.privacy import Ledger, Noise, Unit
from idpgan.synthesis.aggregate.cells import refuse_people_in_two_parts
from idpgan.synthesis.gaussian.config import GaussianRun
from idpgan.synthesis.gaussian.estimate import estimate_normals
from idpgan.synthesis.gaussian.moments import MomentMap, private_moments
from idpgan.synthesis.gaussian.starter import suggest
from idpgan.synthesis.product import ReadsOnce
from idpgan.synthesis.teacher import TEACHER, fit_teacher, teacher_events, teacher_of, teaching_beside
from idpgan.training.method import Stats


class GaussianMoments(ReadsOnce):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: The private part is read in `prepare` and dropped there; the public part is read freely.
        ledger: Charged once, together with what that read releases.
        device: Where the generator lives; the sums are exact integers on the CPU.
        noise: None = the operating system's.

    Attributes:
        generator: In eval mode.
        sums: The mechanism of the release.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    Config = GaussianRun
    suggest = staticmethod(suggest)

    generator: GaussianGenerator

    def __init__(
        self, config: GaussianRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._private: Images | None = split.private
        self._public = split.public
        if config.privacy.unit is Unit.PERSON:
            refuse_people_in_two_parts(split)
        generator = build_generator(config.model, split.image_shape, len(split.classes)).to(device)
        self.generator = cast(GaussianGenerator, generator).eval().requires_grad_(False)
        self.generator.classes = split.classes if self.generator.num_classes else ()
        settings = config.method
        self.moments = MomentMap(
            split.image_shape,
            config.model.latent_dim,
            contrast=settings.contrast,
            clip=settings.clip,
            count_share=settings.count_share,
        )
        self.sums = config.moment_sums(split.shape)
        self.teaching, self.candidates = teaching_beside(settings.teacher_share, self.sums), config.candidates

    def prepare(self) -> None:
        """Release the noisy sums, drop the private images, and make the generator of them."""
        teacher = teacher_events(self._run.method.teacher_share, self.sums)
        released = self.ledger.release([self.sums.event, *teacher], self._release, noise=self.noise)
        self.noise.ratchet()
        self._take_released(released)

    def _release(self) -> dict[str, Tensor]:
        """Fix center and scale by public images, then read the private ones."""
        if len(self._public):
            self.moments.learn_public(self._public)
        private, self._private = self._private, None
        if private is None:
            raise RuntimeError("the private images were dropped after the release.")
        privacy = self._run.privacy
        cap = privacy.most_per_person if privacy.unit is Unit.PERSON else None
        vectors = private_moments(private, self.moments, conditional=bool(self.generator.num_classes), cap=cap)
        sums = self.sums(vectors, self.noise)
        released = {"sums": sums, "center": self.moments.center, "variance": self.moments.variance}
        if self.teaching is not None:
            released[TEACHER] = fit_teacher(self.teaching, private, cap, device=self.device, noise=self.noise).cpu()
        return released

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run; the private images are not needed any more."""
        self._private, self._released = None, released
        self.moments.set_public(released["center"], released["variance"])
        normals = estimate_normals(released["sums"], self.moments, self.sums.noise_std)
        self.generator.set_moments(normals.mean, normals.factor)
        if TEACHER in released:
            shape, classes = self.generator.image_shape, self.generator.classes
            self.teacher = teacher_of(released[TEACHER], shape, classes).to(self.device)

    def state(self) -> dict[str, Any]:
        """Return what was released: the generator follows from it."""
        return {**super().state(), "prepared": self._released}

    def load_state(self, state: dict[str, Any]) -> None:
        """Make the generator of what was released."""
        self._take_released(state["prepared"])
        super().load_state(state)

    def step(self, step: int) -> Stats:
        """There are no steps: `GaussianTraining.steps` is 0."""
        raise RuntimeError("gaussian has no training steps.")
