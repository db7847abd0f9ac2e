r"""dp-GAN: DP-SGD on the critic; the generator learns from the critic alone and costs nothing.

That of Xie et al. (2018), with the improvements since (`Bie, Kamath, Zhang (2023), "Private GANs, revisited"
<https://arxiv.org/abs/2302.02936>`_): many critic steps per generator step, large batches, an average of the generator.
The dp-GAN that Yang, Zhou and Ning compare with is that of Zhang, Ji and Wang (2018): the loss of WGAN-GP, a start on
public images, and groups of weights clipped to bounds found there, as settings of this method; as published
`synthesis.dp_gan_zhang`. A critic step is a private step (`private.steps`) with B = ``training.batch_size``, a public
constant.

Sensitivity. Besides the weights, only record i, its label and its own coins enter the gradient g_i:

- ``fakes = "paired"``: g_i is the gradient of the real's *and* a fake's term, clipped together: zeroing out a
  record moves the sum by at most C. The fake has the record's label, latent numbers from the secret noise source (from
  a published seed, removing a record would shift everyone's fakes), and comes from a generator in eval mode (batch
  statistics would carry the others' labels into it).
- ``fakes = "separate"``: g_i holds the real's term only. Exactly B fakes of uniform labels are clipped likewise, for
  balance, and added without noise: given the weights, that part is the same for both neighbors.

Under "wgan-gp" the penalty's interpolate joins record i with a fake of its own and is part of g_i in both variants.

Critic steps are the only private reads; the generator's pace follows the critic's accuracy on *fakes*, which is
post-processing. So are the groups and bounds of a step: they follow from public images and the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from idpgan.audit.gradient_canaries import NO_LIMIT, SLOPE, STILL, CanaryNetwork, CanarySteps, Training
from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.methods import load
from idpgan.models import checkpoint, dcgan, warp
from idpgan.models.config import ModelConfig
from idpgan.models.own import OwnCritic
from idpgan.privacy import Noise
from idpgan.privacy.captured_gradients import record_gradients
from idpgan.privacy.clip_groups import ClipGroups, group_by_norm
from idpgan.privacy.dpsgd import DPSGDPlan, Weights
from idpgan.privacy.layer_gradients import sums_of_norms
from idpgan.privacy.noise import box_muller
from idpgan.private import steps
from idpgan.ranks import ALONE, Ranks
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import product
from idpgan.synthesis.critic_loss import bound_weights, loss_of
from idpgan.synthesis.dp_gan_plan import Plan, Settings, looks_at_public
from idpgan.synthesis.networks import AdamSettings, Networks
from idpgan.training import distributed, fit
from idpgan.training.config import ReleaseConfig, section_of
from idpgan.training.method import Stats, refuse_small_shares

_RNG_STREAM = 9  # of training.seed; 0 and 1 are the initial weights
_SCORE_BATCH = 1000
_PACE_GROWTH = 1.5
_MOST_PACE = 256
_ACCURACY_MEMORY = 0.9  # weight of the past in the average accuracy on fakes


class Method(steps.PrivateSteps):
    """The method as the loop sees it; see `PrivateSteps`.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained, in eval mode but for its own steps.
        critic: Covered by the guarantee, but not released.
        pace: Critic steps per generator step.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    UNNOISED = ("critic_loss", "gradient_norm", "clipped_share")
    SAVED = ("networks", "noise")

    plan: Plan

    def _set_up(self, split: Split, canaries: nn.Module | None = None) -> None:
        """Make the networks; the steps of an audit train ``canaries`` in the place of the critic."""
        config, method, self.training = self.plan.config, self.config, self.plan.config.training
        self._images = place(split.private, self.device)
        self._public = split.public if looks_at_public(method) else None
        self.critic: Any = (canaries or self._build_critic()).to(self.device)
        bound_weights(self.critic, method.loss, method.weight_bound)
        self.networks = Networks(
            config,
            split.shape,
            self.critic,
            device=self.device,
            adam=AdamSettings(method.generator_learning_rate, method.beta1, method.beta2),
            critic_adam=AdamSettings(
                method.critic_learning_rate, method.beta1, method.beta2, decay=method.critic_decay
            ),
            ema_decay=method.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest.eval(), self.networks.average
        self.loss = loss_of(self.critic, method)
        if self._public is not None and self._public.labels is None and self.newest.num_classes:
            raise ConfigError("the public images have no labels, and model.conditional = true. Set it to false.")
        latent = self.newest.latent_dim
        # Of a record: those of a motion, its nodes, a fake, and alpha and a class.
        self._coins = 6, 2 * warp.NODES**2, latent + latent % 2, 2
        self.coins = sum(self._coins)
        self.way = "vmap" if method.loss == "wgan-gp" else "capture"  # a penalty is not captured
        self.train_privately(self.critic, self.networks.critic_optimizer)
        if canaries is not None and method.groups:  # two weights a group
            names = [name for name, _ in self.critic.named_parameters()]
            groups = ClipGroups(tuple(zip(names[::2], names[1::2], strict=True)), (method.clip_norm,) * method.groups)
            self.dpsgd = dataclasses.replace(self.dpsgd, groups=groups.apart if self.plan.apart else groups)
        self.pace, self._since, self._accuracy = method.critic_steps_per_generator_step, 0, 1.0

    def _build_critic(self) -> dcgan.Critic | OwnCritic:
        """Build the critic, and check that its layers do not mix records."""
        shape, seed = self._data, self._run.training.seed
        critic = checkpoint.build_critic(self.plan.critic_model, shape.image_shape, len(shape.classes), seed=seed)
        steps.validate_network(critic, self.config)
        return critic

    def share_steps(self, ranks: Ranks) -> None:
        """See `PrivateSteps`: each rank generates its share of the fakes too."""
        refuse_small_shares(self.training.batch_size, "training.batch_size", ranks)
        super().share_steps(ranks)
        self.networks.ranks = ranks

    # What public images give: a start, and the groups of a step ---------------------------------------------------

    def prepare(self) -> None:
        """Train both networks on public images alone; nothing is charged. The other ranks get the result."""
        count, ranks, self.networks.ranks = self.config.public_steps, self.networks.ranks, ALONE
        for step in range(1, count + 1):
            records, weights = self._public_records(), dict(self.critic.named_parameters())
            losses = vmap(self.record_loss, in_dims=(None, *[0] * len(records)))(weights, *records)
            self.networks.step_critic(losses.mean())
            bound_weights(self.critic, self.config.loss, self.config.weight_bound)
            if step % self.config.critic_steps_per_generator_step == 0:
                self.generator_step(1)
            self.progress("public images, steps", step, count)
        self.networks.ranks = ranks

    def _public_records(self) -> Sequence[Tensor]:
        """Draw public images, at most a batch, with coins that need not be secret."""
        if self._public is None:
            raise RuntimeError("no public images are kept.")
        rng = self.networks.rng
        index = torch.randperm(len(self._public), generator=rng, device=self.device)[: self.training.batch_size]
        images = self._public.select(index.cpu()).to(self.device)
        labels = torch.zeros(len(images), dtype=torch.int64, device=self.device)
        labels = labels if images.labels is None else images.labels
        coins = 1 - torch.rand(len(images), self.coins, dtype=torch.float64, generator=rng, device=self.device)
        return self.prepared(to_float(images.images), labels, coins)

    def clip_groups(self) -> ClipGroups:
        """Group the critic's weights by the mean norms of their gradients on public images; alike on all ranks."""
        weights, records = dict(self.critic.named_parameters()), self._public_records()
        places, lengths = {name: place for place, name in enumerate(weights)}, torch.zeros(len(weights)).double()
        for chunk in zip(*(part.split(self.tiles.chunk) for part in records), strict=True):
            gradients, _ = record_gradients(self.record_loss, weights, chunk, self.tiles.way)
            lengths[[places[name] for name in gradients]] += sums_of_norms(gradients, len(chunk[0])).cpu()
        self.dpsgd.ranks.from_first([lengths])
        means = (lengths / len(records[0])).tolist()
        groups = group_by_norm(dict(zip(weights, means, strict=True)), self.config.groups)
        return groups.apart if self.plan.apart else groups

    # Steps --------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Stats:
        """Take a critic step; a generator's step follows every `pace` of them."""
        stats = self.critic_step(step)
        if self._since >= self.pace:
            stats |= self.generator_step(step)
        return stats

    def critic_step(self, step: int) -> Stats:
        """Take a private step."""
        fit.set_rate(self.networks.critic_optimizer, self.rate(self.config.critic_learning_rate, step))
        if self.config.groups:
            self.dpsgd = dataclasses.replace(self.dpsgd, groups=self.clip_groups())
        stats = self.private_step()
        bound_weights(self.critic, self.config.loss, self.config.weight_bound)
        self._since += 1
        return {"critic_loss" if name == "loss" else name: value for name, value in stats.items()}

    # A record's loss: a function of that record, its coins and the weights ----------------------------------------

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return all terms that one record has a part in."""
        return self.loss.of_record(weights, *record)

    def batch_loss(self, network: nn.Module, *records: Tensor) -> Tensor:
        """Return all terms that each record has a part in."""
        return self.loss.of_records(network, *records)

    @torch.no_grad()
    def prepared(self, images: Tensor, labels: Tensor, *coins: Tensor) -> tuple[Tensor, ...]:
        """Return reals, labels, and a fake, an alpha and a wrong class by each record's own coins; row by row."""
        places, nodes, latent, rest = coins[0].split(self._coins, 1)
        strength, alpha, fake, wrong = self.config.augment, rest[:, 0].float(), images, labels
        if strength and len(images):
            images = warp.move(images, warp.moves_of(places.float(), box_muller(nodes).float(), strength))
        if (self.config.fakes == "paired" or self.config.loss == "wgan-gp") and len(images):
            z = box_muller(latent)[:, : self.newest.latent_dim].float()
            fake = self.newest(z, labels if self.newest.num_classes else None)
        if self.config.mismatch:
            others = self.critic.num_classes - 1
            wrong = (labels + 1 + (rest[:, 1] * others).long().clamp(max=others - 1)) % self.critic.num_classes
        return images, labels, fake, alpha, wrong

    def public_part(self) -> tuple[Any, Any, Sequence[Tensor]] | None:
        """Generate this rank's share of exactly B fakes of uniform labels, unless paired: they and B are public."""
        if self.loss.paired:
            return None
        with torch.no_grad():
            images, labels = self.networks.fakes(self.training.batch_size)
        if labels is None:
            labels = torch.zeros(len(images), dtype=torch.int64, device=self.device)
        return self.loss.of_fake, self.loss.of_fakes, (images, labels)

    # What follows is post-processing of the critic ---------------------------------------------------------------

    def generator_step(self, step: int) -> Stats:
        """Raise the scores of fakes by one Adam step, move the average, and set the pace."""
        self._since = 0
        fit.set_rate(self.networks.generator_optimizer, self.rate(self.config.generator_learning_rate, step))
        self.newest.train()
        ranks, size = self.networks.ranks, self.training.batch_size
        images, labels = self.networks.fakes(size)
        scores = self.critic(images, labels)
        loss = distributed.sum_over_ranks(self.loss.of_generator(scores) * ranks.weight(size), ranks)
        self.networks.step_generator(loss)
        self.newest.eval()  # critic steps need fakes that do not depend on each other
        accuracy = distributed.sum_over_ranks((scores.detach() < 0).float().mean() * ranks.weight(size), ranks)
        if self.config.adaptive_below:  # let the critic take more steps where it no longer recognizes fakes
            self._accuracy += (1 - _ACCURACY_MEMORY) * (accuracy.item() - self._accuracy)
            if self._accuracy < self.config.adaptive_below:
                self.pace = min(math.ceil(self.pace * _PACE_GROWTH), _MOST_PACE)
                self._accuracy = 1.0  # wait until the new pace has an effect
        return {"generator_loss": loss.detach(), "fake_accuracy": accuracy, "pace": torch.tensor(float(self.pace))}

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the averaged generator."""
        return product.artifact(self.generator, self._run, config)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return scores (B,) on the CPU of any number of images, of uint8 too, from any device; see `HasCritic`."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), _SCORE_BATCH):
                part = images[start : start + _SCORE_BATCH].to(self.device)
                part = to_float(part) if part.dtype == torch.uint8 else part
                known = labels is not None and self.critic.num_classes
                of_part = labels[start : start + _SCORE_BATCH].to(self.device) if labels is not None and known else None
                parts.append(self.critic(part, of_part).cpu())
        return torch.cat(parts) if parts else torch.zeros(0)

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, and the generator's pace."""
        return {**super().state(), "pace": [self.pace, self._since, self._accuracy]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self.pace, self._since, self._accuracy = state["pace"]


# The audit: a critic whose gradient is the canary ---------------------------------------------------------------------


def canaries(section: Any, sample_rate: float, noise_multiplier: float, count: int) -> CanarySteps:
    """Return the critic steps as an audit plays them: by a section's loss, fakes, engine and clip norm."""
    still = {"critic_learning_rate": STILL, "critic_decay": 0.0, "augment": 0.0, "mismatch": 0.0, "public_steps": 0}
    # Two weights a group. A canary is clipped to C in all of them apart, and to C / sqrt(2) in those of a group.
    module = load(section.name)
    alike = -1.0 if not section.groups else -0.5 / section.groups * (1 if module.Plan.apart else math.sqrt(2))

    def make(split: Split, dpsgd: DPSGDPlan, num_steps: int, noise: Noise, device: torch.device) -> Training:
        config = module.Settings(
            model=ModelConfig(width=1, latent_dim=1, conditional=False),
            method=section.model_copy(update={**still, "max_physical_batch": 512}),
            privacy={"epsilon": NO_LIMIT, "delta": 0.5 / len(split.private), "sample_rate": sample_rate},
            training={"steps": num_steps, "batch_size": dpsgd.divisor},
        )
        network = CanaryNetwork(len(split.private), SLOPE * section.clip_norm, max(1, 2 * section.groups))
        method = Method.of_canaries(config, split, dpsgd, noise, device, canaries=network)
        return method.seen_gradients(lambda sums: alike * sums)  # the loss falls where the score rises

    code = (
        "played through the critic steps of dp-gan, with a critic whose gradient is the canary; left out were "
        "augmentation and wrong classes (functions of one record and its own coins) and the generator's steps "
        "(post-processing)"
    )
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


AUDIT = steps.steps_entry(
    "dp-gan", canaries, section_of(Settings, "method")(), sample_rate=0.3, steps=50
)  # nearly Gaussian
