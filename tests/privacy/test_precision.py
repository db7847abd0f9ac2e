from pathlib import Path

import pytest
import torch

from idpgan.config import load_table
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.privacy import DPSGDPlan
from idpgan.privacy.precision import check_precision, full_precision, products_dtype
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.privacy.clipped import clipped
from tests.privacy.test_exact_steps import INDEX, NUM, PLAN, contributions, moved_others, network_loss


@pytest.fixture(autouse=True)
def tf32_is_on():
    parts = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = tf32()
    for part in parts:
        part.fp32_precision = "tf32"
    yield
    for part, value in zip(parts, before, strict=True):
        part.fp32_precision = value


def tf32():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


def test_tf32_is_off_inside_and_as_it_was_after_an_error_too():
    with full_precision():
        assert tf32() == ("ieee", "ieee")
    assert tf32() == ("tf32", "tf32")
    with pytest.raises(RuntimeError, match="inside"), full_precision():
        raise RuntimeError("inside")
    assert tf32() == ("tf32", "tf32")


@pytest.mark.parametrize("way", ["capture", "vmap"])
def test_gradients_that_are_clipped_are_computed_without_tf32(way):
    seen = []

    def loss(weights, record):
        seen.append(tf32())
        return (torch.nn.functional.linear(record, weights["w"])).square().sum()

    plan = DPSGDPlan(sample_rate=0.5, clip_norm=1.0, divisor=4, noise_multiplier=1.0)
    clipped(plan, loss, {"w": torch.ones(2, 3)}, [torch.ones(4, 3)], physical_batch=4, way=way)
    assert set(seen) == {("ieee", "ieee")}
    assert tf32() == ("tf32", "tf32")


@pytest.mark.parametrize("name", ["linear on rows", "convolution", "critic", "penalty"])
def test_in_bfloat16_what_a_record_adds_hangs_on_no_other_record(name):
    loss, weights, records = network_loss(name)
    record = [part[:1] for part in records]
    exact, rounded = (PLAN.tiles(loss, weights, record, num=NUM, most=8, precision=p) for p in ("float32", "bf16"))
    assert rounded.way == exact.way
    assert moved_others(loss, weights, records, lambda *_: rounded) == {}
    rows = [torch.stack([*contributions(loss, weights, records, INDEX, t).values()]) for t in (exact, rounded)]
    assert all(bool((torch.linalg.vector_norm(part, dim=1) <= 2**30 / 8).all()) for part in rows)  # part 2 of the proof
    along = torch.nn.functional.cosine_similarity(*rows)
    assert bool((along > 0.98).all())
    assert bool((along < 1 - 1e-9).all())  # else nothing was rounded


def test_in_bfloat16_the_products_of_each_record_are_bfloat16_too():
    loss, weights, records = network_loss("linear on rows")
    seen = []

    def watched(left, right, **arguments):
        seen.append((left.dtype, right.dtype))
        return multiplied(left, right, **arguments)

    multiplied = torch.bmm
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        tiles = PLAN.tiles(loss, weights, [part[:1] for part in records], num=NUM, most=8, precision=precision)
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "bmm", watched)
            contributions(loss, weights, records, INDEX, tiles)
        assert seen
        assert {*seen} == {(dtype, dtype)}
    assert products_dtype(torch.float32) == torch.float32  # nothing stays behind


def test_a_precision_that_is_not_there_is_refused():
    cpu = torch.device("cpu")
    check_precision("bf16", cpu)
    with pytest.raises(ConfigError, match=r'"tf32", which cpu does not have\. It has float32, bf16'):
        check_precision("tf32", cpu)


@pytest.mark.parametrize("name", ["digits-dp-gan", "digits-diffusion", "digits-dp-sgd"])
def test_a_run_refuses_a_precision_that_its_device_does_not_have(name):
    shape = DataShape(Sizes(0, 1295, 0, 0), (1, 8, 8), tuple("0123456789"))

    def plan_in(precision):
        table = load_table(Path(name))
        table["training"] |= {"device": "cpu", "precision": precision}
        return plan_run(build_config(table, name), shape)

    plan_in("bf16").check()
    with pytest.raises(ConfigError, match='"tf32", which cpu does not have'):
        plan_in("tf32").check()


@pytest.mark.parametrize(
    "method", [{"name": "scattering-linear"}, {"name": "gaussian"}, {"name": "dp-sgd", "engine": "opacus"}]
)
def test_a_precision_is_refused_where_no_rows_are_made(method):
    table = {"method": method, "privacy": {"epsilon": 1.0, "delta": 1e-5}, "training": {"precision": "bf16"}}
    with pytest.raises(ConfigError, match="gradient of each record by itself"):
        build_config(table, "test")
    build_config({**table, "method": {"name": "dp-sgd"}}, "test")
