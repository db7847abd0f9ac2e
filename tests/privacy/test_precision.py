import pytest
import torch

from idpgan.privacy import DPSGDPlan
from idpgan.privacy.dpsgd import full_precision
from tests.privacy.clipped import clipped


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
