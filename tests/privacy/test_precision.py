import pytest
import torch

from idpgan.privacy import DPSGDPlan
from idpgan.privacy.dpsgd import full_precision
from tests.privacy.clipped import clipped


@pytest.fixture(autouse=True)
def tf32_is_on():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = tf32()
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before


def tf32():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_tf32_is_off_inside_and_as_it_was_after_an_error_too():
    with full_precision():
        assert tf32() == (False, False)
    assert tf32() == (True, True)
    with pytest.raises(RuntimeError, match="inside"), full_precision():
        raise RuntimeError("inside")
    assert tf32() == (True, True)


@pytest.mark.parametrize("way", ["capture", "vmap"])
def test_gradients_that_are_clipped_are_computed_without_tf32(way):
    seen = []

    def loss(weights, record):
        seen.append(tf32())
        return (torch.nn.functional.linear(record, weights["w"])).square().sum()

    plan = DPSGDPlan(sample_rate=0.5, clip_norm=1.0, divisor=4, noise_multiplier=1.0)
    clipped(plan, loss, {"w": torch.ones(2, 3)}, [torch.ones(4, 3)], physical_batch=4, way=way)
    assert set(seen) == {(False, False)}
    assert tf32() == (True, True)
