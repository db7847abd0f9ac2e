"""The clipped step of DP-SGD beside a plain backward pass, and beside Opacus' two engines, on random images.

Contenders take turns, so that other load affects them alike; a figure is the median of the turns after a burn-in.
One JSON value: of each size the seconds of ours and of each other, and theirs over ours; the processor and the load.

python benchmarks/clipped_step.py [--device cuda] [--widths 16 32 64] [--batch 256] [--turns 9]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from idpgan.device import resolve_device
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.optimizers import SGD
from idpgan.privacy import DPSGDPlan
from idpgan.privacy.tiles import Tiles, tiled
from idpgan.run import describe_environment
from idpgan.synthesis.critic_loss import CriticLoss

Call = Callable[[], Any]
CLASSES = 10
BURN_IN = 2  # calls of each contender before timing


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="of the critics")
    parser.add_argument("--batch", type=int, default=256, help="pairs of a real image and its fake")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    device = resolve_device(options.device, "--device")
    machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    rows = [measured(width, options.batch, options.turns, device) for width in options.widths]
    print(json.dumps({"rows": rows, "machine": machine, **describe_environment(str(device))}, indent=1))


def measured(width: int, batch: int, turns: int, device: torch.device) -> dict[str, Any]:
    """Let all contenders take turns, and return the medians and what each takes over ours."""
    weights, calls = contenders(width, batch, device)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BURN_IN + turns):
        for name, call in calls.items():
            taken[name].append(seconds(call, device))
    medians = {name: statistics.median(times[BURN_IN:]) for name, times in taken.items()}
    over = {"ours over plain": medians["ours"] / medians["plain"]}
    for name in medians.keys() & {"Opacus", "Opacus, fast clipping"}:
        over[f"{name} over ours"] = medians[name] / medians["ours, one image" if "fast" in name else "ours"]
    return {"weights": weights, "seconds": medians, "ratios": over}


def seconds(call: Call, device: torch.device) -> float:
    """Return how long a call takes on a device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


def contenders(width: int, batch: int, device: torch.device) -> tuple[int, dict[str, Call]]:
    """Return the number of weights, and who sums clipped gradients: ours, the plain pass, and Opacus where it is.

    A record is a real image and its fake, as in `dp-gan`; for fast clipping it is one image, as that engine does not
    know records that pass a layer twice.
    """
    critic = Critic(ModelConfig(width=width), (1, 28, 28), CLASSES).to(device)
    weights = dict(critic.named_parameters())
    real, fake = torch.randn(2, batch, 1, 28, 28, generator=torch.Generator().manual_seed(1)).to(device).tanh()
    labels = (torch.arange(batch) % CLASSES).to(device)
    plan = DPSGDPlan(sample_rate=0.01, clip_norm=1.0, divisor=batch, noise_multiplier=1.0)
    records, tiles = [real, labels, fake, torch.zeros(batch, device=device), labels], Tiles.fixed(batch)

    def summed(*, paired: bool) -> Call:
        loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=paired)
        return lambda: plan.clipped_sum(loss.of_record, weights, tiled(records, batch), tiles).sums

    def plain() -> None:
        scores = critic(torch.cat([real, fake]), torch.cat([labels, labels]))
        total = softplus(-scores[:batch]).sum() + softplus(scores[batch:]).sum()
        torch.autograd.grad(total, list(weights.values()))

    calls: dict[str, Call] = {"ours": summed(paired=True), "plain": plain}
    if importlib.util.find_spec("opacus"):
        calls["Opacus"] = by_hooks(critic, (real, fake), labels)
        calls["ours, one image"] = summed(paired=False)
        calls["Opacus, fast clipping"] = by_fast_clipping(critic, real, labels)
    return sum(weight.numel() for weight in weights.values()), calls


def by_hooks(critic: Critic, pairs: tuple[Tensor, Tensor], labels: Tensor) -> Call:
    """Return the same sum by Opacus: hooks, per-record gradients, clipping; in float32."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    copy = copied(critic, labels.device)
    with warnings.catch_warnings(action="ignore"):  # Opacus' import and hooks warn about torch's hooks
        model = GradSampleModule(copy, loss_reduction="sum")
        optimizer = DPOptimizer(
            SGD(model.parameters(), lr=0.0), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=len(labels)
        )

    def call() -> dict[str, Tensor]:
        real, fake = (model(images, labels) for images in pairs)
        (softplus(-real).sum() + softplus(fake).sum()).backward()
        optimizer.clip_and_accumulate()
        sums = {name: cast(Any, weight).summed_grad for name, weight in copy.named_parameters()}
        optimizer.zero_grad()
        return sums

    return functools.partial(without_warnings, call)


def by_fast_clipping(critic: Critic, images: Tensor, labels: Tensor) -> Call:
    """Return the sum over single images by Opacus' ghost norms, and a second backward pass; in float32."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    copy = copied(critic, labels.device)
    with warnings.catch_warnings(action="ignore"):
        model = GradSampleModuleFastGradientClipping(
            copy, loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
        )

    def call() -> dict[str, Tensor]:
        model.enable_hooks()
        losses = softplus(-model(images, labels))
        losses.sum().backward(retain_graph=True)
        copy.zero_grad(set_to_none=True)
        factors = model.get_clipping_coef()
        model.disable_hooks()
        (factors * losses).sum().backward()
        sums = {name: cast(Tensor, weight.grad) for name, weight in copy.named_parameters()}
        copy.zero_grad(set_to_none=True)
        return sums

    return functools.partial(without_warnings, call)


def copied(critic: Critic, device: torch.device) -> Critic:
    """Return a critic of the same weights that no hook has touched."""
    copy = Critic(critic.config, critic.image_shape, CLASSES).to(device)
    copy.load_state_dict(critic.state_dict())
    return copy


def without_warnings(call: Call) -> Any:
    """Call with the warnings of a library about itself silenced."""
    with warnings.catch_warnings(action="ignore"):
        return call()


if __name__ == "__main__":
    main()
