"""What several processes do together in test_distributed.py; each function is called on all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from idpgan import trainer
from idpgan.errors import InputError
from idpgan.models.optimizers import SGD
from idpgan.privacy import DPSGDPlan, Noise, Relation, Unit, discrete, dpsgd
from idpgan.privacy.discrete import rounded_gaussian
from idpgan.privacy.tiles import Tiles
from idpgan.ranks import ALONE, Ranks
from idpgan.synthesis.votes import Votes, steps_of
from idpgan.training import distributed
from idpgan.training.config import build_config
from idpgan.training.distributed import joined, sum_over_ranks
from tests import small_runs
from tests.training.toy import fork_server

FAST = {"steps": 6, "tick_steps": 2, "batch_size": 26, "device": "cpu"}
SAMPLED = {"epsilon": 0.25, "delta": 1e-5, "sample_rate": 0.02, "noise_multiplier": 2.0}
SEPARATE = {"fakes": "separate", "critic_steps_per_generator_step": 1}
RUNS: dict[str, dict[str, Any]] = {  # what no small run has: all its fakes at once, and images in their places
    "opacus": {"method": {"name": "dp-gan", "engine": "opacus", **SEPARATE}, "privacy": SAMPLED, "training": FAST},
    "separate": {"method": {"name": "dp-gan", "adaptive_below": 0.9, **SEPARATE}, "privacy": SAMPLED, "training": FAST},
    "in place": {
        "model": {"generator": "diffusion", "latent_dim": 12, "width": 4, "drawing": "faces"},
        "method": {"name": "diffusion", "draws": 2},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "training": {**FAST, "batch_size": 1_000_000},
    },
}


def in_pair(function: Callable[..., Any], folder: Path, *arguments: Any, size: int = 2) -> list[dict[str, Any]]:
    """Call ``function(ranks, *arguments)`` in two processes or more, and return what each of them returned."""
    context = fork_server()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    pair = [
        context.Process(target=_one, args=(f"{rank}/{size}", port, function, folder, arguments)) for rank in range(size)
    ]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
    if any(process.is_alive() for process in pair):
        for process in pair:
            process.kill()
        raise TimeoutError("the processes wait for each other.")
    files = [folder / f"rank{rank}.pt" for rank in range(size)]
    return [torch.load(file, weights_only=True) if file.exists() else {} for file in files]


def _one(place: str, port: int, function: Callable[..., Any], folder: Path, arguments: tuple[Any, ...]) -> None:
    """Be one of the processes: RANK/SIZE."""
    torch.set_num_threads(1)
    rank, size = place.split("/")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, **address})
    result: dict[str, Any] = {}
    try:
        with joined(minutes=1) as ranks:
            result = function(ranks, *arguments)
    except InputError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except SystemExit as error:
        result = {"exit": error.code}
    torch.save(result, folder / f"rank{rank}.pt")


# Numbers -------------------------------------------------------------------------------------------------------------


def numbers(ranks: Ranks) -> dict[str, Any]:
    """All that needs no run."""
    return {
        "texts": ranks.gather("ä" * (3 * ranks.rank)),
        "noise": _noise(ranks, ranks),
        "noise of each": _noise(ranks, ALONE),
        "sharded": _step(ranks),
        "alone": _step(ALONE),
        "whole": _whole(ranks),
        "votes": _votes(ranks),
        "votes alone": _votes(ALONE),
        "drawn": _plan(ranks).poisson_sample(101, Noise.fixed(3)).tolist(),
        "drawn alone": _plan(ALONE).poisson_sample(101, Noise.fixed(3)).tolist(),
    }


def _plan(ranks: Ranks, divisor: int = 20) -> DPSGDPlan:
    return DPSGDPlan(sample_rate=0.3, clip_norm=1.0, divisor=divisor, noise_multiplier=2.0, ranks=ranks)


def _noise(ranks: Ranks, of_plan: Ranks) -> dict[str, torch.Tensor]:
    """Take a step on sums of zero, with noise that differs between the ranks; `ALONE` is what must not be."""
    weight = torch.zeros(20_000, requires_grad=True)
    sums = {"w": torch.zeros(20_000, dtype=torch.float64)}
    plan = _plan(of_plan, divisor=1)
    plan.noisy_step(SGD([weight], 1.0), {"w": weight}, sums, Noise.fixed(10 + ranks.rank))
    moved = weight.detach().clone()
    if of_plan.alone:
        ranks.sum([moved])
    return {"variance": moved.double().square().mean(), "first": moved[:5].clone()}


def _step(ranks: Ranks) -> torch.Tensor:
    """Take one whole step of a small classifier, by the coins and the noise of one source."""
    draws = torch.Generator().manual_seed(0)
    images, labels = torch.randn(101, 7, generator=draws), torch.randint(3, (101,), generator=draws)
    null = torch.arange(101) % 10 == 0
    weights = {"weight": torch.zeros(3, 7, requires_grad=True), "bias": torch.zeros(3, requires_grad=True)}

    def loss(given: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(image[None], given["weight"], given["bias"])
        return torch.nn.functional.cross_entropy(logits, label[None])

    plan, noise = _plan(ranks), Noise.fixed(5)
    if not ranks.first:
        noise.erase()  # it must not be asked
    tiles = Tiles.fixed(8)
    drawn = plan.sample(len(images), noise, tiles)
    batches = (([10 * images[place], labels[place]], null[place] | (place < 0)) for place in drawn)  # norms above C
    result = plan.clipped_sum(loss, weights, batches, tiles)
    plan.noisy_step(SGD(weights.values(), 1.0), weights, result.sums, noise)
    return torch.cat([weight.detach().flatten() for weight in weights.values()])


BLOCK, BLOCKS = 1 << 14, 5  # of the noise of `shards`; the last block is short


def shards(ranks: Ranks) -> dict[str, Any]:
    """Take steps whose noise has several blocks, as it should be and with the mistakes that must show."""

    class Greedy(Ranks):
        """A rank that takes the blocks of rank 0."""

        def share(self, num: int) -> slice:
            return Ranks(0, self.size).share(num)

    discrete.BLOCK, last = BLOCK, ranks.rank == ranks.size - 1
    return {
        "shared": (found := _blocks(ranks))[0],
        "alone": (alone := _blocks(ALONE))[0],
        "next": found[1],
        "next alone": alone[1],
        "two draws of a block": _blocks(Greedy(ranks.rank, ranks.size, ranks.group) if last else ranks)[0][:9].tolist(),
        "noise twice": _blocks(ranks, lambda drawn: 2 * drawn if last else drawn)[0],
        "kept noise": _blocks(ranks, lambda drawn: 0 * drawn if last else drawn)[0],
        "bad part": _blocks(ranks, lambda drawn: drawn, 0.5 if last else 0)[0][:9].tolist(),
    }


def _blocks(
    ranks: Ranks, change: Callable[[torch.Tensor], torch.Tensor] = lambda drawn: drawn, offset: float = 0
) -> tuple[torch.Tensor, list[int]]:
    """Step on parts of one sum, and return what is released and what rank 0's source gives next."""
    draws = torch.Generator().manual_seed(0)
    count = (BLOCKS - 1) * BLOCK + 123
    total, mine = (torch.randint(-(2**40), 2**40, (count,), generator=draws) for _ in range(2))
    part = torch.where(torch.arange(count) % ranks.size == ranks.rank, total, 0)
    part += 0 if ranks.alone else mine * (1 if ranks.first else -1 if ranks.rank == 1 else 0)  # which add up to zero
    weights = {"a": torch.zeros(count - 23, dtype=torch.float64), "b": torch.zeros(23, dtype=torch.float64)}
    for weight in weights.values():
        weight.requires_grad_()
    plan, noise = _plan(ranks), Noise.fixed(5 + ranks.rank)
    with mock.patch.object(discrete, "rounded_gaussian", lambda *given: change(rounded_gaussian(*given))):
        sums = dict(zip(weights, (part.double() + offset).split([count - 23, 23]), strict=True))
        gpu = mock.patch.multiple(dpsgd, is_gpu=lambda device: True, sent=lambda tensor, device: tensor)
        with gpu if offset else contextlib.nullcontext():  # a CPU refuses it before the sum
            plan.noisy_step(SGD(weights.values(), 1.0), weights, sums, noise)
    return torch.cat([weight.detach() for weight in weights.values()]), noise.integers(1 << 60, (4,)).tolist()


def lost(ranks: Ranks, weights_at: Path, moment: str) -> dict[str, Any]:
    """Take a step in which rank 1 is killed before its noise is drawn, or after; keep what rank 0 has then."""
    weight = torch.zeros(2 * discrete.BLOCK, requires_grad=True)
    sums = {"w": torch.full((len(weight),), 7.0, dtype=torch.float64)}
    optimizer = SGD([weight], 1.0)

    def dying(*given: Any) -> torch.Tensor:
        if ranks.rank == 1 and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        drawn = rounded_gaussian(*given)
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return drawn

    try:
        with mock.patch.object(discrete, "rounded_gaussian", dying):
            _plan(ranks).noisy_step(optimizer, {"w": weight}, sums, Noise.fixed(1))
    finally:
        torch.save({"moved": bool(weight.detach().any()), "gradient": weight.grad is not None}, weights_at)
    return {}


def _votes(ranks: Ranks) -> list[list[float]]:
    """Count the votes of 57 records, and release them by the noise of one source."""
    draws, noise = torch.Generator().manual_seed(0), Noise.fixed(5)
    chosen, labels = torch.randint(5, (57,), generator=draws), torch.randint(2, (57,), generator=draws)
    if not ranks.first:
        noise.erase()  # it must not be asked
    share = ranks.share(57)
    votes = Votes(2, 5, 1.0, Unit.IMAGE, Relation.ZERO_OUT)
    weights = steps_of(None, None, 57)[share]
    released: list[list[float]] = votes.release(chosen[share], labels[share], weights, noise, ranks).tolist()
    return released


def _whole(ranks: Ranks) -> list[float]:
    """Return value and added gradient of the square of a sum of parts: 1 w + 2 w at w = 3."""
    w = torch.tensor(3.0, requires_grad=True)
    loss = sum_over_ranks((ranks.rank + 1) * w, ranks).square()
    loss.backward()
    assert w.grad is not None
    ranks.sum([w.grad])
    return [loss.item(), w.grad.item()]


# Runs ----------------------------------------------------------------------------------------------------------------


def runs(ranks: Ranks, folder: Path, names: list[str]) -> dict[str, Any]:
    """Train one run after the other, and return the hash of the tensors of each method."""
    return {name: _run(ranks, folder / name, name) for name in names}


def _run(ranks: Ranks, path: Path, name: str, spoil: Callable[[Any], None] | None = None) -> str:
    load, made = trainer.load_method, []

    def kept(method: str) -> SimpleNamespace:
        def make(*arguments: Any, **options: Any) -> Any:
            made.append(load(method).Method(*arguments, **options))
            if spoil is not None:
                spoil(made[0])
            return made[0]

        return SimpleNamespace(Method=make)

    trainer.load_method = kept
    try:
        if ranks.first:
            trainer.start(config_of(name), path, ranks=ranks)
            ranks.end()
            ranks.busy = False  # another run begins
        else:
            trainer.follow(ranks)
    finally:
        trainer.load_method = load
    return distributed._digest(made[0].state())


def config_of(name: str) -> Any:
    """Return a small run on the embedded digits."""
    if name not in RUNS:
        return small_runs.config_of(name)
    return build_config({"model": {"width": 4, "latent_dim": 4}, **RUNS[name]}, "a test")


def other_weights(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Train with a rank that moves one weight on its own."""

    def spoil(method: Any) -> None:
        step = method.step

        def spoilt(number: int) -> Any:
            stats = step(number)
            with torch.no_grad():
                next(method.critic.parameters()).view(-1)[0] += 1e-3
            return stats

        if not ranks.first:
            method.step = spoilt

    return {"hash": _run(ranks, folder / "run", "wgan-gp", spoil)}


def killed(ranks: Ranks, folder: Path, number: int, victim: int) -> dict[str, Any]:
    """Train with a rank that is killed in a step."""

    def spoil(method: Any) -> None:
        step = method.step

        def dying(at: int) -> Any:
            if at == number and ranks.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(at)

        method.step = dying

    return {"hash": _run(ranks, folder / "run", "separate", spoil)}


def no_data(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Begin a run whose data one rank does not find."""

    def spoil(method: Any) -> None:
        if not ranks.first:
            raise InputError("the data is not here.")

    return {"hash": _run(ranks, folder / "run", "dp-gan", spoil)}


def no_steps(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Begin a run of a method that has nothing to share."""
    table = {"model": {"generator": "gaussian"}, "method": {"name": "gaussian"}, "privacy": {"epsilon": 1.0}}
    table["privacy"]["delta"] = 1e-5
    if ranks.first:
        trainer.start(build_config(table, "a test"), folder / "run", ranks=ranks)
    else:
        trainer.follow(ranks)
    return {}
