"""Settings and price of idp-gan-published, known before an image is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from idpgan.config import key
from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.models.losses import ORDERS, OutputLoss, taylor_sensitivity
from idpgan.models.perturbed import Draw, PixelNoise, first_layer, paper_sensitivity
from idpgan.privacy import Event, Guarantee, RandomizedResponse, Relation, Unit
from idpgan.privacy.guarantee import FLOATING_POINT
from idpgan.privacy.noise import Source
from idpgan.training.config import settings
from idpgan.training.plan import RunPlan

ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_LEAKED_LABELS = "raw labels reach the critic past the noise (label_path = autograd)"
_INPUT_LABELS = "raw labels are an input of the critic"


def _check_labels(config: Any) -> None:
    raw = config.method.label_input and config.privacy.label_epsilon is None
    if raw and not config.model.conditional:
        raise ConfigError("method.label_input = true needs model.conditional = true: there are no labels.")
    if raw and not config.privacy.accept_unsound:
        raise ConfigError(
            "method.label_input = true makes raw labels an input of the critic, which nothing protects. Set "
            "privacy.label_epsilon for one randomized response, or privacy.accept_unsound = true."
        )


RELEVANCE_FLOOR = 0.1  # least relevance of a pixel, relative to the mean

Settings = settings(  # what the noise follows from has no defaults
    "idp-gan-published",
    method=[
        {
            "first_layer": key(
                Literal["conv", "linear"],
                "conv",
                '"conv" (5 x 5, stride 2) or "linear", of `model.width` maps or neurons.',
            ),
            "features": key(int, 32, "d = |h_k|, the last hidden features.", ge=1, le=1024),
            "loss": key(
                OutputLoss,
                "cross-entropy",
                'Of the outputs: "cross-entropy", expanded as in the paper, or "squared-error", which needs no '
                "expansion, at two to four times the sensitivity.",
            ),
            "label_input": key(
                bool, False, "Whether the critic gets the label as an input too; needs ``privacy.label_epsilon``."
            ),
            "allocation": key(
                Literal["uniform", "relevance"], "uniform", '"uniform", or "relevance" measured on public images.'
            ),
            "critic_steps_per_generator_step": key(int, 5, "5 in improved WGAN.", ge=1),
            "gradient_penalty": key(float, 10.0, "Weight of the penalty.", ge=0),
            "learning_rate": key(float, 5e-5, "Of Adam, for both networks; 5e-5 in the paper (table 1).", gt=0),
            "beta1": key(float, 0.0, "Decay of Adam's first moment.", ge=0, lt=1),
            "beta2": key(float, 0.9, "Decay of Adam's second moment.", ge=0, lt=1),
            "l2": key(float, 1e-5, "Weight of the L2 term ``l2 / 2 ||w||^2`` on both networks.", ge=0),
            "ema_decay": key(float, 0.999, "Weight of the past in the averaged generator.", ge=0, lt=1),
        }
    ],
    privacy=[
        {
            "epsilon1": key(float, ..., "Budget that the paper gives to the first layer.", gt=0),
            "epsilon2": key(float, ..., "Budget that the paper gives to the loss.", gt=0),
            "noise": key(Draw, ..., 'When pixel noise is drawn: "once", "per_step" or "per_batch".'),
            "sensitivity": key(float | None, None, "Overrides the paper's D0; None is its formula.", gt=0),
            "label_path": key(
                Literal["coefficients", "autograd"],
                "coefficients",
                "How private labels reach the critic; see docs/reference/deviations.md, IDP-GAN 11.",
            ),
            "label_epsilon": key(
                float | None,
                None,
                "Labels go once through randomized response of this epsilon, before anything else uses them; None "
                "leaves them to the noise of the coefficients.",
                gt=0,
                le=30,
            ),
        }
    ],
    checks=[_check_labels],
    dropped={"relevance_floor": RELEVANCE_FLOOR},
)


class Plan(RunPlan):
    """The plan of a run of idp-gan-published, whose noise follows from the paper's formulas; there is no budget."""

    def __init__(self, config: Any, shape: DataShape, given: Sequence[Event] = ()) -> None:
        super().__init__(config, shape, given)
        self.exact = config.method.allocation == "uniform"  # else it depends on public images
        self.reads_public = not self.exact

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """All charges: pixels first, then labels.

        With allocation by relevance, which is known only after public images are read, the pixels are listed as one
        read at the largest pure epsilon that they may cost.
        """
        pixels = self.pixel_noise
        if self.exact or pixels.draw == "per_batch":
            return self.charged(pixels)
        repeats = 1 if pixels.draw == "once" else self.most_accesses
        cost = Event("exponential", *ADJACENCY, pure_epsilon=pixels.pure_epsilon, count=repeats)
        return (cost, *self.label_events(self.most_accesses))

    def charged(self, pixels: PixelNoise) -> tuple[Event, ...]:
        """Return all charges for the noise of pixels whose allocation is known."""
        return (*pixels.events(self.most_accesses), *self.label_events(self.most_accesses))

    def label_events(self, accesses: int) -> tuple[Event, ...]:
        """Return the charges for the label of one image (docs/reference/deviations.md, IDP-GAN 11, 12, 18)."""
        method, privacy = self.config.method, self.config.privacy
        if self.classes == 0:
            return ()
        if privacy.label_epsilon is not None:
            return (RandomizedResponse(self.classes, privacy.label_epsilon, *ADJACENCY).event,)
        if method.label_input or privacy.label_path == "autograd":
            return (Event.non_private(_INPUT_LABELS if method.label_input else _LEAKED_LABELS, *ADJACENCY),)
        # Another label changes d coefficients of the old class's output and d of the new one's, each by at most 1;
        # where the outputs are attributes, it may change all of them. The squared error's change by at most 2.
        changed = self.label_outputs if self.config.data.attributes else 2
        multiplier = self.coefficient_scale / ORDERS[method.loss][0]
        return (Event("laplace", *ADJACENCY, multiplier, changed * method.features * accesses),)

    @functools.cached_property
    def pixel_noise(self) -> PixelNoise:
        """The noise that the paper's formula gives, allotted uniformly."""
        config, image_shape = self.config, self.shape.image_shape
        with torch.device("meta"):
            layer = first_layer(config.method.first_layer, config.model, image_shape)
        sensitivity = config.privacy.sensitivity or float(paper_sensitivity(layer, image_shape))
        scale = sensitivity / (config.privacy.epsilon1 * config.training.batch_size)
        return PixelNoise(image_shape, scale, config.privacy.noise)

    @property
    def coefficient_scale(self) -> float:
        """The scale of the noise on one coefficient of one record, ``DF / (eps2 |L|)``."""
        config = self.config
        bound = taylor_sensitivity(1 + self.label_outputs, config.method.features, config.method.loss)
        return bound / (config.privacy.epsilon2 * config.training.batch_size)

    @property
    def label_outputs(self) -> int:
        """Outputs that learn the label: one per attribute of `data.label`, else per class; 0: unconditional."""
        attributes = self.config.data.attributes
        return len(attributes) if self.classes and attributes else self.classes

    @property
    def most_accesses(self) -> int:
        """ceil(T |L| / N), the most often that an image can be drawn; a batch larger than the data is refused."""
        training, num_private = self.config.training, self.shape.num_private
        if training.batch_size > num_private:
            raise ConfigError(
                f"training.batch_size = {training.batch_size} (|L|) exceeds the {num_private} private images: a batch "
                f"would hold an image twice. Set it to {num_private} at most."
            )
        return math.ceil(training.steps * training.batch_size / num_private)

    @property
    def claimed(self) -> Guarantee:
        """What the paper claims, eps1 + eps2."""
        privacy = self.config.privacy
        basis = "Yang, Zhou and Ning, section 2.2.3, Algorithm 1, line 12: eps1 + eps2, whatever the number of epochs"
        return Guarantee(privacy.epsilon1 + privacy.epsilon2, 0.0, *ADJACENCY, basis)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say what is unprotected, or how the noise was sized."""
        broken = [event.reason for event in events if event.reason]
        if broken:
            return "; ".join(dict.fromkeys(broken))
        pixels = self.pixel_noise
        times = "once" if pixels.draw == "once" else f"at each of at most {self.most_accesses} accesses"
        return (
            f"each of an image's {pixels.num_pixels} numbers, of range 2, gets Laplace noise of scale "
            f"{pixels.scale:.4g} {times}; the paper sizes that noise by its first layer and the batch size, which "
            f"bound no image's influence; {FLOATING_POINT}"
        )

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise and the batch size."""
        return f"noise source: {sources[0].name}", f"|L| = {self.config.training.batch_size}"

    def check(self) -> None:
        """Refuse batches larger than the data, and relevance without labeled public images."""
        super().check()
        _ = self.most_accesses
        if not self.exact and not (self.shape.sizes.public and self.shape.classes):
            raise ConfigError(
                "method.allocation = relevance needs public images with labels: set data.public_share or public_root."
            )


def label_targets(config: Any, labels: Tensor, num_classes: int) -> Tensor:
    """Return y of the label outputs, float (B, M - 1) of 0 and 1: the attributes' bits, or one 1 at the class."""
    if config.data.attributes:
        return (labels.unsqueeze(1) >> torch.arange(len(config.data.attributes), device=labels.device) & 1).float()
    return one_hot(labels, num_classes).float()
