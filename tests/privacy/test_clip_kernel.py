"""The kernel of clipped sums in Triton's interpreter, against its torch form; a GPU compiles the same lines."""

import importlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from idpgan.privacy import clip_kernel, layer_gradients
from idpgan.privacy.layer_gradients import Materialized, clip_and_add, cut

pytest.importorskip("triton")
CPU = torch.device("cpu")


@pytest.fixture
def kernel(monkeypatch):
    """The module as Triton's interpreter runs it, which takes tensors of the CPU."""
    with monkeypatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(clip_kernel)
    importlib.reload(clip_kernel)


def extreme(rows, draws):
    """Put numbers of all sizes into some places, and rows that are not finite, whose factor is zero."""
    places = torch.rand(rows.shape, generator=draws) < 0.1
    sizes = torch.tensor([0.0, -0.0, 1e-45, 1e-38, -1e-20, 0.99999994, -1.0, 2.0**23 + 1, 1e19])
    rows[places] = sizes[torch.randint(len(sizes), (int(places.sum()),), generator=draws)]
    for value in (torch.nan, torch.inf, -torch.inf):
        rows[torch.randint(len(rows), (1,), generator=draws), :1] = value
    return rows


def random_case(seed):
    """Return rows of one shape or another, and the factors that bring each row's largest number to at most 2^30 / k."""
    draws = torch.Generator().manual_seed(seed)
    count, width = (int(torch.randint(1, top, (1,), generator=draws)) for top in (80, 1200))
    rows = torch.randn(count, width, generator=draws) * 10 ** (40 * torch.rand(count, 1, generator=draws) - 30)
    rows = extreme(rows, draws) if seed % 2 else rows
    most = rows.abs().amax(1).double()
    factors = torch.where(most < torch.inf, 2.0**30 / count / most.clamp(min=1e-28), 0.0).float()
    return rows, factors * (torch.rand(count, generator=draws) > 0.1)


def check_cases(kernel, seeds):
    for seed in seeds:
        rows, factors = random_case(seed)
        found = torch.full((rows.shape[1],), 7, dtype=torch.int32)
        kernel.add_scaled(rows, factors, found)
        assert torch.equal(found, 7 + cut(rows, factors).sum(0, dtype=torch.int32)), seed


def test_the_kernel_adds_the_numbers_of_the_torch_form(kernel):
    check_cases(kernel, range(20))


@pytest.mark.slow
def test_the_kernel_adds_the_numbers_of_the_torch_form_in_1000_shapes(kernel):
    check_cases(kernel, range(20, 1020))


def test_whole_clipped_sums_are_bit_equal_with_the_kernel(kernel, monkeypatch):
    draws = torch.Generator().manual_seed(0)
    many = torch.randn(70, 3, 40, generator=draws) * torch.logspace(-3, 3, 70)[:, None, None]
    many[5, 0, 0], many[6, 1, 1] = torch.nan, torch.inf
    counted = torch.arange(70) % 7 > 0
    gradients = {"weight": Materialized(many), "bias": Materialized(many[:, 0, :4].clone())}
    sums = []
    for form in (kernel.add_scaled, None):
        monkeypatch.setattr(layer_gradients, "fused", lambda _, form=form: form)
        total = {"weight": torch.zeros(3, 40, dtype=torch.float64), "bias": torch.zeros(4, dtype=torch.float64)}
        lengths = clip_and_add(gradients, counted, 1.0, 2.0**-40, total)
        sums.append((*total.values(), lengths.nan_to_num(-1.0)))
    assert all(torch.equal(*pair) for pair in zip(*sums, strict=True))
    assert sums[0][0].abs().sum() > 0


def test_it_is_used_where_it_gives_the_same_sums_alone(kernel, monkeypatch, capsys):
    assert kernel.holds(CPU)
    assert layer_gradients.fused(CPU) is kernel.add_scaled
    with monkeypatch.context() as patch:  # undone before the fixture is: else all tests after this one are interpreted
        patch.delenv("TRITON_INTERPRET")
        assert layer_gradients.fused(CPU) is None  # a CPU computes the torch form


@pytest.mark.parametrize("fault", ["differs", "fails"])
def test_a_kernel_that_differs_in_one_number_or_fails_is_not_used(kernel, fault, monkeypatch, capsys):
    def faulty(rows, factors, total):
        if fault == "fails":
            raise RuntimeError("no compiler\nmore")
        total += cut(rows.clone(), factors).sum(0, dtype=torch.int32)
        total[17] += 1

    monkeypatch.setattr(kernel, "add_scaled", faulty)
    kernel.holds.cache_clear()
    assert not kernel.holds(CPU)
    assert ("sums differ" if fault == "differs" else "RuntimeError: no compiler") in capsys.readouterr().err


class Moved(TorchDispatchMode):
    """Counts the bytes of all tensors of B rows or more that operations read and write."""

    def __init__(self, least):
        super().__init__()
        self.least, self.bytes = least, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        views = {"view", "slice", "split", "alias", "t", "transpose", "unsqueeze", "_unsafe_view", "detach", "empty"}
        if func.overloadpacket.__name__ not in views:
            tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor) and x.numel() >= self.least]
            self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return result


def test_a_record_moves_three_times_the_bytes_of_its_gradient(monkeypatch):
    # once written as a product of a layer's inputs and output gradients, once read for its norm, once by the kernel
    batch, inputs, outputs = 16, 256, 256
    layer, images = nn.Linear(inputs, outputs, bias=False), torch.randn(batch, inputs)
    call = layer_gradients.LinearCall()
    call.keep(images[:, None])
    call.arrive(torch.randn(batch, 1, outputs))
    gradients = {"weight": layer_gradients.Outer([call], layer.weight)}
    read = []

    def counting(rows, factors, total):
        read.append(rows.numel() * rows.element_size())  # it reads each number once, and writes one row

    shares = {}
    for name, form in (("kernel", counting), ("torch", None)):
        monkeypatch.setattr(layer_gradients, "fused", lambda _, form=form: form)
        total = {"weight": torch.zeros(outputs, inputs, dtype=torch.float64)}
        with Moved(batch * inputs * outputs) as moved:
            clip_and_add(gradients, torch.ones(batch, dtype=torch.bool), 1.0, 2.0**-40, total)
        shares[name] = (moved.bytes + sum(read)) / (batch * inputs * outputs * 4)
        read.clear()
    assert 2.9 < shares["kernel"] <= 3.5
    assert shares["torch"] > 5  # the count sees what the kernel saves
