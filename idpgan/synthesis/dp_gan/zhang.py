r"""dp-GAN of Zhang, Ji and Wang as published: unsound, built to be measured; the ledger has what is proven.

Zhang, Ji, Wang (2018), "Differentially private releasing via deep generative model", arXiv:1801.01594, by its code
(alps-lab/dpgan, commit ee2829f): `dp-gan` with the loss of WGAN-GP, a start on public images, and groups of weights
whose bounds are found there. The paper clips the groups; its code (``dp/clippers/autogroup.py``) clips each of the T
weight tensors by itself to the bound of its group, and accounts for G terms a step, one a group.

What is proven. A record moves the noisy sum by one vector of T tensors, each at most as long as its bound, and the
noise on a tensor has sigma times that bound. Both divided by the bounds, the vector has norm sqrt(T), and a step is a
Poisson-sampled Gaussian release of multiplier ``sigma / sqrt(T)``: finite, and above the claim, whose multiplier is
``sigma / sqrt(G)``, wherever T > G. The bound is reached by a record that is clipped everywhere. What differs from the
code: docs/reference/deviations.md, dp-gan-zhang. The sound form is ``method.name = "dp-gan"`` with the same settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.privacy import Event, Guarantee
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.noise import Source
from idpgan.private.steps import steps_entry
from idpgan.synthesis.dp_gan.config import DpGanConfig, DpGanPlan, DpGanRun
from idpgan.synthesis.dp_gan.loss import Kind
from idpgan.synthesis.dp_gan.method import DpGan, canaries

_TENSORS = 7  # of the critic in the paper's code for MNIST; an audit without a run takes it


class DpGanZhangConfig(DpGanConfig):
    """[method] of dp-gan-zhang: that of dp-gan, with the settings of the paper.

    Attributes:
        groups: G, of weights; at least one.
    """

    APART: ClassVar[bool] = True

    name: Literal["dp-gan-zhang"] = "dp-gan-zhang"  # type: ignore[assignment]  # the same section, another method
    loss: Kind = "wgan-gp"
    groups: int = Field(5, ge=1, le=1024)
    public_steps: int = Field(2000, ge=0)
    critic_steps_per_generator_step: int = Field(4, ge=1)
    critic_learning_rate: float = Field(2e-4, gt=0)
    generator_learning_rate: float = Field(2e-4, gt=0)
    cooldown: float = Field(0.0, ge=0, le=1)
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.9, ge=0, lt=1)
    ema_decay: float = Field(0.0, ge=0, lt=1)


class DpGanZhangRun(DpGanRun):
    """A whole config file of dp-gan-zhang; ``privacy.epsilon`` is what is claimed."""

    method: DpGanZhangConfig = DpGanZhangConfig()


class DpGanZhangPlan(DpGanPlan):
    """The plan of a run of dp-gan-zhang: all steps are taken, whatever they cost; there is no budget."""

    budget = None

    def steps_at(self, sample_rate: float, divisor: int) -> DPSGDPlan:
        """Return the steps with the noise that the claim needs, as it counts for T tensors in the place of G groups."""
        steps, share = super().steps_at(sample_rate, divisor), self.config.method.groups / self.critic_tensors
        return dataclasses.replace(steps, noise_multiplier=steps.noise_multiplier * math.sqrt(share))

    @property
    def claimed(self) -> Guarantee:
        """What the paper's accountant says: one term a group and step."""
        privacy = self.config.privacy
        basis = "Zhang, Ji and Wang (2018), as in their code: one accounted term a group and step"
        return Guarantee(privacy.epsilon, privacy.delta, self.unit, self.relation, basis)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say what the claim leaves out."""
        return (
            f"each of {self.critic_tensors} weight tensors is clipped to its group's bound by itself, and the claim "
            f"counts {self.config.method.groups} groups; {super().reason(events, sources)}"
        )

    def refuse_no_step(self) -> None:
        """Refuse nothing: there is no budget."""


class DpGanZhang(DpGan):
    """The method as the loop sees it; see `DpGan`."""


Settings, Plan, Method = DpGanZhangRun, DpGanZhangPlan, DpGanZhang


def _build(request: Request) -> AuditCase:
    """Return the case of steps whose noise is sized by groups."""
    section = DpGanZhangConfig()
    sigma = least_noise(request.epsilon, request.delta or 0.0, 0.3, 50) * math.sqrt(section.groups / _TENSORS)
    return canary_case("dp-gan-zhang", canaries(section, 0.3, sigma, 50), request)


AUDIT = dataclasses.replace(
    steps_entry("dp-gan-zhang", canaries, DpGanZhangConfig(), sample_rate=0.3, steps=50), build=_build
)
