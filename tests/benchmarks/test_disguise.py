"""Disguised images are reconstructed, and where they cannot be, the attack fails."""

import pytest
import torch
from papers.disguise import jigsaw, known_plaintext

from idpgan.data.faces import draw
from idpgan.data.images import to_unit
from idpgan.errors import InputError


def faces(num, seed):
    return to_unit(draw(num, 32, 1, people=num, seed=seed).images)


def disguised(images, *, block=8, seed=1, mix=True, noise=0.0):
    """The method written out block by block; returns the images and which block came where."""
    rng = torch.Generator().manual_seed(seed)
    grid = images.shape[2] // block
    order = torch.randperm(grid * grid, generator=rng)
    out = torch.empty_like(images)
    for place, source in enumerate(order.tolist()):
        y, x = place // grid * block, place % grid * block
        v, u = source // grid * block, source % grid * block
        matrix = torch.linalg.qr(torch.randn(block, block, generator=rng))[0] if mix else torch.eye(block)
        cut = (images[:, :, v : v + block, u : u + block] - 0.5) @ matrix / (3 if mix else 1) + 0.5
        out[:, :, y : y + block, x : x + block] = cut
    return out + noise * torch.randn(out.shape, generator=rng), order


def test_known_images_give_the_key_away():
    known, asked = faces(40, 1), faces(10, 2)
    both, order = disguised(torch.cat([known, asked]))
    key = known_plaintext(known, both[:40], 8)
    assert torch.equal(key.order, order)
    assert torch.allclose(key.reconstruct(both[40:]), asked, atol=1e-3)


def test_more_noise_leaves_more_error_and_more_pairs_less():
    known, asked = faces(60, 1), faces(10, 2)
    both, _ = disguised(torch.cat([known, asked]), noise=0.02)

    def error(pairs):
        key = known_plaintext(known[:pairs], both[:pairs], 8)
        return float((key.reconstruct(both[60:]) - asked).square().mean())

    spread = float((asked - known.mean(0)).square().mean())
    assert error(60) < 0.2 * spread
    assert error(60) < error(3)


def test_unrelated_pairs_give_nothing():
    asked = faces(10, 2)
    both, _ = disguised(torch.cat([faces(40, 1), asked]))
    key = known_plaintext(faces(40, 5), both[:40], 8)  # other people than those that were disguised
    error = float((key.reconstruct(both[40:]) - asked).square().mean())
    assert error > 0.5 * float((asked - faces(40, 1).mean(0)).square().mean())  # of the mean face, for everybody


def test_permuted_blocks_are_put_together_by_their_edges_and_mixed_ones_are_not():
    images = faces(60, 3)
    hidden, order = disguised(images, mix=False)
    key = jigsaw(hidden, 8, typical=faces(200, 9).mean(0))
    assert torch.equal(key.order, order)
    assert torch.allclose(key.reconstruct(hidden), images, atol=1e-5)
    mixed, order = disguised(images)
    assert float((jigsaw(mixed, 8).order == order).float().mean()) < 0.5


def test_sides_that_no_blocks_fill_are_refused():
    with pytest.raises(InputError, match="block = 5 must divide"):
        known_plaintext(torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16), 5)
    with pytest.raises(InputError, match="their disguises"):
        known_plaintext(torch.rand(2, 1, 16, 16), torch.rand(3, 1, 16, 16), 4)
