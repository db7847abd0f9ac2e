"""Small runs for the tests of the loop: a method without networks, a noisy WGAN-GP, and a whole run on digits."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from idpgan.data.config import DataConfig
from idpgan.data.load import DataShape, Split, load
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.ledger import Budget, Ledger
from idpgan.privacy.noise import Noise
from idpgan.run import RunFolder
from idpgan.synthesis.wgan_gp import Method as WganGp
from idpgan.synthesis.wgan_gp import Settings as Config
from idpgan.training.config import TrainingConfig
from idpgan.training.loop import Outcome, train
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.state import run_fingerprint
from idpgan.training.stats import read_stats

DELTA = 1e-5
CPU = torch.device("cpu")


def gaussian(noise_multiplier: float = 4.0) -> Event:
    """One Gaussian read."""
    return Event("gaussian", Unit.IMAGE, Relation.REPLACE_ONE, noise_multiplier=noise_multiplier)


class FakeMethod:
    """A method whose "network" is one number; it writes down the order of all that happens."""

    def __init__(self, ledger: Ledger, event: Event | None = None, *, fail_at: int = 0, nan_at: int = 0) -> None:
        self.product = torch.nn.Linear(1, 1)
        self.ledger, self.event, self.fail_at, self.nan_at = ledger, event, fail_at, nan_at
        self.noises: tuple[Noise, ...] = ()
        self.computation = ""
        self.calls: list[str] = []
        self.weight = torch.zeros(())

    def prepare(self) -> None:
        self.calls.append("prepare")

    def settle(self, exact: bool) -> bool:
        return exact

    def step_event(self) -> Event | None:
        return self.event

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        return ()

    def step(self, step: int) -> dict[str, torch.Tensor]:
        self.calls.append(f"step {step}, charged {self.ledger.position}")
        if step == self.fail_at:
            raise RuntimeError("out of memory")
        self.weight = self.weight + 1
        return {"loss": torch.tensor(float("nan") if step == self.nan_at else float(step))}

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]


def terms_of(config: Any, shape: DataShape | None = None) -> tuple[Unit, Relation, Budget | None]:
    """Return unit, relation and target of a run's ledger."""
    price = plan_run(config, shape or digits().shape).price
    return price.unit, price.relation, price.budget


def new_run(path: Path) -> RunFolder:
    """Make an empty run folder without asking git and the machine."""
    return RunFolder.create(path, "# a test\n", {})


def fake_ledger(run: RunFolder, epsilon: float | None = None) -> Ledger:
    """Make a durable ledger for `gaussian` events."""
    target = None if epsilon is None else Budget(epsilon, DELTA)
    return Ledger(Unit.IMAGE, Relation.REPLACE_ONE, target, run.ledger, "test")


def fake_train(method: FakeMethod, run: RunFolder, steps: int = 10, tick_steps: int = 4, **options: Any) -> Outcome:
    """Train a `FakeMethod`."""
    config = TrainingConfig(steps=steps, tick_steps=tick_steps, batch_size=8)
    return train(
        method,
        config=config,
        ledger=method.ledger,
        run=run,
        fingerprint={"config": "a", "device": "cpu"},
        delta=DELTA,
        **options,
    )


class NoisyGan(WganGp):
    """WGAN-GP that pretends to be private: a charged one-time read, a charged and noised critic, a released mean."""

    def __init__(self, plan: RunPlan, split: Split, *, ledger: Ledger, device: torch.device) -> None:
        super().__init__(plan, split, ledger=ledger, device=device)
        self.ledger = ledger
        self.noise = Noise.fixed(1)
        self.mean = torch.zeros(split.image_shape)

    @property
    def noises(self) -> tuple[Noise, ...]:
        return (self.noise,)

    def prepare(self) -> None:
        self.mean = self.ledger.release([gaussian(20.0)], self._release, noise=self.noise)["mean"]

    def _release(self) -> dict[str, torch.Tensor]:
        return {"mean": self._images.images.double().mean(0) + self.noise.normal(self.mean.shape)}

    def step_event(self) -> Event:
        return gaussian(100.0)

    def critic_step(self, step: int) -> dict[str, torch.Tensor]:
        stats = super().critic_step(step)
        with torch.no_grad():
            for parameter in self.critic.parameters():
                parameter += 1e-4 * self.noise.normal(parameter.shape).float()
        return {**stats, "mean": self.mean.mean()}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "noise": self.noise.state(), "prepared": {"mean": self.mean}}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.noise.load_state(state["noise"])
        self.mean = state["prepared"]["mean"]


@functools.cache
def digits() -> Split:
    """Return the embedded digits: 8 x 8, 1,295 private images."""
    return load(DataConfig(name="digits"))


def tiny_config(*, steps: int = 20, tick_steps: int = 5, **method: Any) -> Config:
    """Return a run of a few milliseconds per step."""
    table = {
        "model": {"width": 4, "latent_dim": 4},
        "method": {"critic_steps_per_generator_step": 2, **method},
        "training": {"steps": steps, "tick_steps": tick_steps, "batch_size": 8, "device": "cpu"},
    }
    return Config.model_validate(table)


def train_on_digits(
    path: Path, config: Config, *, kind: Callable[..., WganGp] = WganGp, **options: Any
) -> tuple[Outcome, WganGp]:
    """Begin a run at `path`, or continue the one that is there."""
    if path.exists():
        run = RunFolder.open(path)
        ledger = Ledger.open(run.ledger, config.identity()) if run.ledger.exists() else None
    else:
        run, ledger = new_run(path), None
    if ledger is None:
        ledger = Ledger(*terms_of(config), run.ledger, config.identity())
        ledger.flush()
    plan = plan_run(config, digits().shape)
    plan.check()
    method = kind(plan, digits(), ledger=ledger, device=CPU)
    fingerprint = run_fingerprint(
        config=config.identity(), private_data=digits().digest, public_data=digits().public.digest(), device=CPU
    )
    fingerprint["code"] = "as it is"  # a file that is edited while the tests run is no matter here
    outcome = train(
        method, config=config.training, ledger=ledger, run=run, fingerprint=fingerprint, delta=DELTA, **options
    )
    return outcome, method


def killed_and_resumed(tmp_path: Path, config: Config, cls: type[WganGp]) -> WganGp:
    """Assert that a run killed at step 13 and resumed leaves what a whole one leaves, and prepares once; return it."""

    class KilledError(Exception):
        pass

    class Stops(cls):  # type: ignore[misc, valid-type]
        def critic_step(self, step: int) -> dict[str, torch.Tensor]:
            if step == 13:
                raise KilledError
            return super().critic_step(step)  # type: ignore[no-any-return]

    class NeverPrepares(cls):  # type: ignore[misc, valid-type]
        def prepare(self) -> None:
            raise AssertionError("prepared twice")

    def kind(cls: type[WganGp]) -> Callable[..., WganGp]:
        return lambda *args, **options: cls(*args, noise=Noise.fixed(3), **options)

    train_on_digits(tmp_path / "whole", config, kind=kind(cls))
    with pytest.raises(KilledError):
        train_on_digits(tmp_path / "parts", config, kind=kind(Stops))
    _, method = train_on_digits(tmp_path / "parts", config, kind=kind(NeverPrepares))
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")
    return method


def fork_server() -> ForkServerContext:
    """Return where processes that may be frozen, killed or paired begin: one for all tests, as a process has one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.preloaded"])
    return context


KINDS: dict[str, type[WganGp]] = {"plain": WganGp, "noisy": NoisyGan}


def run_in_child(path: Path, settings: dict[str, Any], kind: str, step_done: Any) -> None:
    """Begin or continue a run; the target of a process that may be killed. `step_done` is shared with the parent."""
    torch.set_num_threads(1)

    def watched(*args: Any, **options: Any) -> WganGp:
        method = KINDS[kind](*args, **options)
        do_step = method.step

        def counted_step(step: int) -> dict[str, torch.Tensor]:
            stats = do_step(step)
            step_done.value = step
            return stats

        method.step = counted_step  # type: ignore[method-assign]
        return method

    train_on_digits(path, tiny_config(**settings), kind=watched)


def bits(value: Any) -> Any:
    """Return a nested state with the bytes of its tensors, so that == compares bit for bit, NaN and -0 included."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return value


def remains(path: Path) -> dict[str, Any]:
    """Return all that two equal runs have in common on the disk: everything but the clock."""
    run = RunFolder.open(path)
    saved = torch.load(run.state, weights_only=True)
    clock = ("seconds", "steps_per_second", "images_per_second")
    return {
        "step": saved["step"],
        "method": bits(saved["method"]),
        "prepared": saved["prepared"],
        "stats": [{name: row[name] for name in row if name not in clock} for row in read_stats(run.stats)],
        "ledger": books(run),
    }


def books(run: RunFolder) -> dict[str, Any]:
    """Return what two equal runs have in common on their ledgers: the hash of a state is not, as it holds the clock."""
    content = json.loads(run.ledger.read_text())
    return {name: value for name, value in content.items() if name not in ("state", "checksum")}


class Stopped(BaseException):
    """What a kill looks like from inside: nothing after it is done."""


@contextlib.contextmanager
def stopping_at(number: int, error: BaseException, call: str = "replace") -> Iterator[list[Any]]:
    """Raise at one durable write, counted from 1: all of them go through `os.replace` (or, finer, `os.fsync`).

    Yields the list of the calls so far; where it stays shorter than `number`, nothing was raised.
    """
    calls: list[Any] = []
    original = getattr(os, call)

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, counted)
        yield calls
