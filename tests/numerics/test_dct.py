"""The cosine basis against SciPy's transform."""

import pytest
import scipy.fft
import torch

from idpgan.numerics.dct import cosines


@pytest.mark.parametrize("shape", [(8, 8), (1, 5), (5, 7)])
def test_the_basis_is_scipys_orthonormal_transform(shape):
    height, width = shape
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    frequencies = [(u, v) for u in range(height) for v in range(width)]
    basis = cosines(height, width, frequencies)
    assert basis.is_contiguous()
    assert torch.allclose(basis.T @ basis, torch.eye(height * width, dtype=torch.float64))
    expected = torch.from_numpy(scipy.fft.dctn(image.numpy(), norm="ortho")).flatten()
    assert torch.allclose(image.flatten() @ basis, expected)
    some = frequencies[::-2]  # any order, any subset
    assert torch.equal(cosines(height, width, some), basis[:, [u * width + v for u, v in some]])
