"""The interface between the loop and a method, and the argument of the loop's callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import is_gpu
from idpgan.errors import ConfigError, InputError
from idpgan.models.own import computation
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, number_to_json
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.noise import ON_GPU, Noise, Source
from idpgan.progress import Progress, silent
from idpgan.ranks import Ranks
from idpgan.training.config import ReleaseConfig, RunConfig
from idpgan.training.kept_features import NOT_KEPT
from idpgan.training.plan import plan_run

Stats = dict[str, Tensor]
"""Named 0-d tensors on the method's device, never moved to the host by the method. A step may leave a name out: an
empty Poisson batch has no loss, and a missing value is not counted in the average."""

CriticScores = Callable[[Tensor, Tensor | None], Tensor]
"""Images, float (B, C, H, W) in [-1, 1], and labels (B,) or None, both on the method's device -> how real the critic
finds each, (B,); higher = more real."""


@dataclass(frozen=True)
class ReleasedSums:
    """Noisy sums over the private images that a method released, and what an image adds to them.

    Attributes:
        sums: (rows, D) float64: of each class, or of all images.
        noise_std: Standard deviation of the noise on each number.
        vectors: Maps images to their vectors (n, D) and their rows, int64 (n,).
    """

    sums: Tensor
    noise_std: float
    vectors: Callable[[Images], tuple[Tensor, Tensor]]


def state_of(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the state of some attributes: those of these names behind an underscore, or without where there are none.

    It is nested dicts and lists of tensors and plain Python values; `load_state_of` puts it back.
    """
    return {name: _state_of(getattr(owner, _attribute(owner, name))) for name in names}


def load_state_of(owner: Any, names: Iterable[str], state: dict[str, Any]) -> None:
    """Restore the result of `state_of`, in the order of the names; all tensors of the state are on the CPU."""
    for key in names:
        name, saved = _attribute(owner, key), state[key]
        value = getattr(owner, name)
        if isinstance(value, torch.Generator):
            value.set_state(saved)
        elif isinstance(value, nn.Module | torch.optim.Optimizer):
            value.load_state_dict(saved)
        elif hasattr(value, "load_state"):
            value.load_state(saved)
        else:
            setattr(owner, name, saved.to(value.device) if isinstance(value, Tensor) else saved)


def _attribute(owner: Any, key: str) -> str:
    return f"_{key}" if hasattr(owner, f"_{key}") else key


def _state_of(value: Any) -> Any:
    """Return the state of an object that has one (network, optimizer, random numbers); else the value itself."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return value.state_dict()
    return value.state() if hasattr(value, "state") else value


class Method:
    """A method, private or not, as the loop sees it; subclasses override what differs. Steps are counted from 1.

    The method owns its networks, its optimizers, its `torch.Generator` objects (seeded from ``training.seed``), its
    noise source and the ledger that `prepare` charges. It uses no global random numbers.

    Args:
        plan: What the run does and costs, with the mechanisms that it is calibrated for; `RunPlan.check` has passed.
        split: Of the data; each method says which parts it reads, and when.
        ledger: Charged by the loop before each step, and by `prepare` for what it reads.
        device: Where networks and data live.
        noise: Secret source of noise and coins; None = a fresh one of the operating system's key.

    Attributes:
        config: The section [method].
        noise: The source of noise for `prepare` and the steps.
        progress: Told how far what takes long is, in `prepare`, in a step or in `artifact`; the loop sets it.
        kept: Takes and gives the features of private images, so that a resume has them; the loop sets it.
        SAVED: Attributes that are the state; see `state_of`.
        UNNOISED: Statistics that are taken from private images without noise: they are recorded for the curator, where
            finite, and never end a run.
        NOISY_STEPS: Whether the steps draw from `noise`.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    SAVED: ClassVar[tuple[str, ...]] = ()
    UNNOISED: ClassVar[tuple[str, ...]] = ()
    NOISY_STEPS: ClassVar[bool] = False

    generator: Any

    def __init__(
        self, plan: Any, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None, **more: Any
    ) -> None:
        self.plan, self._run, self._data, self.config = plan, plan.config, split.shape, plan.config.method
        self.ledger, self.device, self.noise = ledger, device, noise or Noise.system()
        self.progress: Progress = silent
        self.kept = NOT_KEPT
        self._set_up(split, **more)

    def _set_up(self, split: Split) -> None:
        """Make networks, optimizers and random numbers, and keep the images that steps or `prepare` read.

        A method with arguments beyond those of `Method` gets them here too.
        """

    @classmethod
    def of(
        cls, config: RunConfig, split: Split, *, device: torch.device, ledger: Ledger | None = None, **more: Any
    ) -> Self:
        """Plan, check and make a method; without ``ledger`` it gets one in memory.

        Raises:
            InputError: If config, data and machine do not fit together. No private image has been read then.
        """
        plan = plan_run(config, split.shape)
        plan.check()
        return cls(plan, split, ledger=ledger or Ledger.of(plan.price), device=device, **more)

    @property
    def product(self) -> Any:
        """The network that is trained for release, its weights kept finite: by default the attribute ``generator``."""
        return self.generator

    def artifact(self, config: ReleaseConfig) -> Any:
        """Return the product as an `idpgan.release.artifact.Artifact` for release, with the settings of [release]."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs: nested dicts and lists of tensors and plain Python values.

        The key "prepared", if present, holds the tensors that `Ledger.release` returned. The ledger keeps them in a
        file of their own, and they are back in place when `load_state` is called.
        """
        return state_of(self, self.SAVED)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`; all tensors are on the CPU."""
        load_state_of(self, self.SAVED, state)

    @property
    def computation(self) -> str:
        """A text that is equal where code of the user computes the same; "" where the run uses none.

        Steps are repeated without a charge only if it is; see `idpgan.models.own.computation`.
        """
        config, shape = self._run, self._data
        return computation(
            config.model, config.own_code, shape.image_shape, len(shape.classes), seed=config.training.seed
        )

    @property
    def noises(self) -> tuple[Noise, ...]:
        """All noise sources of the steps: ratcheted after each step, re-keyed on resume, erased when the run ends."""
        return (self.noise,) if self.NOISY_STEPS else ()

    def prepare(self) -> None:
        """Do the one-time private reads by `Ledger.release`, and set up the training that follows from them.

        Called if there is no saved state: on a new run, and again on one that was stopped before its first state. Then
        the ledger returns the earlier release, and nothing is read or charged a second time.
        """

    def settle(self, exact: bool) -> bool:
        """Decide, before the first step of this process, all that its arithmetic hangs on and that memory decides.

        Args:
            exact: Whether steps after the state that was loaded shall be repeated bit for bit.

        Returns:
            Whether they will be: False too if what was saved does not work here.
        """
        return exact

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """Return the price of all that the steps after `step` may read, if `prepare` has paid for it in advance.

        It is charged again if those steps are repeated with fresh noise. () if `step_event` pays, or nothing is read.
        """
        return ()

    def step_event(self) -> Event | None:
        """Return the price of the next step; None if it reads nothing private."""
        return None

    def step(self, step: int) -> Stats:
        """Do step number `step`: one of the critic, and one of the generator where it is due.

        The loop has charged `step_event` before.
        """
        raise NotImplementedError

    @property
    def source(self) -> Source:
        """What a report says of the noise, and of the device that computed."""
        return ON_GPU if self.noise.private and is_gpu(self.device) else self.noise.source

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the noise of the method's parts came from, in their order, for the report."""
        return (self.source,)

    def privacy(self) -> PrivacyReport:
        """Report what is claimed, and what the ledger proves for the run so far."""
        events, proven = self.ledger.events, self.ledger.proven(self.plan.delta)
        report: PrivacyReport = self.plan.report_of(events, proven, self.sources)
        return report


@runtime_checkable
class SharesSteps(Protocol):
    """The optional part of `Method`: the processes of `torchrun` can do its steps together."""

    def share_steps(self, ranks: Ranks) -> None:
        """From now on do every step together with the other ranks, each its share; called once, before the first step.

        Raises:
            ConfigError: If the config leaves a rank nothing to do.
        """


def refuse_small_shares(num: int, key: str, ranks: Ranks) -> None:
    """Refuse a batch that gives a rank fewer than two images; raises `ConfigError`."""
    if num < 2 * ranks.size and not ranks.alone:
        raise ConfigError(
            f"{key} = {num} leaves less than 2 images to each of {ranks.size} processes. Take fewer processes or a "
            "larger batch."
        )


class NoCriticError(InputError):
    """No critic scores single images; the message is a clause that says why."""


@runtime_checkable
class HasCritic(Protocol):
    """The optional part of `Method`: a critic that an attacker with the curator's access can ask about an image."""

    @property
    def critic_scores(self) -> CriticScores:
        """How real the trained critic finds images: a plain method, or a function that a property makes.

        The critic gets the images without the noise of training; any attacker would do at least this.

        Raises:
            NoCriticError: If the critic, as it is set up, does not see single images.
        """


@runtime_checkable
class HasSums(Protocol):
    """The optional part of `Method`: one release of sums, in which an attacker may trace an image."""

    @property
    def released_sums(self) -> ReleasedSums | None:
        """The sums that `prepare` released, if any."""


@dataclass(frozen=True)
class Tick:
    """The argument of the callbacks, at each tick after the state is saved.

    Attributes:
        step: Critic steps done.
        epsilon: Charged so far, at `delta`.
        seconds: Training time so far, over all resumed parts.
        steps_per_second: Critic steps per second since the last tick, as `images_per_second` for real images.
        stats: Mean of each statistic over the steps since the last tick. Not covered by epsilon.
        generator: The method's product.
    """

    step: int
    epsilon: float
    delta: float
    seconds: float
    steps_per_second: float
    images_per_second: float
    stats: dict[str, float]
    generator: nn.Module

    def to_json(self) -> dict[str, Any]:
        """Return the line of stats.jsonl."""
        return {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.steps_per_second, 3),
            "images_per_second": round(self.images_per_second, 1),
            "epsilon": number_to_json(self.epsilon),
            "delta": self.delta,
            **self.stats,
        }


TickCallback = Callable[[Tick], None]
