"""A run that is stopped, killed or diverged goes on bit for bit, or not at all."""

from __future__ import annotations

import copy
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from idpgan.errors import InputError
from idpgan.run import RunFolder
from idpgan.synthesis.wgan_gp import Method as WganGp
from idpgan.training.loop import DivergedError
from tests.training import toy
from tests.training.toy import KINDS, NoisyGan, bits, remains, tiny_config, train_on_digits

KILL_SETTINGS = {"steps": 40, "tick_steps": 6}
KILL_CONFIG = tiny_config(**KILL_SETTINGS)


class Stopper:
    """Makes a method stop itself by SIGTERM in one step."""

    def __init__(self, kind: type[WganGp], step: int) -> None:
        self.kind, self.step = kind, step

    def __call__(self, *args, **options) -> WganGp:
        method = self.kind(*args, **options)
        critic_step = method.critic_step

        def stopping(step):
            if step == self.step:
                signal.raise_signal(signal.SIGTERM)
            return critic_step(step)

        method.critic_step = stopping
        return method


@pytest.mark.parametrize("kind", [WganGp, NoisyGan])
@pytest.mark.parametrize("stop_at", [10, 13])  # at a tick, and between two
def test_2n_steps_equal_n_and_a_resume_and_n(tmp_path, kind, stop_at):
    config = tiny_config(steps=20, tick_steps=5)
    train_on_digits(tmp_path / "whole", config, kind=kind)
    outcome, _ = train_on_digits(tmp_path / "parts", config, kind=Stopper(kind, stop_at))
    assert (outcome.step, outcome.ended) == (stop_at, "interrupted")
    assert remains(tmp_path / "parts") != remains(tmp_path / "whole")
    outcome, _ = train_on_digits(tmp_path / "parts", config, kind=kind)
    assert outcome.ended == "finished"
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")


@pytest.mark.parametrize(
    "forgotten", ["newest", "average", "critic", "rng", "critic_optimizer", "generator_optimizer", "noise"]
)
def test_the_comparison_sees_each_forgotten_part(tmp_path, forgotten):
    class Forgetful(NoisyGan):
        def load_state(self, state):
            fresh = copy.deepcopy(self.state())
            state = {**state, "networks": {**state["networks"]}}
            part = "networks" if forgotten in state["networks"] else None
            (state[part] if part else state)[forgotten] = (fresh[part] if part else fresh)[forgotten]
            super().load_state(state)

    config = tiny_config(steps=8, tick_steps=2)
    train_on_digits(tmp_path / "whole", config, kind=NoisyGan)
    train_on_digits(tmp_path / "parts", config, kind=Stopper(NoisyGan, 4))
    train_on_digits(tmp_path / "parts", config, kind=Forgetful)
    assert remains(tmp_path / "parts")["method"] != remains(tmp_path / "whole")["method"]


def test_a_finished_run_is_left_as_it_is(tmp_path):
    config = tiny_config(steps=6, tick_steps=4)
    train_on_digits(tmp_path / "run", config)
    before = remains(tmp_path / "run")
    outcome, _ = train_on_digits(tmp_path / "run", config)
    assert (outcome.step, outcome.ended) == (6, "finished")
    assert remains(tmp_path / "run") == before


def test_another_config_or_other_data_is_refused(tmp_path, monkeypatch):
    config = tiny_config(steps=4, tick_steps=2)
    train_on_digits(tmp_path / "run", config)
    before = remains(tmp_path / "run")
    with pytest.raises(InputError, match="another configuration"):  # by the ledger already
        train_on_digits(tmp_path / "run", tiny_config(steps=8, tick_steps=2))
    original = toy.digits()
    images = original.private.images.clone()
    images[0, 0, 0, 0] ^= 1
    changed = type(original.private)(images, original.private.labels, original.private.classes)
    monkeypatch.setattr(
        toy, "digits", lambda: type(original)(original.public, changed, original.holdout, original.test)
    )
    with pytest.raises(InputError, match=r"private data: .* saved, .* now"):
        train_on_digits(tmp_path / "run", config)
    assert remains(tmp_path / "run") == before


def test_training_leaves_the_global_random_states_alone(tmp_path):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    train_on_digits(tmp_path / "run", tiny_config(steps=4, tick_steps=2), kind=NoisyGan)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]


def test_a_learning_rate_of_1e9_ends_in_a_clear_error_and_keeps_the_last_state(tmp_path):
    config = tiny_config(steps=40, tick_steps=10, learning_rate=1e9)
    with pytest.raises(
        DivergedError, match=r"Training diverged: .* step \d+.*kept in .*state\.pt.*lower learning rate"
    ):
        train_on_digits(tmp_path / "run", config)
    run = RunFolder.open(tmp_path / "run")
    saved = torch.load(run.state, weights_only=True)
    assert all(tensor.isfinite().all() for tensor in saved["method"]["networks"]["newest"].values())
    assert saved["step"] == 0
    assert not run.stats.exists()
    with pytest.raises(DivergedError):  # it can be loaded, and takes the same steps again
        train_on_digits(tmp_path / "run", config)
    assert bits(torch.load(run.state, weights_only=True)["method"]) == bits(saved["method"])


# SIGKILL at a random moment. A fork server has torch and the data loaded, so a child starts in milliseconds. ----------


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed."""

    kind: str
    path: Path
    start_seconds: float  # from the folder to the first step
    step_seconds: float


@pytest.fixture(scope="module")
def children():
    return toy.fork_server()


@pytest.fixture(scope="module", params=list(KINDS))
def whole(request, children, tmp_path_factory) -> Whole:
    path = tmp_path_factory.mktemp(request.param) / "whole"
    child = Child(children, path, request.param)
    child.wait_for(path.exists)
    times = [time.monotonic()]
    for step in (1, KILL_CONFIG.training.steps):
        child.wait_for(lambda step=step: child.step_done.value >= step)
        times.append(time.monotonic())
    child.end()
    return Whole(request.param, path, times[1] - times[0], (times[2] - times[1]) / KILL_CONFIG.training.steps)


class Child:
    """A process that begins or continues a run."""

    def __init__(self, children, path: Path, kind: str) -> None:
        self.step_done = children.Value("i", -1, lock=False)
        self.process = children.Process(target=toy.run_in_child, args=(path, KILL_SETTINGS, kind, self.step_done))
        self.process.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it is true or the process has ended."""
        while not condition() and self.process.is_alive():
            time.sleep(0.0005)

    def end(self) -> None:
        self.process.join(60)
        assert self.process.exitcode == 0


def kill_and_resume(children, whole: Whole, path: Path, seed: int) -> int:
    """Kill a run at a random moment, resume it, compare; returns the step that was done last before the kill."""
    moment = random.Random(seed).uniform(-4, KILL_CONFIG.training.steps)  # in steps; below 0: while it starts
    child = Child(children, path, whole.kind)
    child.wait_for(path.exists if moment < 0 else lambda: child.step_done.value >= int(moment))
    time.sleep(-moment / 4 * whole.start_seconds if moment < 0 else moment % 1 * whole.step_seconds)
    child.process.kill()
    child.process.join(60)
    assert child.process.exitcode in (-signal.SIGKILL, 0)  # 0: it was faster this time

    run = RunFolder(path)
    if not run.config.exists():  # killed while the folder was made: there is no run yet
        path.rename(path.with_name(f"{path.name}-unborn"))
    Child(children, path, whole.kind).end()
    assert remains(path) == remains(whole.path)  # what prepare() released is paid exactly once, whenever it was cut off
    return child.step_done.value


@pytest.mark.parametrize("whole", ["noisy"], indirect=True)
@pytest.mark.parametrize("seed", [1, 3, 57])
def test_sigkill_at_a_random_moment(children, whole, tmp_path, seed):
    kill_and_resume(children, whole, tmp_path / "run", seed)


@pytest.mark.slow
def test_sigkill_twenty_times(children, whole, tmp_path):
    steps = [kill_and_resume(children, whole, tmp_path / f"run-{seed}", seed) for seed in range(50, 70)]
    print(f"{whole.kind}: killed after the steps {steps}")
    assert len(set(steps)) > 10  # the moments are spread over the run
