r"""arden: a network split between phones and a cloud.

Wang, Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy: improving performance of private deep learning in mobile cloud".
The phone's part, trained on public images and then frozen, turns an image into a few bounded features. Some pixels are
nullified first, and noise is added to the features. The cloud's part learns from the noisy features.

Threat model: only an image's own phone sees the image. (1) *Training*: every private image is perturbed once, its label
goes through randomized response, and everything after that is post-processing. The price is `FeatureNoise` and
`RandomizedResponse` together, unit image, replace-one. (2) *Use*: an image to be classified is perturbed by its phone
(`SplitCnn.perturb`) and costs the image's part of epsilon each time; this is the paper's setting and reads none of the
run's data. `logits` and `predict` take an image without noise, for use by its owner.

Labeled public images (`data.public_share`) train the phone's part, and the cloud's part with fresh noise at every step.
A null record is perturbed and released like any other, as a black image of class 0: under replace-one, being null is
part of a record's content.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idpgan.audit import neighbors, statistics
from idpgan.audit.cases import AuditCase, released_case
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.classify import classifier
from idpgan.config import key
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.models.optimizers import Adam
from idpgan.models.private_classifier import MOST_FEATURES, PrivateClassifier, SplitCnn, nullify
from idpgan.privacy import DiscreteLaplace, Event, Guarantee, Noise, RandomizedResponse, Relation, Unit
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.privacy.noise import Source
from idpgan.progress import Progress, silent
from idpgan.training import method
from idpgan.training.config import MOST_STEPS, section_of, settings
from idpgan.training.fit import set_rate
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan

_ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_CLAIM = "Wang, Zhang, Bao, Zhu, Cao, Yu 2018: one feature after nullification, and the label"
_CHUNK = 1000  # images at once
_FEATURES = 16  # of an audit's example image, used without a run
_BATCH, _RATE = 128, 2e-3  # of the phone's training


def _leave_the_image_something(config: Any) -> None:
    privacy = config.privacy
    if privacy.label_epsilon >= privacy.epsilon:
        raise ConfigError(
            f"privacy.label_epsilon = {privacy.label_epsilon:g} leaves nothing of "
            f"privacy.epsilon = {privacy.epsilon:g} for the image. Lower the one or raise the other."
        )


_PHONE_STEPS = 1000  # of training the phone's part on labeled public images; without these its weights stay random

Settings = settings(
    "arden",
    method=[
        {
            "width": key(int, 8, "Feature maps of the phone's first convolution.", ge=1, le=1024),
            "features": key(
                int | None,
                None,
                "d, numbers that leave the phone; each costs 2 B / b, so few are better. None: the least number whose"
                " signs can tell the classes apart.",
                ge=1,
                le=MOST_FEATURES,
            ),
            "nullification": key(float, 0.05, "mu, chance of each pixel to be set to black before.", ge=0, lt=1),
            "clean_weight": key(
                float,
                0.2,
                "lambda of noisy training on public images, the weight of the loss on features without noise; 1 is "
                "training without noise.",
                ge=0,
                le=1,
            ),
            "radius": key(
                float,
                1.0,
                "eta of noisy training, how far noisy features move on towards a larger loss (L2, in units of b); 0 "
                "is random noise alone.",
                ge=0,
            ),
            "learning_rate": key(float, 2e-3, "Peak of Adam's; it falls to 0 linearly.", gt=0),
        }
    ],
    privacy=[
        {
            "epsilon": key(float, ..., "What is proven for one training image together with its label.", gt=0, le=1e9),
            "label_epsilon": key(
                float,
                ...,
                "Part of it that the label's randomized response takes; the rest is the image's, and what an image "
                "costs that is asked about with the same noise.",
                gt=0,
                le=30,
            ),
        }
    ],
    training=[
        {
            "steps": key(
                int,
                1500,
                "Adam steps of the cloud's part, on released features: they cost nothing.",
                ge=1,
                le=MOST_STEPS,
            ),
            "batch_size": 256,
            "tick_steps": 500,
        }
    ],
    checks=[_leave_the_image_something],
    dropped={"phone_steps": _PHONE_STEPS, "private_weight": 1.0},
)


class Plan(RunPlan):
    """The plan of a run of arden: every image and label are perturbed once, before the first step."""

    reads_public = True

    def num_features(self, num_classes: int) -> int:
        """Return d."""
        return self.config.method.features or max(1, math.ceil(math.log2(num_classes)))

    @functools.cached_property
    def channel(self) -> FeatureNoise:
        """The noise on features, at the epsilon that the label leaves."""
        privacy = self.config.privacy
        return FeatureNoise(self.num_features(len(self.shape.classes)), privacy.epsilon - privacy.label_epsilon)

    @functools.cached_property
    def response(self) -> RandomizedResponse:
        """The mechanism of the label."""
        return RandomizedResponse(len(self.shape.classes), self.config.privacy.label_epsilon, *_ADJACENCY)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of features and labels, which is charged before the first step."""
        return (self.channel.mechanism.event, self.response.event)

    @property
    def claimed(self) -> Guarantee:
        """The paper's claim for an image."""
        paper = self.channel.claimed(self.config.method.nullification) + self.config.privacy.label_epsilon
        return Guarantee(paper, 0.0, *_ADJACENCY, _CLAIM)

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise, who has to perturb, and what was learned from public images."""
        assumptions = [
            f"noise source: {sources[0].name}",
            "an image that the classifier is asked about is protected only if its phone perturbs it (`perturb`)",
        ]
        if self.shape.sizes.public:
            assumptions.append("the phone's part was trained on public images, if they are labeled")
        return tuple(assumptions)

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> SplitCnn:
        """Return both parts of the network."""
        width, seed = self.config.method.width, self.config.training.seed
        features = self.num_features(max(len(classes), 2))  # fewer are refused by the network
        return SplitCnn(image_shape, classes, width=width, features=features, seed=seed)

    def check(self) -> None:
        """Refuse what no classifier supports."""
        classifier.check(
            self, self.classifier, self.step_bytes, "Lower method.features, method.width or training.batch_size."
        )

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the described network with that of [method]."""
        return classifier.misdescribed(self.classifier, described)

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Count the released features, and a batch on the phone."""
        _, height, width = network.image_shape
        batch: int = self.config.training.batch_size * self.config.method.width * height * width
        return 8 * (self.shape.num_private * self.num_features(len(network.classes)) + batch)


class Method(method.Method):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        plan: The plan of the run.
        split: The private part is read once, by `prepare`; the public one, if labeled, without null records.
        ledger: Charged by `prepare` together with what it releases.
        device: Where networks and data live; what is released is drawn on the CPU.
        noise: Secret source; None = AES-256-CTR.
    """

    NOISY_STEPS = True
    SAVED = ("newest", "optimizer", "rng", "noise")
    newest: SplitCnn

    plan: Plan

    def _set_up(self, split: Split) -> None:
        self._images = place(split.private, self.device)
        self.newest = self.plan.classifier(split.image_shape, split.classes).eval().to(self.device)
        labeled = split.public.labels is not None
        self._public = place(split.public.existing(), self.device) if labeled else split.public.select(torch.arange(0))
        self.optimizer = Adam(self.newest.cloud.parameters(), self.config.learning_rate)
        self.channel, self.response = self.plan.channel, self.plan.response
        self._rng = classifier.seeded(self._run)
        self._steps = torch.empty(0, self.channel.features, dtype=torch.int64)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._clean = torch.empty(0, self.channel.features)  # features of the public images

    @property
    def product(self) -> PrivateClassifier:
        """The released classifier."""
        return self.newest

    artifact, critic_scores = classifier.artifact, classifier.critic_scores

    def prepare(self) -> None:
        """Train the phone's part; then perturb all images and labels, once, and drop the raw ones."""
        if len(self._public):
            fit_phone(self.newest, self._public, _PHONE_STEPS, self._rng, self.progress)
        released = self.ledger.release(self.plan.events, self._release, noise=self.noise)
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
        """Continue from the release: the phone's part is fixed, and raw images are no longer needed."""
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
        config, training = self.config, self._run.training
        falling(self.optimizer, config.learning_rate, step, training.steps)
        chosen = torch.randint(len(self._steps), (training.batch_size,), generator=self._rng).to(self.device)
        logits = self.newest.cloud(self.channel.values(self._steps[chosen]))
        private = response_loss(logits, self._labels[chosen], self.response.probabilities)
        stats, loss = {"private_loss": private.detach()}, private
        if len(self._public):
            chosen = torch.randint(len(self._public), (training.batch_size,), generator=self._rng)
            batch, clean = self._public.select(chosen).to(self.device), self._clean[chosen.to(self.device)]
            nullified = config.nullification and config.clean_weight < 1
            public = noisy_loss(
                self.newest.cloud, clean, self._phone(batch.images, config.nullification) if nullified else clean,
                cast(Tensor, batch.labels), self.channel, self._rng, clean_weight=config.clean_weight,
                radius=config.radius,
            )  # fmt: skip
            stats["public_loss"], loss = public.detach(), public + private
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return stats

    def state(self) -> dict[str, Any]:
        """Return the networks, the optimizer, the order of batches, and under "prepared" what was released."""
        return {**super().state(), "prepared": {"steps": self._steps, "labels": self._labels}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raw images are dropped as in `prepare`."""
        super().load_state(state)
        self._take(state["prepared"]["steps"], state["prepared"]["labels"])


# Noisy training sees public images and perturbed private ones; it follows the paper and its code.


def falling(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Set the learning rate of a step, counted from 1: it falls from ``peak`` to 0 along a line."""
    set_rate(optimizer, peak * (1 - (step - 1) / max(steps, 1)))


def fit_phone(network: SplitCnn, public: Images, steps: int, rng: torch.Generator, progress: Progress = silent) -> None:
    """Train both parts on labeled public images, without noise: afterwards the phone's part is never changed."""
    optimizer, device = Adam(network.parameters(), _RATE), next(network.parameters()).device
    for step in range(1, steps + 1):
        falling(optimizer, _RATE, step, steps)
        batch = public.select(torch.randint(len(public), (_BATCH,), generator=rng)).to(device)
        loss = cross_entropy(network(to_float(batch.images)), cast(Tensor, batch.labels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        progress("phone steps", step, steps)


def noisy_loss(
    cloud: nn.Module,
    clean: Tensor,
    nullified: Tensor,
    labels: Tensor,
    channel: FeatureNoise,
    rng: torch.Generator,
    *,
    clean_weight: float,
    radius: float,
) -> Tensor:
    """Return the loss of noisy training on a public batch.

    ``lambda L(clean) + (1 - lambda) (L(noisy) + L(noisy + eta g / |g|))``, g the gradient of L(noisy) in the features.

    Args:
        cloud: Features to logits.
        clean: (B, d) features without noise.
        nullified: (B, d) features of the same images, some pixels nullified.
        labels: (B,).
        channel: The noise, drawn afresh.
        rng: Random numbers of the noise; noise on public images need not be secret.
        clean_weight: lambda in [0, 1].
        radius: eta, L2, in units of the noise's scale b; 0 leaves the last term out.
    """
    loss = clean_weight * cross_entropy(cloud(clean), labels)
    if clean_weight == 1:
        return loss
    noisy = channel.perturb_public(nullified, rng).requires_grad_(bool(radius))
    random = cross_entropy(cloud(noisy), labels)
    loss = loss + (1 - clean_weight) * random
    if radius:
        (slope,) = torch.autograd.grad(random, noisy, retain_graph=True)
        length = slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
        worst = (noisy + radius * channel.scale * slope / length).detach()
        loss = loss + (1 - clean_weight) * cross_entropy(cloud(worst), labels)
    return loss


def response_loss(logits: Tensor, labels: Tensor, probabilities: tuple[float, float]) -> Tensor:
    """Return the mean negative log-likelihood of labels (B,) that went through a randomized response.

    ``p'(y) = lie + (truth - lie) p(y)``: the forward correction of Patrini et al. 2017, "Making deep neural networks
    robust to label noise".

    Args:
        logits: (B, K), of the true label.
        labels: (B,), as they were released.
        probabilities: truth and lie, see `RandomizedResponse.probabilities`.
    """
    truth, lie = probabilities
    likelihood = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -(lie + (truth - lie) * likelihood).log().mean()


# The audit: what leaves a phone whose features are all at the bound, or all at its negative --------------------------


def _features_case(
    channel: FeatureNoise, response: RandomizedResponse | None, request: Request, claimed: Guarantee | None
) -> AuditCase:
    mechanism, bound = channel.mechanism, round(1 / channel.grid.step)
    lowest, highest = (torch.full((channel.features,), side, dtype=torch.float64) for side in (-1.0, 1.0))
    statistic = statistics.likelihood_ratio(mechanism)(lowest * bound, highest * bound)
    pair, events = neighbors.Pair(neighbors.FEATURES, lowest, highest), [mechanism.event]
    feature = DiscreteLaplace(2 * bound, mechanism.scale, mechanism.unit, mechanism.relation)  # all move at once
    law = [feature.event.repeated(channel.features)]
    if response is not None:
        labels = torch.tensor([0.0, 1.0], dtype=torch.float64)
        statistic = statistics.WithLabel(statistic, labels, response.epsilon)
        pair = neighbors.Pair(
            neighbors.FEATURES_AND_LABEL, torch.cat([lowest, labels[:1]]), torch.cat([highest, labels[1:]])
        )
        events.append(response.event)
        law.append(response.event)

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.release(values[:, : channel.features], noise).double()
        if response is None:
            return steps
        return torch.cat([steps, response(values[:, -1].long(), noise)[:, None].double()], 1)

    paper = channel.claimed(section_of(Settings, "method")().nullification)
    one = Guarantee(paper, request.delta or 0.0, events[0].unit, events[0].relation, "asked for")
    notes = (f"{channel.features} features; claimed is what the paper states, the price of one of them",)
    return released_case(
        "arden", request, events, pair, release, lambda *_: statistic, claimed or one, notes=notes, law=tuple(law)
    )


def _build(request: Request) -> AuditCase:
    return _features_case(FeatureNoise(_FEATURES, request.epsilon), None, request, None)


def _of_run(config: Any, facts: RunFacts) -> AuditCase:
    plan, request = Plan(config, facts.shape), Request(config.privacy.epsilon, facts.delta)
    return _features_case(plan.channel, plan.response, request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_of_run)
