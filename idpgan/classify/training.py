"""What the private classifiers have in common as the loop sees them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from idpgan.classify.config import ClassifierRun
from idpgan.data.load import Split, place
from idpgan.models.private_classifier import PrivateClassifier, log_odds
from idpgan.privacy import Event, Ledger, Noise
from idpgan.ranks import Ranks
from idpgan.release.classifier import ClassifierArtifact
from idpgan.training.config import ReleaseConfig
from idpgan.training.method import Method, Stats


class GivesClassifier(Method):
    """The part of `idpgan.training.method.Method` that gives a classifier away and lets attackers ask it."""

    @property
    def product(self) -> PrivateClassifier:
        """See `Method`."""
        raise NotImplementedError

    def artifact(self, config: ReleaseConfig) -> ClassifierArtifact:
        """See `idpgan.release.artifact.GivesAway`."""
        return ClassifierArtifact(self.product)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """See `idpgan.training.method.HasCritic`: the log-odds of an image's class, or of the likeliest one."""
        logits = self.product.logits(images)
        chosen = logits.argmax(1) if labels is None else labels
        return log_odds(logits, chosen)


class TrainsClassifier(GivesClassifier):
    """The part of `idpgan.training.method.Method` that does not depend on how a step is taken.

    Args:
        config: The run's config.
        split: Only its private part is read, in steps.
        ledger: The loop charges it before each step.
        device: Where network and data live.
        noise: Source of coins and noise. None = AES-256-CTR on the CPU, the GPU's Philox on a GPU.

    Attributes:
        product: The average of the iterates, in eval mode: what is given away.
        newest: The iterate.
        plan: The steps.
        UNNOISED: See `idpgan.training.method.Method`.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    UNNOISED = ("loss", "gradient_norm", "clipped_share")
    NOISY_STEPS = True

    def __init__(
        self, config: ClassifierRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._images = place(split.private, device)
        self.newest = self._build().to(device)
        self.plan = config.plan(split.num_private)

    def new_noise(self, device: torch.device) -> Noise:
        """Return AES-256-CTR on the CPU, the GPU's Philox on a GPU."""
        return Noise.philox(device) if device.type == "cuda" else Noise.system()

    def _build(self) -> PrivateClassifier:
        return self._run.classifier(self._data.image_shape, self._data.classes)

    def share_steps(self, ranks: Ranks) -> None:
        """See `idpgan.training.method.SharesSteps`."""
        self.plan = dataclasses.replace(self.plan, ranks=ranks)

    def step_event(self) -> Event:
        """One release of a noisy sum of clipped gradients, of empty batches too."""
        return self.plan.event


def step_statistics(losses: Tensor, norms: Tensor, clip_norm: float) -> Stats:
    """Average over the records of a step that counted, for the curator; nothing where there are none.

    Args:
        losses: (B,).
        norms: (B,) before clipping; not finite where the record counted as zero.
        clip_norm: C.
    """
    counted = norms.isfinite() & losses.isfinite()
    if not bool(counted.any()):
        return {}
    return {
        "loss": losses[counted].double().mean(),
        "gradient_norm": norms[counted].mean(),
        "clipped_share": (norms[counted] > clip_norm).double().mean(),
    }
