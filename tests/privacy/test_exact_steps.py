"""Steps of DP-SGD, bit by bit: the parts of the proof in `idpgan.privacy.dpsgd`, and frauds that must be caught."""

import contextlib
import dataclasses
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.private_classifier import GroupNormCnn
from idpgan.privacy import DPSGDPlan, Noise, dpsgd, graphs, layer_gradients
from idpgan.privacy.captured_gradients import record_gradients
from idpgan.privacy.layer_gradients import LayerGradient, Materialized
from idpgan.privacy.tiles import Tiles, alike, sizes, threads_of, tiled
from idpgan.synthesis.critic_loss import CriticLoss
from tests.privacy.clipped import clipped

NUM, PLAN = 40, DPSGDPlan(0.3, 0.5, 12, 1.0)
S = 2**32  # grid steps of a clip norm


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# 1. Isolation --------------------------------------------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(24, 3)

    def forward(self, words):
        return self.last(self.norm(self.table(words)).flatten(1))


LAYERS = {
    "linear": (lambda: nn.Linear(61, 37), (61,)),
    "linear on rows": (lambda: nn.Sequential(nn.Linear(13, 21), nn.Tanh(), nn.Linear(21, 5)), (7, 13)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 17, 3, 2, 1), nn.ReLU(), nn.Conv2d(17, 5, 3)), (3, 11, 11)),
    "groups, dilation": (lambda: nn.Conv2d(4, 6, 3, 2, 1, dilation=2, groups=2), (4, 9, 9)),
    "odd SiLU": (lambda: nn.Sequential(nn.Linear(3, 1601), nn.SiLU(), nn.Linear(1601, 2)), (3,)),  # 2 or 4 parts
    "odd ELU": (lambda: nn.Sequential(nn.Conv2d(1, 5, 3), nn.ELU(), nn.Softplus(), nn.Conv2d(5, 1, 7)), (1, 23, 23)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.LeakyReLU(0.2)), (1, 8, 8)),
}


def network_loss(name):
    """Return loss, weights and NUM records of a network that we support."""
    torch.manual_seed(0)
    if name == "embedding":
        model, records = Words(), [torch.arange(NUM * 4).reshape(NUM, 4) * 5 % 7]
        loss = lambda weights, words: functional_call(model, weights, (words[None],)).sin().sum()  # noqa: E731
    elif name in ("critic", "penalty"):
        model = Critic(ModelConfig(width=4 if name == "penalty" else 8), (1, 8, 8), 10)
        kind = "wgan-gp" if name == "penalty" else "non-saturating"
        labels = torch.arange(NUM) % 10
        records = [drawn(NUM, 1, 8, 8), labels, drawn(NUM, 1, 8, 8, seed=1), torch.full((NUM,), 0.3), (labels + 3) % 10]
        loss = CriticLoss(model, kind, penalty=10.0, paired=True, mismatch=0.5).of_record
    elif name == "classifier":
        model, records = GroupNormCnn((1, 8, 8), ("a", "b", "c"), width=8, seed=0), [drawn(NUM, 1, 8, 8)]
        records += [torch.arange(NUM) % 3]

        def loss(weights, image, label):
            return nn.functional.cross_entropy(functional_call(model, weights, (image[None],)), label[None])
    else:
        make, shape = LAYERS[name]
        model, records = make(), [drawn(NUM, *shape)]
        loss = lambda weights, x: functional_call(model, weights, (x[None],)).tanh().square().sum()  # noqa: E731
    return loss, dict(model.named_parameters()), records


def tiles_of(loss, weights, records, plan=PLAN, most=5):
    return plan.tiles(loss, weights, [part[:1] for part in records], num=NUM, most=most)


def contributions(loss, weights, records, index, tiles, null=None, plan=PLAN):
    """Return what every drawn record adds to a step's sum by itself, {position: whole numbers (P,)}."""
    rows, inner = [], layer_gradients.scaled

    def watched(*arguments):
        for some, parts, factors, norms in inner(*arguments):
            whole = map(layer_gradients.cut, map(torch.clone, parts), factors)
            rows.extend(torch.cat([*whole], 1).double())
            yield some, parts, factors, norms

    device = records[0].device
    null = torch.zeros(NUM, dtype=torch.bool, device=device) if null is None else null.to(device)
    places = tiles.places(index.to(device))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_gradients, "scaled", watched)
        batches = (([part[i] for part in records], null[i] | (i < 0)) for i in places)
        plan.clipped_sum(loss, weights, batches, tiles)
    chunks = [part for p in places for part in p.split(tiles.chunk)]
    if device.type == "cpu":  # a GPU computes chunks without records too
        chunks = [part for part in chunks if not bool((null[part] | (part < 0)).all())]
    slots = [i for part in chunks for i in part]
    return {int(i): row for i, row in zip(slots, rows, strict=True) if i >= 0}


INDEX = torch.tensor([0, 1, 4, 6, 9, 13, 17, 18, 22, 23, 29, 31, 36])
OUT = {"zero": 0.0, "not a number": math.nan, "infinite": math.inf, "denormal": 1e-41, "huge": 1e30}


def moved_others(loss, weights, records, tiles_for):
    """Return which positions' contributions change when record 9 does, by the kind of change."""
    base, moved = contributions(loss, weights, records, INDEX, tiles_for(INDEX, records)), {}

    def compare(name, index=INDEX, own=records, null=None):
        found = contributions(loss, weights, own, index, tiles_for(index, own), null)
        moved[name] = [i for i in base.keys() & found.keys() - {9} if not torch.equal(base[i], found[i])]

    for name, value in OUT.items():
        own = [part.clone() for part in records]
        for part in own:
            part[9] = value if part.is_floating_point() else 0
        compare(name, own=own)
    compare("null", null=torch.arange(NUM) == 9)
    compare("not drawn", INDEX[INDEX != 9])
    compare("first not drawn", INDEX[1:])
    compare("more drawn", torch.cat([INDEX, torch.tensor([37, 38])]))
    compare("many more drawn", torch.arange(NUM))
    compare("another order", INDEX.flip(0))
    return {name: places for name, places in moved.items() if places}


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@contextlib.contextmanager
def threads_set(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


THREADS = [None, *slow(1, 2, 3, 4, 6, 8, 11, 16)]  # None: those of the suite
NAMES = [*LAYERS, "embedding", "critic", "penalty", "classifier"]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("most", [5, 32])  # every slot of its own kind; slots that were found alike
@pytest.mark.parametrize("name", NAMES)
def test_what_a_record_adds_hangs_on_no_other_record(name, most, threads):
    with threads_set(threads):
        loss, weights, records = network_loss(name)
        most = 16 if name == "penalty" and most == 5 else most  # else slow
        tiles = tiles_of(loss, weights, records, most=most)
        assert tiles.way == ("vmap" if name == "penalty" else "capture")
        assert moved_others(loss, weights, records, lambda *_: tiles) == {}


ACTIVATIONS = [nn.ELU, nn.Softplus, nn.Mish, nn.GELU, nn.Tanh, nn.Sigmoid]


@pytest.mark.parametrize(
    ("threads", "activation", "way", "most"),
    [
        *((8, nn.SiLU, way, 32) for way in ("capture", "vmap")),
        *(pytest.param(threads, nn.SiLU, "capture", 64, marks=pytest.mark.slow) for threads in range(1, 17)),
        *(
            pytest.param(7, each, way, 192, marks=pytest.mark.slow)
            for each in ACTIVATIONS
            for way in ("capture", "vmap")
        ),
    ],
)
def test_slots_that_are_called_alike_give_any_record_the_same_bits(threads, activation, way, most):
    """8 threads took 7 parts of 28,101 numbers: each ended amid a vector, in 5 numbers by the scalar function."""
    model = nn.Sequential(nn.Linear(3, 6147), activation(), nn.Linear(6147, 2))
    loss = lambda weights, x: functional_call(model, weights, (x[None],)).tanh().square().sum()  # noqa: E731
    weights, plan = dict(model.named_parameters()), dataclasses.replace(PLAN, sample_rate=0.9)
    with threads_set(threads):
        tiles = plan.tiles(loss, weights, [torch.zeros(1, 3)], num=300, most=most, way=way)
        assert (tiles.way, tiles.chunk) == (way, most)
        kinds = tiles.kinds[:most]  # how many there are depends on the processor's matrix products
        assert len(kinds.unique()) < most
        with tiles.computing():
            for seed in range(20):
                alone = drawn(1, 3, seed=seed).expand(most, -1).contiguous()
                found, losses = record_gradients(loss, weights, [alone], way)
                rows = torch.cat([torch.cat(part, 1).clone() for _, part in layer_gradients.blocks(found, len(losses))])
                assert all(bool((rows[kinds == kind] == rows[kinds == kind][0]).all()) for kind in kinds.unique())


@pytest.mark.slow  # processes of their own: OpenMP reads these once
@pytest.mark.parametrize("variable", ["OMP_DYNAMIC=true", "OMP_THREAD_LIMIT=3", "GOMP_SPINCOUNT=0", "MKL_DYNAMIC=TRUE"])
def test_slots_are_alike_whatever_openmp_is_told(variable):
    words = "alike or hangs_on_no_other_record"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", words, "--threads", "8"]
    told = dict([variable.split("=")])
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("most", [5, 32])
@pytest.mark.parametrize("name", [*LAYERS, "embedding", "critic", "penalty", "classifier"])
def test_what_a_record_adds_on_a_gpu_hangs_on_no_other_record(name, most):
    loss, weights, records = network_loss(name)
    weights, records = {n: weight.detach().cuda() for n, weight in weights.items()}, [part.cuda() for part in records]
    tiles = tiles_of(loss, weights, records, most=16 if name == "penalty" and most == 5 else most)
    assert moved_others(loss, weights, records, lambda *_: tiles) == {}


def scaled(gradient, off, num):
    rows = torch.empty(num, gradient.width)
    gradient.write_rows(slice(None), rows)
    return Materialized((rows * off).view(-1, *gradient.shape))


def coded_by_shape(loss, weights, chunk, way):
    """A library that computes batches of odd length in another way: one bit further off."""
    gradients, losses = record_gradients(loss, weights, chunk, way)
    off = 1 + 2.0**-20 * (len(losses) % 2)
    return {name: scaled(part, off, len(losses)) for name, part in gradients.items()}, losses


def coded_by_slot(loss, weights, chunk, way):
    """A library that computes the last two rows of a batch by other code."""
    gradients, losses = record_gradients(loss, weights, chunk, way)
    off = 1 + 2.0**-20 * (torch.arange(len(losses)) >= len(losses) - 2)[:, None]
    return {name: scaled(part, off, len(losses)) for name, part in gradients.items()}, losses


def by_number(index, records):
    return Tiles.fixed(len(index))


def by_content(index, records):
    return Tiles.fixed(5 if float(records[0][9].abs().max()) > 1 else 6)


def without_slots(index, records):
    return Tiles(20, torch.zeros(20, dtype=torch.int64), 5)


FRAUDS = {
    "no tiles": (coded_by_shape, by_number, "not drawn"),
    "tile size by content": (coded_by_shape, by_content, "zero"),
    "no slots": (coded_by_slot, without_slots, "first not drawn"),
}


@pytest.mark.parametrize("fraud", FRAUDS)
def test_a_layout_that_hangs_on_the_records_is_caught_and_ours_withstands_the_same_library(fraud, monkeypatch):
    library, layout, change = FRAUDS[fraud]
    loss, weights, records = network_loss("linear")
    monkeypatch.setattr(graphs, "record_gradients", library)
    assert change in moved_others(loss, weights, records, layout)
    tiles = tiles_of(loss, weights, records)
    assert moved_others(loss, weights, records, lambda *_: tiles) == {}


def test_slots_that_compute_alike_are_found_and_no_others():
    def computed(draws):
        row = torch.rand(1, 9, generator=draws).expand(8, -1).clone()
        row[5:] += 2.0**-20
        yield slice(0, 3), row[:3]
        yield slice(3, 8), row[3:]

    kinds = alike(16, (8, computed)).tolist()
    assert kinds in ([*[0] * 5, *[1] * 3] * 2, [*[1] * 5, *[0] * 3] * 2)
    each = lambda draws: [(slice(0, 40), torch.rand(40, 2, generator=draws))]  # noqa: E731
    assert alike(40, (40, each)).tolist() == list(range(40))  # more kinds than are worth it: every slot its own


def test_slots_are_alike_only_where_vector_loops_leave_no_rest():
    loss, weights, records = network_loss("critic")
    assert tiles_of(loss, weights, records, most=37).rows == 32
    assert tiles_of(loss, weights, records, most=31).kinds.tolist() == [*range(24)]
    assert set(tiles_of(loss, weights, records, most=32).kinds.tolist()) == {0}


FUNCTIONS = ["silu", "gelu", "tanh", "sigmoid", "softplus", "elu", "selu", "mish", "logsigmoid", "hardswish"]


def odd_rows(name, rows, width, threads):
    """Return which rows of one record have other bits than the first."""
    with threads_set(threads):
        row = drawn(1, width, seed=threads).expand(rows, -1).contiguous()
        found = getattr(nn.functional, name)(row)
    return [*torch.nonzero((found != found[0]).any(1))[:, 0].tolist()]


@pytest.mark.parametrize("threads", [2, 3, 8, *slow(4, 5, 6, 7, 12, 16)])
def test_the_threads_of_a_chunk_split_every_loop_at_whole_records_and_vectors(threads):
    with threads_set(threads):
        found = {rows: threads_of(rows, torch.device("cpu")) for rows in (31, 32, 64, 96, 192, 384)}
        assert found == {31: 0, 32: 1, 64: 2, 96: 1, 192: min(threads, 3), 384: min(threads, 4)}
        assert threads_of(64, torch.device("cuda")) == threads
    for rows, number in found.items():
        for parts in range(1, number + 1):  # each part, whatever torch takes
            assert (rows // parts * parts, rows // parts % 32) == (rows, 0)
    sizes = [(32, 3073), (64, 1537), (64, 1601), (96, 1025), (192, 515)]
    odd = {(name, *size): odd_rows(name, *size, found[size[0]]) for name in FUNCTIONS for size in sizes}
    assert [case for case, rows in odd.items() if rows] == []
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and threads == 3:  # the control
        assert any(odd_rows("silu", 64, width, threads) for width in range(1537, 1561, 2))


def test_where_openmp_varies_its_threads_one_computes(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert Tiles.fixed(5).threads == 8
    for value in ("TRUE", "true", " 1"):
        monkeypatch.setenv("OMP_DYNAMIC", value)
        assert (threads_of(384, torch.device("cpu")), Tiles.fixed(5).threads) == (1, 1)
    monkeypatch.setenv("OMP_DYNAMIC", "False")
    assert threads_of(384, torch.device("cpu")) == 4


def test_a_layout_survives_its_state_and_the_threads_come_back():
    before = torch.get_num_threads()
    tiles = Tiles(6, torch.tensor([0, 1, 0, 1, 0, 1]), 3, "vmap", before + 1)
    again = Tiles.from_state(tiles.state())
    assert repr(again) == repr(tiles)
    with pytest.raises(KeyError) as within, again.computing():
        raise KeyError(torch.get_num_threads())
    assert (within.value.args, torch.get_num_threads()) == ((before + 1,), before)


@given(st.lists(st.integers(0, 99), unique=True), st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_every_drawn_record_has_one_slot_of_its_kind(index, kinds):
    kinds = torch.unique(torch.tensor(kinds), return_inverse=True)[1]
    index = torch.tensor(sorted(index), dtype=torch.int64)
    places = Tiles(len(kinds), kinds, len(kinds)).places(index)
    assert sorted(places[places >= 0].tolist()) == index.tolist()
    for place in places:
        for slot, record in enumerate(place.tolist()):
            assert record < 0 or kinds[record % len(kinds)] == kinds[slot]


def test_sizes_follow_from_public_numbers():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert sizes(1.0, 1295, 1000, cpu) == (648, 648)  # twice
    assert sizes(0.05, 1295, 64, cpu) == (128, 64)
    assert sizes(0.02, 1295, 64, cpu) == (64, 32)
    assert sizes(0.05, 1295, 7, cpu) == (84, 7)
    assert sizes(0.5, 100_000, 64, cpu) == (1024, 64)
    assert sizes(1e-9, 5, 64, cpu) == (32, 32)
    assert sizes(0.05, 1295, 2048, gpu) == (96, 96)  # one chunk holds the 65 that are expected, and 16 more
    assert sizes(0.5, 100_000, 2048, gpu) == (2048, 2048)


# 2. The norm of what is added ----------------------------------------------------------------------------------------


def length(row):
    """Return the square of the norm of whole numbers, exactly."""
    return sum(int(number) ** 2 for number in row.tolist())


def of_gradient(gradient, plan):
    """Return what a record of this gradient adds, whole numbers."""
    loss = lambda weights, record: (weights["w"] * record).sum()  # noqa: E731
    batches = tiled([gradient[None]], 1)
    return plan.clipped_sum(loss, {"w": torch.zeros_like(gradient)}, batches, Tiles.fixed(1, "vmap")).sums["w"]


@settings(max_examples=40)
@given(
    st.integers(1, 300),
    st.floats(1e-6, 1e6),
    st.floats(-8, 8),
    st.sampled_from([1 - 2e-5, 1 - 1e-5, 1.0, 1 + 1e-7, 2.0, 1e8, 1e-9]),
    st.integers(0, 999),
)
def test_no_row_is_longer_than_the_clip_norm(width, clip_norm, spread, size, seed):
    """Near C, far above and far below it, numbers of one size and of many: whole numbers, so checked exactly."""
    plan = DPSGDPlan(0.5, clip_norm, 1, 1.0)
    row = drawn(width, seed=seed).double() * 10 ** (spread * drawn(width, seed=seed + 1).double().clamp(-1, 1))
    row *= size * clip_norm / row.norm()
    found = of_gradient(row, plan)
    assert length(found) <= S**2
    reached, coarse = min(1.0, size) * S, S / 2**25  # a row of whole numbers up to 2^25
    assert math.sqrt(length(found)) > reached * (1 - 2.1e-5) - coarse * math.sqrt(width)


def test_factors_rounded_as_tf32_does_would_exceed_the_clip_norm():
    """The control: products of a tensor core have 10 bits."""
    row = torch.full((1 << 10,), 1.0 + 2.0**-10 - 2.0**-12).double()
    honest = of_gradient(row, DPSGDPlan(0.5, 1.0, 1, 1.0))
    assert length(honest) <= S**2
    rounded = torch.round(row * 2**10) / 2**10  # to nearest, as it goes into a product
    factor = (1 - 1e-5) / row.norm()
    assert length((rounded * factor * S).trunc()) > S**2


def test_a_gradient_that_is_not_finite_and_one_below_a_step_add_nothing():
    plan = DPSGDPlan(0.5, 1.0, 1, 1.0)
    for number in (math.nan, math.inf, -math.inf, 1e-10, 1e-320, 1e200 * 1e200):
        assert not of_gradient(torch.tensor([number, 0.0]).double(), plan).any()


# 3. Exact addition ---------------------------------------------------------------------------------------------------


def test_the_sum_is_the_same_bit_for_bit_in_any_order_and_in_any_parts():
    loss, weights, records = network_loss("critic")
    tiles = tiles_of(loss, weights, records)
    rows = torch.stack(list(contributions(loss, weights, records, torch.arange(NUM), tiles).values()))
    whole = [sum(map(int, column)) for column in rows[:, :50].T.tolist()]
    for seed in range(5):
        order = torch.randperm(NUM, generator=torch.Generator().manual_seed(seed))
        parts = rows[order].split(seed + 1)
        total = sum(part.sum(0) for part in parts)
        assert total[:50].tolist() == whole
    single = [rows[torch.randperm(NUM, generator=torch.Generator().manual_seed(s))].float().sum(0) for s in range(5)]
    assert not all(torch.equal(single[0], other) for other in single[1:])  # the control: sums in float32


@pytest.mark.parametrize(("bits", "right"), [(None, True), (33, False)])  # the control: sums leave 32 bits
def test_a_chunk_of_equal_records_adds_up_to_as_many_times_one(bits, right, monkeypatch):
    """All of them clipped, all in one number, more than a block: no sum of integers is as large."""
    if bits:
        monkeypatch.setattr(layer_gradients, "_SUM_BITS", bits)
    plan, loss = DPSGDPlan(0.5, 1.0, 1, 1.0), lambda weights, record: (weights["w"] * record).sum()

    def total(num):
        batches = tiled([torch.full((num, 1), 7.0)], num)
        return float(plan.clipped_sum(loss, {"w": torch.zeros(1)}, batches, Tiles.fixed(num, "vmap")).sums["w"])

    assert (abs(total(300) / 300 - (1 - 1e-5) * S) < S * 1e-6) == right


def test_small_weights_that_share_a_row_add_up_to_the_same(monkeypatch):
    """Unclipped, so that no norm is in it."""
    plan, (loss, weights, records) = dataclasses.replace(PLAN, clip_norm=1e4), network_loss("critic")

    def sums():
        return plan.clipped_sum(loss, weights, tiled(records, NUM), Tiles.fixed(NUM)).sums

    shared = sums()
    monkeypatch.setattr(layer_gradients, "_SMALL", 0)
    apart = sums()
    assert [*shared] == [*apart] == [*weights]
    assert all(torch.equal(shared[name], apart[name]) and shared[name].any() for name in weights)


def test_more_rows_than_add_up_exactly_are_refused(monkeypatch):
    assert PLAN.most_rows * S == 2**52  # and as many public ones
    monkeypatch.setattr(DPSGDPlan, "most_rows", 8)
    with pytest.raises(ValueError, match="8 at most"):
        clipped(PLAN, *network_loss("linear"), physical_batch=5)
    with pytest.raises(dpsgd.InputError, match="8 records at most"):
        dataclasses.replace(PLAN, sample_rate=1.0).poisson_sample(9, Noise.fixed(0))


def test_a_layer_adds_whole_rows_without_rounding():
    """Rows near the largest number that a block may have."""
    gradient = LayerGradient(torch.zeros(3))
    number = 2**30 // layer_gradients.together({"w": gradient})
    rows = torch.full((2**30 // number, 3), number - 1, dtype=torch.int32)
    total = torch.full((3,), 2.0**52, dtype=torch.float64)
    gradient.add(rows, slice(None), total)
    assert total.tolist() == [2**52 + (number - 1) * len(rows)] * 3
