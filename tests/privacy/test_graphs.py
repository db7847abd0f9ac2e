"""Chunks as CUDA graphs, on a processor, by `tests.privacy.recording`.

Nothing here tells what hardware does. What is told: a replay is given all that changes, nothing of Python's runs in it,
and one that gives other bits, or cannot be recorded, is not used.
"""

from pathlib import Path

import pytest
import torch

from idpgan import trainer
from idpgan.classify.dp_sgd import Method
from idpgan.data.load import load
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.privacy import DPSGDPlan, Ledger, Noise, layer_gradients
from idpgan.privacy.tiles import Tiles, tiled
from idpgan.private import steps
from idpgan.synthesis.critic_loss import CriticLoss
from idpgan.training.plan import plan_run
from tests.privacy.recording import Recording, driver

__all__ = ["driver"]

pytestmark = pytest.mark.usefixtures("driver")
PLAN = DPSGDPlan(0.3, 0.5, 12, 1.0)
NUM, ROWS = 40, 16


def case(seed=0):
    """Loss, weights and records of a small critic."""
    critic = Critic(ModelConfig(width=4), (1, 8, 8), 10)
    draws = torch.Generator().manual_seed(seed)
    real, fake = torch.randn(2, NUM, 1, 8, 8, generator=draws)
    labels = torch.arange(NUM) % 10
    records = [real, labels, fake, torch.full((NUM,), 0.3), (labels + 3) % 10]
    loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=True, mismatch=0.5)
    return loss.of_record, dict(critic.named_parameters()), records


def decided(loss, weights, records, way="graph", **more):
    return PLAN.tiles(loss, weights, [part[:1] for part in records], num=NUM, most=ROWS, way=way, **more)


def sums(loss, weights, records, tiles):
    return PLAN.clipped_sum(loss, weights, tiled(records, tiles.rows), tiles)


def launched(tiles):
    """The same tiles without a graph."""
    return Tiles(tiles.rows, tiles.kinds, tiles.chunk, "capture", tiles.threads)


def same(one, other):
    pairs = [(one.sums[name], other.sums[name]) for name in one.sums]
    pairs += [
        (one.losses.nan_to_num(7.0), other.losses.nan_to_num(7.0)),
        (one.norms.nan_to_num(7.0), other.norms.nan_to_num(7.0)),
    ]
    return all(torch.equal(*pair) for pair in pairs)


def test_replays_give_the_bits_of_launches_as_weights_move_and_records_change(capsys):
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    assert (tiles.way, len(tiles.graphs), capsys.readouterr().err) == ("graph", 1, "")
    seen = []
    for number in range(3):
        before = Recording.replays
        records[0][number] = torch.nan  # counts as zero
        found = sums(loss, weights, records, tiles)
        assert Recording.replays - before == -(-NUM // tiles.rows) * (tiles.rows // tiles.chunk)
        assert same(found, sums(loss, weights, records, launched(tiles)))
        seen.append(found)
        with torch.no_grad():
            for weight in weights.values():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    assert not any(same(seen[0], other) for other in seen[1:])


def test_what_a_sum_returned_stays_as_it_was_in_the_next_replay():
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    first = sums(loss, weights, records, tiles)
    kept = [first.losses.clone(), *(part.clone() for part in first.sums.values())]
    sums(loss, weights, [part.flip(0) for part in records], tiles)
    assert all(torch.equal(*pair) for pair in zip(kept, [first.losses, *first.sums.values()], strict=True))


def test_other_shapes_clip_norms_and_losses_go_without_the_graph():
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    graph, before = next(iter(tiles.graphs.values())), Recording.replays
    some, null = [part[:5] for part in records], torch.zeros(5, dtype=torch.bool)  # a short chunk
    total, expected = ({name: torch.zeros(w.shape, dtype=torch.float64) for name, w in weights.items()} for _ in "ab")
    found, usual = graph.add(weights, some, null, total), graph.chunk.add(weights, some, null, expected)
    assert all(torch.equal(*pair) for pair in zip((*found, *total.values()), (*usual, *expected.values()), strict=True))
    other = DPSGDPlan(0.3, 8.0, 12, 1.0)
    unclipped = other.clipped_sum(loss, weights, tiled(records, tiles.rows), tiles)
    assert same(unclipped, other.clipped_sum(loss, weights, tiled(records, tiles.rows), launched(tiles)))
    assert not same(unclipped, sums(loss, weights, records, launched(tiles)))
    sums(case(1)[0], weights, records, tiles)
    assert Recording.replays == before
    sums(loss, weights, records, tiles)
    assert Recording.replays > before  # control: it is used where all fits


def spoil_sums(graph):
    graph.sums()[0].flatten()[0] += 1


class Stale:
    """A replay in which something of the one before is left: the first number that was computed is not new."""

    def __init__(self):
        self.left = None

    def __call__(self, graph):
        total = graph.sums()[0]
        now = total.clone()
        if self.left is not None:
            total.flatten()[0] = self.left.flatten()[0]
        self.left = now


@pytest.mark.parametrize("spoil", [spoil_sums, Stale()], ids=["other sums", "left of the last replay"])
def test_a_graph_that_gives_other_bits_is_not_used_and_that_is_said(spoil, monkeypatch, capsys):
    monkeypatch.setattr(Recording, "spoiled", staticmethod(spoil))
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    assert (tiles.way, tiles.graphs) == ("capture", {})
    assert capsys.readouterr().err == "cpu: steps go without CUDA graphs (a replay gives other bits).\n"
    assert same(sums(loss, weights, records, tiles), sums(loss, weights, records, launched(tiles)))


def test_a_loss_with_a_state_of_its_own_in_python_is_not_replayed(capsys):
    """It gives other numbers at every call; a recorded one cannot."""
    inner, weights, records = case()
    calls = []

    def loss(given, *record):
        calls.append(1)
        return inner(given, *record) * len(calls)

    assert decided(loss, weights, records).way == "capture"
    assert "other bits" in capsys.readouterr().err


def test_a_loss_that_asks_the_device_cannot_be_recorded_and_steps_go_on(monkeypatch, capsys):
    monkeypatch.setattr(layer_gradients, "is_gpu", lambda device: False)  # a processor's form looks at its tensors
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    assert tiles.way == "capture"
    assert "not permitted when stream is capturing" in capsys.readouterr().err
    assert float(sums(loss, weights, records, tiles).norms.nansum()) > 0


def test_without_a_driver_steps_go_on(monkeypatch, capsys):
    def none():
        raise RuntimeError("no driver\nand more lines")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", none)
    assert decided(*case()).way == "capture"
    assert capsys.readouterr().err == "cpu: steps go without CUDA graphs (RuntimeError: no driver).\n"


def test_a_loss_that_is_not_captured_is_left_to_torch_func():
    inner, weights, records = case()
    odd = next(iter(weights))
    loss = lambda given, *record: inner(given, *record) + given[odd].square().sum()  # noqa: E731
    assert decided(loss, weights, records).way == "vmap"


def test_saved_tiles_are_recorded_anew_or_given_up(monkeypatch):
    loss, weights, records = case()
    tiles = decided(loss, weights, records)
    saved = Tiles.from_state(tiles.state())
    assert (saved.way, saved.graphs) == ("graph", {})
    assert decided(loss, weights, records, saved=saved) is saved
    assert len(saved.graphs) == 1
    monkeypatch.setattr(Recording, "spoiled", staticmethod(spoil_sums))
    assert decided(loss, weights, records, saved=Tiles.from_state(tiles.state())).way == "capture"


def test_steps_with_and_without_graphs_move_the_weights_alike_and_noise_is_in_no_graph(monkeypatch):
    drawn, inner = [], DPSGDPlan.grid_noise
    monkeypatch.setattr(DPSGDPlan, "grid_noise", lambda *given: drawn.append(1) or inner(*given))
    ends = []
    for way in ("capture", "graph"):
        torch.manual_seed(0)
        loss, weights, records = case()
        tiles, noise, optimizer = (
            decided(loss, weights, records, way),
            Noise.fixed(3),
            torch.optim.SGD(weights.values(), 0.1),
        )
        assert tiles.way == way
        for _ in range(3):
            index = PLAN.sample(NUM, noise, tiles)
            batches = (([part[each.clamp(min=0)] for part in records], each < 0) for each in index)
            PLAN.noisy_step(optimizer, weights, PLAN.clipped_sum(loss, weights, batches, tiles).sums, noise)
        ends.append(torch.cat([weight.detach().flatten() for weight in weights.values()]))
    assert torch.equal(*ends)
    assert (len(drawn), Recording.replays > 3) == (6, True)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_method_asks_for_graphs_only_where_it_is_told_to_and_a_gpu_is_there(gpu, monkeypatch):
    config = trainer.load_config(
        Path("digits-dp-sgd"), ["method.width=4", "training.steps=3", "training.batch_size=24"]
    )
    split, ends = load(config.data), []
    monkeypatch.setattr(steps, "is_gpu", lambda device: gpu)
    for asked in (None, True):
        if asked:
            monkeypatch.setattr(steps.PrivateSteps, "graphs", asked)
        plan = plan_run(config, split.shape)
        ledger = Ledger(plan.unit, plan.relation)
        method = Method(plan, split, ledger=ledger, device=torch.device("cpu"), noise=Noise.fixed(0))
        assert method.tiles.way == ("graph" if asked and gpu else "capture")
        for step in (1, 2):
            method.step(step)
        ends.append(torch.cat([weight.detach().flatten() for weight in method.weights().values()]))
    assert torch.equal(*ends)
    assert bool(Recording.replays) == gpu
