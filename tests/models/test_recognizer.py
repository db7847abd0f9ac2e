"""The small recognizer of Liu et al.: any size of face, small, and the same again from one seed."""

import pytest
import torch

from idpgan.models.classifier import build_recognizer


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 112, 92), (3, 48, 40), (1, 231, 195)])
def test_it_takes_faces_of_any_size(shape):
    model = build_recognizer(shape, 7).eval()
    logits = model(torch.zeros(2, *shape))
    assert logits.shape == (2, 7)
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000


def test_one_seed_gives_the_same_weights_and_leaves_the_callers_random_state():
    state = torch.get_rng_state()
    one, same, other = (build_recognizer((1, 32, 32), 3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
