r"""Private steps: what all methods share whose steps are those of DP-SGD on one network (`idpgan.privacy.dpsgd`).

`PrivateSteps` owns the private images, the coins of a record, tiles, engine, learning rate, ranks and charges of such
steps, and plays them with canaries for an audit; a method gives the network, its optimizer and the loss of one record.
A step reads the records that Poisson sampling at rate q draws, and moves the network by

.. math:: \frac{1}{B} \Big( \sum_{i} \mathrm{clip}_C(g_i) + N(0, (\sigma C)^2 I) \Big)

with a public B: the Poisson-sampled Gaussian mechanism of noise multiplier sigma, unit image, zero-out-one; an image
and its label are one record. An empty batch is a step like any other: noise, charge, step. What a method has to keep:
besides the weights and what was released before, only record i, its label and its own coins enter g_i.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.gradient_canaries import CanarySteps, Training, canary_case
from idpgan.config import Keys, key
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.device import check_memory, is_gpu, resolve_device, sent
from idpgan.models.adapters import trained_weights
from idpgan.models.validate import validate_private_critic
from idpgan.privacy import Event, Ledger, Noise, Relation, Unit, accounting, opacus_history
from idpgan.privacy.captured_gradients import Batch, NotCapturedError, Weights
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.event import rounding_words
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget
from idpgan.privacy.tiles import Tiles, Way, random_like, rows_at_once, spare, tiled
from idpgan.private.memory import fitting
from idpgan.ranks import Ranks
from idpgan.training.config import DELTA_ABOVE_ZERO
from idpgan.training.loop import no_step_affordable
from idpgan.training.method import Method, Stats
from idpgan.training.plan import RunPlan, plan_run

if TYPE_CHECKING:
    from idpgan.privacy.opacus_steps import OpacusSteps

PHYSICAL_BATCH = (
    "Records whose gradients are in memory at once, halved by itself where that is too many; a GPU takes 2,048 unless "
    'another number is set. "opacus" takes at most 128, and does not halve it.'
)
BUDGET: Keys = {
    "epsilon": key(float, ..., "What the run may spend; the step that would exceed it is not taken.", gt=0),
    **DELTA_ABOVE_ZERO,
}
NOISE_MULTIPLIER = key(
    float | None, None, "sigma; None = the least with which ``training.steps`` steps stay within epsilon.", gt=0
)
SETTINGS = "the settings: epsilon covers no choice of settings by looking at private images"

_CANARY_TILES: dict[Any, Tiles | None] = {}  # of trainings that differ in coins and noise alone: audits play many


def steps_at(plan: RunPlan, sample_rate: float, divisor: int) -> DPSGDPlan:
    """Return the steps of a run, with the least noise that the charges before them leave room for, if none is set."""
    method, privacy, steps = plan.config.method, plan.config.privacy, plan.config.training.steps
    sigma = privacy.noise_multiplier or least_noise(privacy.epsilon, privacy.delta, sample_rate, steps, plan.given)
    exact = getattr(method, "engine", "idpgan") == "idpgan"
    return DPSGDPlan(sample_rate, method.clip_norm, divisor, sigma, exact=exact)


def reason_of_steps(plan: RunPlan, what: str, events: Sequence[Event], source: Source) -> str:
    """Return a report's reason: what was done, how it is rounded, where the noise came from, and another engine."""
    words = f"{what}; {rounding_words(events)}; noise: {source.name}"
    method = plan.config.method
    if getattr(method, "engine", "idpgan") != "opacus":
        return words
    draws = ", each number half the sum of four (secure_mode)" if method.secure_mode else ""
    epsilons = opacus_history.opacus_epsilons(tuple(events), plan.delta)
    return (
        f"{words}{draws}; gradients, clipping and sums by Opacus, whose accountants say of the same steps and "
        f"delta: epsilon {', '.join(f'{name} {value}' for name, value in epsilons.items())}. They price the same pair "
        "of distributions (add-or-remove-one, where N is not public) from above: PRV adds its numerical error of "
        "at most 0.01, RDP converts Renyi divergences of fixed orders"
    )


def check_gradients(plan: RunPlan, record_bytes: int, way_out: str) -> None:
    """Refuse a gradient of a single record, of so many bytes, that does not fit in memory."""
    check_memory(record_bytes, "the gradient of one image", way_out, str(resolve_device(plan.config.training.device)))


def refuse_no_step(plan: RunPlan, dpsgd: DPSGDPlan) -> None:
    """Refuse noise with which not even one step is within the budget."""
    privacy, event = plan.config.privacy, dpsgd.event
    if privacy.noise_multiplier is not None and accounting.compose_epsilon([event], privacy.delta) > privacy.epsilon:
        raise no_step_affordable(event, Budget(privacy.epsilon, privacy.delta))


class PrivateSteps(Method):
    """A method whose steps are those of DP-SGD on one network.

    A subclass calls `train_privately` once and overrides `record_loss`; where it needs them, also `batch_loss` (for
    Opacus), `prepared` with `coins`, `example`, and `public_part`.

    Args:
        split: The private part is read in steps.
        ledger: The loop charges it before each step.
        noise: Source of coins and noise; None = a fresh one of the operating system.

    Attributes:
        dpsgd: The steps.
        coins: How many uniform numbers a record has of its own in a step, from the secret source: from a published
            seed, taking a record out would shift those of the others.
        way: How gradients are found; see `DPSGDPlan.tiles`.
        graphs: Whether a GPU replays chunks that it has recorded; off, see `idpgan.privacy.graphs`.
    """

    UNNOISED = ("loss", "gradient_norm", "clipped_share")
    NOISY_STEPS = True

    dpsgd: DPSGDPlan
    coins: int = 0
    way: Way = "capture"
    graphs: bool = False
    _images: Images
    _opacus: OpacusSteps | None = None
    _tiles: Tiles | None = None

    def train_privately(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take the steps of the plan on all weights of a network that are not frozen, by the engine of the config."""
        self.dpsgd = self.plan.dpsgd
        self._trained, self._trainer = network, optimizer
        if getattr(self.config, "engine", "idpgan") == "opacus":
            from idpgan.privacy.opacus_steps import OpacusSteps

            self._opacus = OpacusSteps(
                network,
                optimizer,
                physical_batch=self.config.max_physical_batch,
                secure_mode=self.config.secure_mode,
            )

    # What a method gives ------------------------------------------------------------------------------------------

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return the loss of one record as `prepared` made it, 0-d."""
        raise NotImplementedError

    def batch_loss(self, network: nn.Module, *records: Tensor) -> Tensor:
        """Return `record_loss` of each of a batch by one pass through ``network``, (B,)."""
        raise NotImplementedError

    def prepared(self, images: Tensor, labels: Tensor, *coins: Tensor) -> Sequence[Tensor]:
        """Return what the loss takes of records, row by row: images in [-1, 1], labels (zeros without), and coins."""
        return images, labels

    def example(self) -> list[Tensor]:
        """Return one public record of zeros, as `prepared` takes it."""
        image = torch.zeros(1, *self._data.image_shape, device=self.device)
        label = torch.zeros(1, dtype=torch.int64, device=self.device)
        coins = torch.zeros(1, self.coins, dtype=torch.float64, device=self.device)
        return [image, label, coins] if self.coins else [image, label]

    def known(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return what `prepared` takes of records at these positions between labels and coins."""
        return ()

    def public_part(self) -> tuple[Any, Any, Sequence[Tensor]] | None:
        """Return public records that are clipped and added too: loss of one, loss of a batch, tensors; None = none."""
        return None

    # The only lines of a step that read private images ------------------------------------------------------------

    def private_step(self) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; return statistics for the curator."""
        public = self.public_part()
        if self._opacus is not None:
            records, null = self._records(self.dpsgd.poisson_sample(len(self._images), self.noise))
            batches = [Batch(self.batch_loss, records, null)]
            batches += [] if public is None else [Batch(public[1], public[2])]
            return self.dpsgd.statistics(*self._opacus.step(self.dpsgd, self.noise, *batches)[0])
        weights, tiles = self.weights(), self.tiles
        drawn = self.dpsgd.sample(len(self._images), self.noise, tiles)
        result = self.dpsgd.clipped_sum(self.record_loss, weights, map(self._records, drawn), tiles)
        sums = result.sums
        if public is not None:
            more = self.dpsgd.clipped_sum(public[0], weights, tiled(public[2], tiles.rows), tiles).sums
            sums = {name: total + more[name] for name, total in sums.items()}
        self.dpsgd.noisy_step(self._trainer, weights, sums, self.noise)
        return self.dpsgd.statistics(result.losses, result.norms)

    def _records(self, index: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return what the loss takes of the records at positions ``index``, `EMPTY` for none, and which are null.

        Null records are drawn like others and have coins of their own.
        """
        index = sent(index, self.device)
        batch = self._images.select(index.clamp(min=0)).zeroed_out(index < 0).to(self.device)
        labels = batch.labels
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64, device=self.device)
        values = [to_float(batch.images), labels, *self.known(index.clamp(min=0))]
        if self.coins:
            values.append(sent(self.noise.uniform((len(batch), self.coins)), self.device))
        return self.prepared(*values), batch.is_null

    # Tiles, rate, ranks and charges -------------------------------------------------------------------------------

    def decide_tiles(self, saved: Tiles | None) -> Tiles | None:
        """Decide how the records of steps are computed; None if no step is of `DPSGDPlan`'s own engine.

        Args:
            saved: What was decided before, to be returned itself if it works here.
        """
        if self._opacus is not None:
            return None
        most = rows_at_once(self.config, self.device)
        if saved is None:
            known = self.plan.memory
            most = known.at_once if known is not None else fitting(most, self.trial, self.device)
        return self.dpsgd.tiles(
            self.record_loss,
            self.weights(),
            self.example(),
            num=len(self._images),
            most=most,
            way="graph" if self.graphs and self.way == "capture" and is_gpu(self.device) else self.way,
            prepare=self.prepared,
            precision=self._run.training.precision,
            saved=saved,
        )

    def weights(self) -> Weights:
        """Return what the steps move."""
        return trained_weights(self._trained)

    def trial(self, num: int) -> None:
        """Compute the gradients of so many random records, as a step does, in the memory that it leaves."""
        draws = torch.Generator().manual_seed(0)
        values = [random_like(part, draws).expand(num, *part.shape[1:]).contiguous() for part in self.example()]
        weights, records = self.weights(), self.prepared(*values)
        _spare = spare(weights)
        try:
            self.dpsgd.clipped_sum(self.record_loss, weights, tiled(records, num), Tiles.fixed(num, self.way))
        except NotCapturedError:
            self.dpsgd.clipped_sum(self.record_loss, weights, tiled(records, num), Tiles.fixed(num, "vmap"))

    def settle(self, exact: bool) -> bool:
        """See `Method`: it hangs on the tiles."""
        saved = self._tiles if exact else None
        self._tiles = self.decide_tiles(saved)
        return exact and self._tiles is saved

    @property
    def tiles(self) -> Tiles:
        """How the records of steps are computed, decided on random ones before the first is read."""
        if self._tiles is None:
            self.settle(False)
        if self._tiles is None:
            raise RuntimeError("steps by Opacus have no tiles.")
        return self._tiles

    def rate(self, peak: float, step: int) -> float:
        """Return the learning rate of a step: constant, then falling to zero over ``cooldown``, a share of the run."""
        remaining = 1 - (step - 1) / self._run.training.steps
        return peak * min(1.0, remaining / self.config.cooldown if self.config.cooldown else 1.0)

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank take its share of every step; only a record's own rank sees it and draws its coins."""
        self.dpsgd = dataclasses.replace(self.dpsgd, ranks=ranks)

    def step_event(self) -> Event:
        """Return the price of one Poisson-sampled Gaussian release; an empty batch is charged too."""
        return self.dpsgd.event

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, and the tiles."""
        return super().state() | ({} if self._tiles is None else {"tiles": self._tiles.state()})

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._tiles = Tiles.from_state(state["tiles"]) if "tiles" in state else None

    # Canaries -----------------------------------------------------------------------------------------------------

    @classmethod
    def of_canaries(
        cls, config: Any, split: Split, dpsgd: DPSGDPlan, noise: Noise, device: torch.device, **more: Any
    ) -> Self:
        """Make a method whose network is one of canaries, for an audit; no step is charged: canaries need no budget.

        Args:
            config: Of a run.
            split: Canaries and null records in the private part.
            dpsgd: Takes the place of the plan's.
            more: Further arguments of the method, such as the network of canaries.
        """
        plan = plan_run(config, split.shape)
        plan.dpsgd = dpsgd
        ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
        made = cls(plan, split, ledger=ledger, device=device, noise=noise, **more)
        alike = cls, repr(config), len(split.private), dpsgd.sample_rate, device, torch.get_num_threads()
        if alike not in _CANARY_TILES:
            _CANARY_TILES[alike] = made.decide_tiles(None)
        made._tiles = _CANARY_TILES[alike]
        return made

    def seen_gradients(self, seen: Callable[[Tensor], Tensor] = lambda gradient: gradient) -> Training:
        """Return the steps as an attacker sees them: each gradient, after noise and division, that the optimizer gets.

        Args:
            seen: Reads the gradient of each canary out of that of the only weight, or of the sum over weights alike.
        """
        gradients = list[Tensor]()

        def look(*_: object) -> None:
            parts = [weight.grad for weight in self._trained.parameters() if weight.grad is not None]
            gradients.append(torch.stack(parts).sum(0))

        self._trainer.register_step_pre_hook(look)

        def step(number: int) -> Tensor:
            self.private_step()
            return seen(gradients.pop())

        return step


def validate_network(network: nn.Module, config: Any) -> None:
    """Refuse layers that mix records, and what the engine cannot differentiate, in its words and ours.

    Raises:
        ConfigError: Naming every offending layer and its reason.
    """
    objections: Sequence[str] = ()
    if next(network.parameters()).is_meta:  # of a forecast: nothing to try
        return
    if config.engine == "opacus":
        from idpgan.privacy import opacus_steps

        objections = [f"Opacus says: {words}" for words in opacus_steps.objections(network)]
    validate_private_critic(network, also=objections)


def steps_entry(
    name: str, canaries: Callable[..., CanarySteps], section: Any, *, sample_rate: float, steps: int
) -> Entry:
    """Return the audit of a method of steps alone; without a run, of a plan that stands for all, with the least noise.

    Args:
        name: Of the method.
        canaries: Makes its steps of a section [method], sampling rate, noise multiplier and number of steps.
        section: Of that plan, as its rate and number of steps.
    """

    def build(request: Request) -> AuditCase:
        sigma = least_noise(request.epsilon, request.delta or 0.0, sample_rate, steps)
        return canary_case(name, canaries(section, sample_rate, sigma, steps), request)

    def of_run(config: Any, facts: RunFacts) -> AuditCase:
        dpsgd, count = plan_run(config, facts.shape).dpsgd, config.training.steps
        played = canaries(config.method, dpsgd.sample_rate, dpsgd.noise_multiplier, count)
        return canary_case(name, played, asked_of(config), facts.claimed)

    return Entry(build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=of_run)
