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
import functools
import math
from collections.abc import Sequence

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.config import key
from idpgan.privacy import Event, Guarantee
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.noise import Source
from idpgan.private import steps
from idpgan.synthesis import dp_gan_plan
from idpgan.synthesis.dp_gan import Method, canaries
from idpgan.synthesis.dp_gan_plan import DROPPED, METHOD, PRIVACY, check_pace
from idpgan.training.config import ENGINE, check_engine, section_of, settings

__all__ = ["AUDIT", "Method", "Plan", "Settings"]

_TENSORS = 7  # of the critic in the paper's code for MNIST; an audit without a run takes it


Settings = settings(  # privacy.epsilon is what is claimed
    "dp-gan-zhang",
    method=[
        ENGINE,
        METHOD,
        {
            "loss": "wgan-gp",
            "groups": key(int, 5, "G, of weights; at least one.", ge=1, le=1024),
            "public_steps": 2000,
            "critic_steps_per_generator_step": 4,
            "critic_learning_rate": 2e-4,
            "generator_learning_rate": 2e-4,
            "cooldown": 0.0,
            "beta1": 0.0,
            "beta2": 0.9,
            "ema_decay": 0.0,
        },
    ],
    privacy=[PRIVACY],
    method_checks=[check_engine, check_pace],
    dropped=DROPPED,
    abilities={"record-gradients"},
)


class Plan(dp_gan_plan.Plan):
    """The plan of a run of dp-gan-zhang: all steps are taken, whatever they cost; there is no budget."""

    budget = None
    apart = True

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The steps with the noise that the claim needs, as it counts for T tensors in the place of G groups."""
        dpsgd = steps.steps_at(self, self.sample_rate, self.config.training.batch_size)
        share = self.config.method.groups / self.critic_tensors
        return dataclasses.replace(dpsgd, noise_multiplier=dpsgd.noise_multiplier * math.sqrt(share))

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


def _build(request: Request) -> AuditCase:
    """Return the case of steps whose noise is sized by groups."""
    section = section_of(Settings, "method")()
    sigma = least_noise(request.epsilon, request.delta or 0.0, 0.3, 50) * math.sqrt(section.groups / _TENSORS)
    return canary_case("dp-gan-zhang", canaries(section, 0.3, sigma, 50), request)


AUDIT = dataclasses.replace(
    steps.steps_entry("dp-gan-zhang", canaries, section_of(Settings, "method")(), sample_rate=0.3, steps=50),
    build=_build,
)
