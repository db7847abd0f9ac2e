r"""arden: a network split between phones and a cloud.

Wang, Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy: improving performance of private deep learning in mobile cloud".
The phone's part, trained on public images and then frozen, turns an image into few bounded features; some pixels are
nullified before, and noise is added to the features. The cloud's part learns from noisy features.

Who is protected from whom: nobody sees an image but its own phone. (1) *Training*: every private image is perturbed
once, its label goes through randomized response, and everything after that is post-processing: `FeatureNoise` and
`RandomizedResponse` together are the price, unit image, replace-one. (2) *Use*: an image that the classifier is asked
about is perturbed by its phone (`SplitCnn.perturb`), at the image's part of epsilon each time; that is the paper's
setting, and no read of the run's data. `logits` and `predict` take an image without noise, as its owner may.

Labeled public images (`data.public_share`) train the phone's part, and the cloud's with fresh noise at every step. A
null record is perturbed and released like any other, as a black image of class 0: under replace-one, being null is
part of a record's content.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from idpgan.classify.arden.config import ArdenRun
from idpgan.classify.arden.noisy_training import falling, fit_phone, noisy_loss, response_loss
from idpgan.classify.training import GivesClassifier
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, place
from idpgan.models.private_classifier import SplitCnn, nullify
from idpgan.privacy import Ledger, Noise
from idpgan.training.method import Stats

_RNG_STREAM = 1  # of training.seed; 0 is the initial weights
_CHUNK = 1000  # images at once


class Arden(GivesClassifier):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: The private part is read once, by `prepare`; the public one, if labeled, without null records.
        ledger: Charged by `prepare` together with what it releases.
        device: Where networks and data live; what is released is drawn on the CPU.
        noise: Secret source; None = AES-256-CTR.

    Raises:
        ConfigError: If config and data do not fit together.
    """

    Config = ArdenRun

    NOISY_STEPS = True

    def __init__(
        self, config: ArdenRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._images = place(split.private, device)
        labeled = split.public.labels is not None
        self._public = place(split.public.existing(), device) if labeled else split.public.select(torch.arange(0))
        self.newest: SplitCnn = config.classifier(split.image_shape, split.classes).to(device).eval()
        self.optimizer = torch.optim.Adam(self.newest.cloud.parameters(), self.config.learning_rate)
        self.channel, self.response = config.channel(len(split.classes)), config.response(len(split.classes))
        self._rng = torch.Generator().manual_seed((config.training.seed + _RNG_STREAM * 0x9E3779B97F4A7C15) % 2**63)
        self._steps = torch.empty(0, self.channel.features, dtype=torch.int64)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._clean = torch.empty(0, self.channel.features)  # features of the public images

    @property
    def product(self) -> SplitCnn:
        """Both parts."""
        return self.newest

    def prepare(self) -> None:
        """Train the phone's part; then perturb all images and labels, once, and let go of the raw ones."""
        if len(self._public):
            fit_phone(self.newest, self._public, self.config.phone_steps, self._rng)
        released = self.ledger.release(self._run.planned_events(self._data), self._release, noise=self.noise)
        self._take(released["steps"], released["labels"])

    def _release(self) -> dict[str, Tensor]:
        """Read every image and label, and return what leaves the phones."""
        rate = self.config.nullification
        chunks = [
            self.newest.released(chunk.to(self.device), self.channel, rate, self.noise)
            for chunk in self._images.images.split(_CHUNK)
        ]
        labels = self.response(cast(Tensor, self._images.labels).cpu().clone(), self.noise)
        return {"steps": torch.cat(chunks), "labels": labels}

    def _take(self, steps: Tensor, labels: Tensor) -> None:
        """Go on from what was released: the phone's part is fixed, and raw images are not needed any more."""
        self._steps, self._labels = steps.to(self.device), labels.to(self.device)
        self.newest.phone.requires_grad_(False)
        public = self._public.images.split(_CHUNK)
        self._clean = torch.cat([self._clean.to(self.device), *(self._phone(images) for images in public)])
        nobody = self._images.select(torch.empty(0, dtype=torch.int64))
        self._images = Images(nobody.images.clone(), nobody.labels, nobody.classes)

    @torch.no_grad()
    def _phone(self, images: Tensor, nullification: float = 0.0) -> Tensor:
        """Return features of public images without noise."""
        pixels = to_float(images.to(self.device))
        coins = torch.rand((len(pixels), 1, *pixels.shape[2:]), generator=self._rng) if nullification else pixels
        return self.newest.features(nullify(pixels, coins, nullification))

    def step(self, step: int) -> Stats:
        """Take an Adam step of the cloud's part, on released features and on public ones with fresh noise."""
        training = self._run.training
        falling(self.optimizer, self.config.learning_rate, step, training.steps)
        chosen = torch.randint(len(self._steps), (training.batch_size,), generator=self._rng).to(self.device)
        logits = self.newest.cloud(self.channel.values(self._steps[chosen]))
        private = response_loss(logits, self._labels[chosen], self.response.probabilities)
        stats, loss = {"private_loss": private.detach()}, private
        if len(self._public):
            public = self._public_loss(training.batch_size)
            stats["public_loss"], loss = public.detach(), public + self.config.private_weight * private
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return stats

    def _public_loss(self, size: int) -> Tensor:
        """Return the loss of noisy training on a batch of public images."""
        chosen = torch.randint(len(self._public), (size,), generator=self._rng)
        batch, clean = self._public.select(chosen).to(self.device), self._clean[chosen.to(self.device)]
        rate, weight = self.config.nullification, self.config.clean_weight
        return noisy_loss(
            self.newest.cloud, clean, self._phone(batch.images, rate) if rate and weight < 1 else clean,
            cast(Tensor, batch.labels), self.channel, self._rng, clean_weight=weight, radius=self.config.radius,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the networks, the optimizer, the order of batches, and under "prepared" what was released."""
        return {
            "newest": self.newest.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._rng.get_state(),
            "noise": self.noise.state(),
            "prepared": {"steps": self._steps, "labels": self._labels},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned; raw images are let go of as in `prepare`."""
        self.newest.load_state_dict(state["newest"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.noise.load_state(state["noise"])
        self._take(state["prepared"]["steps"], state["prepared"]["labels"])
        self._rng.set_state(state["rng"])
