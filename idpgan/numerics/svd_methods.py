r"""Ways to decompose a batch of matrices ``A = U diag(S) V^T``; `idpgan.numerics.svd` chooses among them.

Every function takes ``A`` of shape (B, m, n), m >= n, scaled so that the largest entry of a matrix is in [0.5, 1) or
the matrix is 0. It returns U (B, m, n), S (B, n) non-increasing and V (B, n, n), or as many columns as asked for.
Errors in the docstrings are relative to the largest singular value; eps is that of the dtype of ``A`` (1.2e-7 or
2.2e-16). U and V have orthonormal columns to about 20 eps whatever the rank, the zero matrix included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor, Tensor]
Eigensolver = Callable[[Tensor], tuple[Tensor, Tensor]]

_SAFE_CONDITION = 1e4  # the Gram route keeps U orthonormal to 2.2e-16 * 1e8 = 2e-8 up to here
_MAX_SWEEPS = 30  # Jacobi: 6 to 10 are usual; unconverged matrices go to LAPACK
_BLOCK = 16  # columns of a block: pairs are 32 wide, the largest size that torch 2.11 solves in one cuSOLVER call
_MORE_ROUNDS = 2  # extra rounds of `subspace`; with them rank 20 worked on all of ORL's faces and all drawn faces tried
_NEARLY = 200.0  # a residual up to this multiple of its limit gets more rounds, cheaper than a full decomposition
_EIGH_BATCH = 32_768  # cusolverDnXsyevBatched refuses 65,536 matrices


def safe_svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose ``A = U diag(S) Vh`` by ``torch.linalg.svd``, or by QR iteration if that fails to converge.

    Divide and conquer (LAPACK gesdd) fails on rare matrices: "The algorithm failed to converge because the input matrix
    is ill-conditioned or has too many repeated singular values". One such is a release of SRA, whose isotonic step
    repeats values. One failure invalidates the whole batch, so its matrices are then decomposed one by one.

    ``matrices`` are (..., m, n), floating point, finite. Returns U (..., m, r), S (..., r) non-increasing and
    Vh (..., r, n), r = min(m, n).

    Raises:
        torch.linalg.LinAlgError: If an entry is not finite (on the CPU).
    """
    try:
        return torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:
        if not bool(matrices.isfinite().all()):
            raise
    parts: list[Sequence[Tensor]] = []
    for matrix in matrices.reshape(-1, *matrices.shape[-2:]):
        try:
            parts.append(torch.linalg.svd(matrix, full_matrices=False))
        except torch.linalg.LinAlgError:
            import scipy.linalg

            factors = scipy.linalg.svd(matrix.double().cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
            parts.append([torch.from_numpy(factor).to(matrix) for factor in factors])
    stacked = (torch.stack(factor) for factor in zip(*parts, strict=True))
    left, values, right = (factor.reshape(*matrices.shape[:-2], *factor.shape[1:]) for factor in stacked)
    return left, values, right


def lapack(A: Tensor) -> Factors:
    """Divide and conquer (LAPACK gesdd) on the CPU, the vendor's routine matrix by matrix on a GPU.

    Singular values, reconstruction: a few eps. This method is the reference for the other methods, and their fallback.
    """
    U, S, Vh = safe_svd(A)
    return U, S, Vh.mT


def eigh(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return ascending eigenvalues and eigenvectors by the library, in batches that cuSOLVER accepts."""
    if len(G) <= _EIGH_BATCH:
        return torch.linalg.eigh(G)
    parts = [torch.linalg.eigh(part) for part in G.split(_EIGH_BATCH)]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def gram(A: Tensor, eigensolver: Eigensolver = eigh) -> Factors:
    r"""Eigendecomposition of ``A^T A`` in float64, then ``U = A V / S``.

    With the eigensolver `block_jacobi_eigh` there are only matrix products and eigenproblems of size 32.

    float32: the Gram matrix of float32 numbers is computed and solved in float64, whose eps is smaller than the square
    of float32's: singular values within eps / 2 (better than `lapack`; relative to each one 1e-7 down to 1e-4 of the
    largest), reconstruction 2 eps. Matrices of condition above 1e4 get U from `_from_products`.

    float64: the Gram matrix loses half of the digits, so its eigenvectors only start `jacobi`, which then takes two or
    three sweeps instead of ten and gives its own accuracy.
    """
    A64 = A.double()
    squares, V = eigensolver(A64.mT @ A64)
    V = V.flip(-1)
    if A.dtype == torch.float64:
        return jacobi(A, V)
    squares = squares.flip(-1).clamp_min(0)  # (B, n)
    B = A64 @ V
    S = squares.sqrt()
    U = B / S.unsqueeze(1)
    hard = ~(squares[:, -1] * _SAFE_CONDITION**2 > squares[:, 0])  # includes zero matrices
    if bool(hard.any()):
        index = hard.nonzero().squeeze(1)
        # Below 2 eps a direction of A is indistinguishable from rounding, so any orthonormal complement is correct.
        U[index], S[index], V[index] = _from_products(A[index], B[index], V[index], 2.0**-22)
    return U.to(A.dtype), S.to(A.dtype), V.to(A.dtype)


def block_jacobi_eigh(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return ascending eigenvalues and eigenvectors of (B, n, n) float64 by the two-sided block Jacobi method.

    A round of the tournament diagonalizes all n / 32 disjoint pairs of 16-wide blocks at once: one batched
    eigenproblem of size 32 and two batched products. For GPUs, where the library may loop over larger matrices.
    Eigenvalues to 5e-14 of the largest, eigenvectors orthonormal to 1e-13.
    """
    size = G.shape[-1]
    if size <= 2 * _BLOCK:
        return eigh(G)
    pairs = -(-size // (2 * _BLOCK))
    padded = pairs * 2 * _BLOCK
    scale = torch.linalg.matrix_norm(G)  # (B,)
    G = torch.nn.functional.pad(G, (0, padded - size, 0, padded - size))
    # An eigenvalue below all others keeps the padding from mixing with a null space.
    G.diagonal(dim1=1, dim2=2)[:, size:] = -scale.clamp_min(torch.finfo(G.dtype).tiny).unsqueeze(1)
    V = torch.eye(padded, dtype=G.dtype, device=G.device).repeat(len(G), 1, 1)
    columns = _tournament_step(2 * pairs, G.device).unsqueeze(1) * _BLOCK + torch.arange(_BLOCK, device=G.device)
    columns = columns.flatten()  # position of each column in the previous round
    for _ in range(_MAX_SWEEPS):
        for _ in range(2 * pairs - 1):
            G, V = _block_round(G, V, pairs)
            G, V = G[:, columns][:, :, columns], V[:, :, columns]
        off = G - torch.diag_embed(G.diagonal(dim1=1, dim2=2))
        if bool((torch.linalg.matrix_norm(off) <= 1e-15 * size * scale).all()):
            break
    values, order = G.diagonal(dim1=1, dim2=2).sort(-1)
    values, order = values[:, padded - size :], order[:, padded - size :]
    return values, V[:, :size].gather(2, order.unsqueeze(1).expand(-1, size, -1))


def _block_round(G: Tensor, V: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Diagonalize the diagonal blocks of G, 32 wide, by one orthogonal similarity, which is multiplied into V."""
    batch, padded = G.shape[:2]
    width = 2 * _BLOCK
    blocks = G.view(batch, pairs, width, pairs, width).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    W = eigh(blocks.reshape(-1, width, width))[1].view(batch, pairs, width, width)
    # The k-th smallest eigenvalue goes where the k-th smallest diagonal entry was: near the end W is close to I, and
    # a sweep then meets every pair of columns.
    place = blocks.diagonal(dim1=2, dim2=3).argsort(-1).argsort(-1)
    W = W.gather(3, place.unsqueeze(2).expand_as(W))
    rows = W.mT @ G.view(batch, pairs, width, padded)  # (B, P, 2w, n)
    G = _times_blocks(rows.reshape(batch, padded, padded), W)
    return (G + G.mT) / 2, _times_blocks(V, W)


def _times_blocks(M: Tensor, W: Tensor) -> Tensor:
    """Return M times the block-diagonal matrix of W (B, P, 2w, 2w)."""
    batch, pairs, width, _ = W.shape
    product = M.view(batch, -1, pairs, width).transpose(1, 2) @ W  # (B, P, n, 2w)
    return product.transpose(1, 2).reshape(batch, -1, pairs * width)


def _tournament_step(players: int, device: torch.device) -> Tensor:
    """Return the permutation after which neighbors 2i, 2i + 1 are the next round's pairs (circle method)."""
    half = players // 2
    circle = [2 * i for i in range(half)] + [2 * i + 1 for i in reversed(range(half))]  # seats around the table
    turned = [circle[0], circle[-1], *circle[1:-1]]  # the first stays, the others move on by one
    step = [0] * players
    for seat, player in zip(circle, turned, strict=True):
        step[seat] = player
    return torch.tensor(step, device=device)


def jacobi(A: Tensor, start: Tensor | None = None) -> Factors:
    """One-sided Jacobi (Hestenes) on all matrices at once, n / 2 rotations a step, elementwise and any dtype.

    Singular values within 10 eps, reconstruction within 30 eps (LAPACK's numbers are 10 and 40 at 40 x 37), also for
    matrices of any condition. ``start`` is (B, n, n) orthogonal, near V; None starts from the identity.
    """
    batch, m, n = A.shape
    even = n + n % 2
    V = torch.eye(n, dtype=A.dtype, device=A.device).expand(batch, n, n) if start is None else start
    rows = A.new_zeros(batch, even, m + n)  # row j: column j of A V, then column j of V; a zero row if n is odd
    rows[:, :n, :m], rows[:, :n, m:] = (A @ V).mT, V.mT
    eps = torch.finfo(A.dtype).eps
    noise = (2 * eps * torch.linalg.matrix_norm(A)) ** 2  # (B,) squared norm below which a column is rounding
    step = _tournament_step(even, A.device)
    for _ in range(_MAX_SWEEPS):
        worst = A.new_zeros(())
        for _ in range(even - 1):
            rows, cosine = _rotate_pairs(rows, m, noise, eps * m**0.5)
            worst = torch.maximum(worst, cosine)
            rows = rows[:, step]
        if float(worst) <= eps * m**0.5:
            break
    rows = rows[:, :n]  # after a whole tournament every row is back in its place
    # Hundreds of rotations move V a few hundred eps from orthogonality: take one Newton step and recompute A V.
    V = rows[:, :, m:].mT.double()
    V = 1.5 * V - 0.5 * V @ (V.mT @ V)
    U, S, V = _from_products(A, A.double() @ V, V, 4 * eps)
    return U.to(A.dtype), S.to(A.dtype), V.to(A.dtype)


def _rotate_pairs(rows: Tensor, m: int, noise: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Make neighboring rows 2i, 2i + 1 orthogonal in their first m entries; also return the largest |cosine| found."""
    left, right = rows[:, 0::2], rows[:, 1::2]
    a = left[:, :, :m].square().sum(2)
    b = right[:, :, :m].square().sum(2)
    product = (left[:, :, :m] * right[:, :, :m]).sum(2)
    cosine = torch.where(torch.minimum(a, b) > noise.unsqueeze(1), product.abs() / (a * b).sqrt(), 0.0)
    turn = cosine > tolerance
    zeta = (b - a) / (2 * torch.where(turn, product, 1.0))
    tangent = torch.where(turn, torch.where(zeta < 0, -1.0, 1.0) / (zeta.abs() + (1 + zeta.square()).sqrt()), 0.0)
    c = (1 + tangent.square()).rsqrt().unsqueeze(2)
    s = c * tangent.unsqueeze(2)
    turned = torch.stack([c * left - s * right, s * left + c * right], 2)
    return turned.flatten(1, 2), cosine.amax()


def block_size(rank: int) -> int:
    """Return how many vectors `subspace` iterates: more than the rank, since the last ones converge slowly.

    A multiple of eight, for the kernels of matrix products: 32 vectors are faster than 30.
    """
    return -(-(rank + max(8, rank // 2)) // 8) * 8


def subspace(A: Tensor, rank: int) -> tuple[Factors, Tensor]:
    r"""Subspace iteration on ``A^T A`` with Rayleigh-Ritz, float32, for the leading ``rank`` singular triplets.

    A block of ``block_size(rank)`` vectors from a fixed random start (Halko, Martinsson, Tropp 2011, with more
    power steps), orthonormalized between steps; the last steps are Chebyshev polynomials, which damp what lies below
    the block's smallest value faster than powers. Products are float32, orthonormalization and Ritz values float64.
    Matrices that nearly converged get up to two more rounds of the last step.

    Returns:
        The factors (B, m, r), (B, r), (B, n, r), and a mask (B,) of the matrices where they hold: residual
        ``||A^T u - s v||`` of each triplet at most 16 eps of the largest singular value (``A v = s u`` holds by
        construction), singular values within eps, and s_r above 1e-4 of the largest. The others, with a flat or a
        short spectrum, need a full decomposition.
    """
    batch, _, n = A.shape
    block = min(n, block_size(rank))
    generator = torch.Generator().manual_seed(8)  # start of an iteration; privacy does not depend on it
    G = A.mT @ A
    X = G @ torch.randn(n, block, generator=generator).to(A.device)
    works = torch.ones(batch, dtype=torch.bool, device=A.device)
    for degree in (1, 1, 2):
        X, works = _orthonormalize(X, works)
        X = _chebyshev(lambda Y: G @ Y, X, degree)
    X, works = _orthonormalize(X, works)
    factors, X, miss = _ritz_round(A, X, works, rank)
    for _ in range(_MORE_ROUNDS):
        index = ((miss > 1) & (miss < _NEARLY)).nonzero().squeeze(1)
        if len(index) == 0:
            break
        better, X[index], miss[index] = _ritz_round(A[index], X[index], works[index], rank)
        for factor, part in zip(factors, better, strict=True):
            factor[index] = part
    return factors, miss <= 1


def _ritz_round(A: Tensor, X: Tensor, works: Tensor, rank: int) -> tuple[Factors, Tensor, Tensor]:
    """Move an orthonormal block (B, n, b) nearer to the leading space, by products with A alone: G loses small values.

    Returns:
        The Ritz factors, the block of Ritz vectors, and the largest residual over its limit (B,): at most 1 where the
        factors hold, infinite where this iteration cannot find them.
    """
    X = _chebyshev(lambda Y: A.mT @ (A @ Y), X, 2)
    X64, works = _orthonormalize(*_orthonormalize(X.double(), works))
    A64 = A.double()
    B = A64 @ X64
    squares, Q = eigh(B.mT @ B)
    squares, Q = squares.flip(-1)[:, :rank], Q.flip(-1)
    V, B = X64 @ Q, B @ Q[:, :, :rank]
    X, V = V.to(A.dtype), V[:, :, :rank]
    residual = torch.linalg.vector_norm(A64.mT @ B - V * squares.unsqueeze(1), dim=1)
    S = squares.clamp_min(0).sqrt()
    limit = 16 * torch.finfo(A.dtype).eps * S * S[:, :1]
    miss = (residual / limit).amax(1)
    found = works & (S[:, -1] * _SAFE_CONDITION > S[:, 0])
    U = B / S.unsqueeze(1)
    return (U.to(A.dtype), S.to(A.dtype), V.to(A.dtype)), X, torch.where(found, miss, torch.inf)


def _chebyshev(times: Callable[[Tensor], Tensor], X: Tensor, degree: int) -> Tensor:
    """Return ``T_degree(2 G / a - 1) X``, a the smallest ``||G x||`` of the columns: what lies below a is damped.

    ``times`` multiplies a block, such as X (B, n, b), by G. Degree 1 is ``G X``, unshifted.
    """
    Y = times(X)
    if degree == 1:
        return Y
    scale = 2 / torch.linalg.vector_norm(Y[:, :, -1:], dim=1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
    Y = scale * Y - X
    for _ in range(degree - 1):
        X, Y = Y, 2 * (scale * times(Y) - Y) - X
    return Y


def _orthonormalize(X: Tensor, holds: Tensor) -> tuple[Tensor, Tensor]:
    """Return X's columns made orthonormal in their order, by Cholesky QR, and the mask (B,) of success so far; else 0.

    Condition up to 1e7; orthonormal to eps * condition^2 of float64, in the dtype of X.
    """
    X64 = X.double()
    products = X64.mT @ X64
    lengths = products.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
    L, info = torch.linalg.cholesky_ex(products * lengths.unsqueeze(1) * lengths.unsqueeze(2))
    holds = holds & (info == 0)
    inverse = torch.linalg.solve_triangular(L, torch.diag_embed(lengths), upper=False)
    inverse = torch.where(holds[:, None, None], inverse, 0.0)
    return X @ inverse.mT.to(X.dtype), holds


def _from_products(A: Tensor, B: Tensor, V: Tensor, null: float) -> Factors:
    """Return the factors in float64 from ``B = A V``, whose columns are nearly orthogonal; sorts them.

    In U an orthonormal complement replaces columns of norm up to ``null`` times the largest: random columns, all made
    orthonormal by Cholesky QR. That is triangular, so a column changes only by multiples of those before it, of larger
    singular values: what the product ``U S V^T`` loses is the cosine of two columns times the *smaller* singular value.
    `lapack` decomposes the matrices for which this fails.
    """
    S, order = torch.linalg.vector_norm(B, dim=1).sort(-1, descending=True)
    order = order.unsqueeze(1)
    B, V = B.gather(2, order.expand_as(B)), V.gather(2, order.expand_as(V)).double()
    generator = torch.Generator().manual_seed(8)
    random = torch.randn(B.shape[1:], generator=generator, dtype=torch.float64).to(B.device)
    random = random / torch.linalg.vector_norm(random, dim=0)
    U = B / S.clamp_min(torch.finfo(S.dtype).tiny).unsqueeze(1)
    U = torch.where(S.le(null * S[:, :1]).unsqueeze(1), random, U)
    holds = torch.ones(len(B), dtype=torch.bool, device=B.device)
    for _ in range(3):  # the third pass handles a square random complement, whose condition can be 1e6
        U, holds = _orthonormalize(U, holds)
    if not bool(holds.all()):
        index = (~holds).nonzero().squeeze(1)
        U[index], S[index], V[index] = (factor.double() for factor in lapack(A[index]))
    return U, S, V
