"""Imported once by `toy.fork_server`: what runs need is loaded and priced, so that a child starts in milliseconds.

Nothing here starts threads: they would not survive the fork.
"""

from __future__ import annotations

import torch
import torch.utils.tensorboard  # a second of every child that takes steps

from idpgan import trainer  # noqa: F401
from idpgan.methods import methods_of
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.tradeoff import Risk
from idpgan.training.config import load_method
from idpgan.training.plan import plan_run
from tests.small_runs import STEPS, config_of
from tests.training.toy import DELTA, digits, gaussian


def price(name: str) -> None:
    """Compute the prices of a small run and of its ticks, which a child would compute for two seconds."""
    plan = plan_run(config_of(name), digits().shape)
    plan.check()
    (event,) = plan.events
    for step in (2, 4, STEPS):
        compose_epsilon([event.single.repeated(step)], plan.delta)
    Risk.of(plan.joint_events(plan.events))


torch.set_num_threads(1)
for method in methods_of("generator", "classifier"):
    load_method(method)
compose_epsilon([gaussian()], DELTA)
price("dp-gan")
