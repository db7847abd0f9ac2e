"""Filters as blocks in the real Fourier basis, against the transforms that they stand for."""

import pytest
import torch

from idpgan.models.scattering import Axis, blocks_of


@pytest.mark.parametrize(("side", "coarsest"), [(2, 2), (12, 6), (12, 12), (36, 18), (40, 10)])
def test_the_basis_is_orthonormal_and_its_groups_are_those_of_every_factor(side, coarsest):
    axis = Axis(side, coarsest)
    assert torch.allclose(axis.basis @ axis.basis.T, torch.eye(side, dtype=torch.float64), atol=1e-12)
    factor = 1
    while side // factor >= coarsest:
        sampled = side // factor
        alias = axis.frequencies.view(-1, 2 * factor) % sampled
        mirror = torch.minimum(alias, -alias % sampled)
        merged = torch.where(2 * mirror == sampled, 0, mirror)
        assert bool((merged == merged[:, :1]).all())
        # A group's functions have frequencies of that group alone.
        spectra = torch.fft.fft(axis.basis)[:, axis.frequencies].abs()
        outside = torch.block_diag(*[torch.ones(2 * factor, 2 * factor)] * len(alias)) == 0
        assert spectra[outside].max() < 1e-9 if outside.any() else len(alias) == 1
        factor *= 2


@pytest.mark.parametrize(("sides", "factor"), [((8, 8), 1), ((8, 12), 2), ((16, 24), 4), ((2, 4), 1)])
def test_blocks_filter_and_sample(sides, factor):
    rng = torch.Generator().manual_seed(0)
    signal = torch.randn(sides, generator=rng, dtype=torch.float64)
    filters = torch.randn(3, *sides, generator=rng, dtype=torch.float64)
    height, width = (side // factor for side in sides)
    coarsest = (height, width)
    expected = torch.fft.ifft2(torch.fft.fft2(signal) * filters)[:, ::factor, ::factor]

    before = [Axis(side, coarse).basis for side, coarse in zip(sides, coarsest, strict=True)]
    after = [Axis(side, side).basis for side in coarsest]
    size = 2 * factor
    numbers = (before[0] @ signal @ before[1].T).view(height // 2, size, width // 2, size).transpose(1, 2)
    found = blocks_of(filters, coarsest, factor) @ numbers.reshape(-1, size * size, 1)
    found = found.view(2, height // 2, width // 2, 2, 2, 3)  # 2 of rows, groups, groups, 2 of columns, part, L
    found = found.permute(4, 5, 1, 0, 2, 3).reshape(2, 3, height, width)
    found = after[0].T @ found @ after[1]
    assert torch.allclose(torch.complex(found[0], found[1]), expected, atol=1e-12)
