"""The batched decomposition against torch.linalg.svd in float64, method by method, and what it leaves alone."""

# ruff: noqa: N803, N806    # matrices keep their names, as in the package

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from idpgan.errors import InputError
from idpgan.numerics import svd
from idpgan.numerics.svd import LAPACK, SUBSPACE, choose_method, decompose, gram_svd
from idpgan.publish import batched_svd

LIMITS = {"values": 20, "left": 30, "right": 40, "product": 75}  # in eps; LAPACK itself reaches 13, 20, 31, 61 here


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(values, m, count=3):
    left = torch.linalg.qr(random(count, m, len(values), seed=1))[0]
    return (left * values) @ torch.linalg.qr(random(count, len(values), len(values), seed=2))[0].mT


def powers_of_ten(last, n):
    return torch.logspace(0, last, n, dtype=torch.float64)


CASES = {
    "gaussian": random(3, 40, 37),
    "wide": random(3, 19, 45),
    "square": random(3, 33, 33),
    "one row": random(3, 1, 7),
    "1 x 1": random(3, 1, 1),
    "one matrix": random(1, 40, 36),
    "rank 4": random(3, 40, 4) @ random(3, 4, 37, seed=3),
    "rank 3, square": random(3, 36, 3) @ random(3, 3, 36, seed=3),
    "zero": torch.zeros(2, 40, 36, dtype=torch.float64),
    "zero and others": torch.cat([random(2, 40, 36), torch.zeros(1, 40, 36, dtype=torch.float64)]),
    "constant": torch.ones(2, 40, 37, dtype=torch.float64),
    "condition 1e7": with_spectrum(powers_of_ten(-7, 36), 40),
    "condition 1e14": with_spectrum(powers_of_ten(-14, 36), 40),
    "scaled columns": random(3, 40, 37) * powers_of_ten(-12, 37),
    "equal values": with_spectrum(torch.ones(36, dtype=torch.float64), 40),
    "huge": random(2, 12, 9) * 1e30,
    "tiny": random(2, 12, 9) * 1e-30,
}


def errors(matrices, U, S, Vh):
    """Largest errors in eps of the dtype; values and product relative to the largest singular value."""
    eps, A = torch.finfo(matrices.dtype).eps, matrices.double()
    reference = torch.linalg.svd(A, full_matrices=False)
    rank = S.shape[1]
    largest = reference.S[:, :1].clamp_min(1e-300)
    U, S, Vh = U.double(), S.double(), Vh.double()
    best = (reference.U[..., :rank] * reference.S[:, None, :rank]) @ reference.Vh[:, :rank]
    identity = torch.eye(rank, dtype=torch.float64)
    product = torch.linalg.matrix_norm((U * S.unsqueeze(1)) @ Vh - best)
    found = {
        "values": (S - reference.S[:, :rank]).abs() / largest,
        "left": U.mT @ U - identity,
        "right": Vh @ Vh.mT - identity,
        "product": product / largest.squeeze(1),
    }
    return {name: error.abs().max().item() / eps for name, error in found.items()}


def assert_within(found, limits=LIMITS):
    assert {name: value for name, value in found.items() if not value <= limits[name]} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_full_decomposition_agrees_with_float64(case, dtype):
    matrices = CASES[case].to(dtype)
    U, S, Vh = decompose(matrices, None, LAPACK)
    count, m, n = matrices.shape
    assert (U.shape, S.shape, Vh.shape) == ((count, m, min(m, n)), (count, min(m, n)), (count, min(m, n), n))
    assert U.dtype == S.dtype == Vh.dtype == dtype
    assert bool((S[:, 1:] <= S[:, :-1]).all() & (S >= 0).all())
    assert_within(errors(matrices, U, S, Vh))


def by_products(matrices):
    """`gram_svd` as `decompose` calls it on CUDA."""
    tall = matrices.mT if matrices.shape[1] < matrices.shape[2] else matrices
    scaled, exponent = svd._scaled(tall.double())
    U, S, V = gram_svd(scaled)
    S = torch.ldexp(S, exponent.unsqueeze(1))
    U, S, V = (factor.to(matrices.dtype) for factor in (U, S, V))
    return (V, S, U.mT) if tall is not matrices else (U, S, V.mT)


GRAM = {torch.float32: LIMITS, torch.float64: LIMITS | {"product": 1e-10 / 2.2e-16}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_decomposition_for_cuda_agrees_with_float64(case, dtype):
    matrices = CASES[case].to(dtype)
    U, S, Vh = by_products(matrices)
    assert bool((S[:, 1:] <= S[:, :-1]).all() & (S >= 0).all())
    assert_within(errors(matrices, U, S, Vh), GRAM[dtype])


class Launches(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_the_launches_for_cuda_do_not_depend_on_the_matrices():
    counts = []
    for matrices in (random(2, 40, 36), random(64, 40, 36), CASES["zero"], CASES["condition 1e14"]):
        with Launches() as launches:
            by_products(matrices)
        counts.append(launches.count)
    assert len(set(counts)) == 1
    assert counts[0] < 200 * 36  # a fixed number for each column, views counted


def test_a_wrong_decomposition_for_cuda_is_made_again_for_those_matrices_alone(monkeypatch):
    matrices, made = random(6, 40, 36), []

    def wrong(some):
        V = svd.eigenvectors(some)
        V[2], V[4] = torch.eye(36), torch.nan
        return V

    def again(some):
        made.append(len(some))
        return eigenvectors(some)

    eigenvectors = svd.eigenvectors
    monkeypatch.setattr(svd, "right_vectors", wrong)
    monkeypatch.setattr(svd, "eigenvectors", again)
    assert_within(errors(matrices, *by_products(matrices)), GRAM[torch.float64])
    assert made == [6, 6, 2, 2]  # two passes each


def test_the_limits_can_fail():
    matrices = CASES["condition 1e7"].float()
    squares, V = torch.linalg.eigh(matrices.mT @ matrices)  # the eigenproblem of the products squares the condition
    S = squares.flip(-1).clamp_min(0).sqrt()
    U = matrices @ V.flip(-1) / S.clamp_min(1e-30).unsqueeze(1)
    found = errors(matrices, U, S, V.flip(-1).mT)
    assert found["values"] > 10 * LIMITS["values"]
    assert found["left"] > 10 * LIMITS["left"]
    U, S, Vh = batched_svd(CASES["gaussian"].float())
    assert errors(CASES["gaussian"].float(), U, S * (1 + 1e-5), Vh)["product"] > LIMITS["product"]


def decaying(count=4, m=60, n=50):
    return with_spectrum(0.75 ** torch.arange(n, dtype=torch.float64), m, count).float()


TRUNCATED = {"values": 4, "left": 20, "right": 20, "product": 200}  # a subspace's own error: residual 16 eps a triplet


def test_subspace_iteration_holds_on_a_decaying_spectrum():
    matrices = decaying()
    (U, S, V), holds = svd.subspace(matrices, 6)
    assert holds.all()
    assert_within(errors(matrices, U, S, V.mT), TRUNCATED)
    residual = torch.linalg.vector_norm(matrices.mT @ U - V * S.unsqueeze(1), dim=1)
    assert (residual <= 32 * 1.2e-7 * S[:, :1]).all()
    assert choose_method(torch.float32, 60, 50, 6) == SUBSPACE


@pytest.mark.parametrize(
    "matrices",
    [random(4, 60, 50).float(), with_spectrum(torch.ones(50).double(), 60).float(), torch.zeros(3, 60, 50)],
    ids=["gaussian", "equal values", "zero"],
)
def test_truncation_where_subspace_iteration_may_not_hold(matrices):
    U, S, Vh = batched_svd(matrices, 6)
    found = errors(matrices, U, S, Vh)
    assert found["values"] <= 20
    assert found["left"] <= 30
    assert found["right"] <= 30


def test_a_batch_with_easy_and_hard_matrices():
    flat = with_spectrum(torch.linspace(1, 0.9, 50).double(), 60).float()[:2]
    matrices = torch.cat([decaying(2), flat, torch.zeros(1, 60, 50), decaying(2)])
    _, holds = svd.subspace(matrices, 6)
    assert holds.tolist() == [True, True, False, False, False, True, True]
    # The gap behind the sixth value of a flat spectrum is 0.002 of it.
    limits = TRUNCATED | {"values": 20, "left": 30, "right": 30, "product": 5000}
    assert_within(errors(matrices, *batched_svd(matrices, 6)), limits)


def test_more_rounds_for_those_that_have_nearly_converged(monkeypatch):
    matrices = torch.cat([decaying(2), random(4, 60, 50).float()])
    factors, holds = svd.subspace(matrices, 6)
    assert holds[:2].all()
    assert holds[2:].sum() >= 2
    kept = [factor[holds] for factor in factors]
    assert_within(errors(matrices[holds], kept[0], kept[1], kept[2].mT), TRUNCATED | {"product": 5000})
    monkeypatch.setattr(svd, "_MORE_ROUNDS", 0)
    assert svd.subspace(matrices, 6)[1].tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(3, 40, 37), (3, 19, 45)])
@pytest.mark.parametrize("rank", [1, 5, 19])
def test_truncation_is_the_full_result_cut(shape, dtype, rank):
    matrices = random(*shape).to(dtype)
    U, S, Vh = batched_svd(matrices, rank)
    assert (U.shape, S.shape, Vh.shape) == ((3, shape[1], rank), (3, rank), (3, rank, shape[2]))
    # The best approximation of rank r hangs on the gap behind the r-th value, so its error is many eps.
    assert_within(errors(matrices, U, S, Vh), LIMITS | {"product": 5000})


@pytest.mark.parametrize("rank", [None, 2])
def test_an_empty_batch(rank):
    U, S, Vh = batched_svd(torch.zeros(0, 5, 4), rank)
    assert (U.shape, S.shape, Vh.shape) == ((0, 5, rank or 4), (0, rank or 4), (0, rank or 4, 4))


def test_a_hundred_thousand_matrices():
    matrices = random(100_000, 4, 3).float()
    assert_within(errors(matrices, *batched_svd(matrices)))


def test_chunks_do_not_change_the_result(monkeypatch):
    matrices = CASES["gaussian"].repeat(4, 1, 1)
    whole = batched_svd(matrices)
    monkeypatch.setattr(svd, "_CHUNK_BYTES", (1, 0))
    for part, other in zip(whole, batched_svd(matrices), strict=True):
        assert torch.allclose(part, other, rtol=0, atol=1e-11)  # not bit for bit: MKL looks at addresses


def set_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("shape", [(6, 40, 37), (6, 19, 45), (5, 64, 64)])
def test_one_call_of_the_library_and_chunks_on_threads_agree(shape, rank):
    matrices = random(*shape)
    before = set_threads(1)
    try:
        alone = batched_svd(matrices, rank)
        set_threads(3)
        together = batched_svd(matrices, rank)
    finally:
        set_threads(before)
    for ours, theirs in zip(alone, together, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-11)  # signs too


def test_on_one_thread_the_full_decomposition_is_one_call_of_the_library(monkeypatch):
    seen = []
    monkeypatch.setattr(svd, "safe_svd", lambda A: seen.append(A.shape) or torch.linalg.svd(A, False))
    before = set_threads(1)
    try:
        batched_svd(random(400, 12, 30))
    finally:
        set_threads(before)
    assert seen == [(400, 30, 12)]


FLAT = with_spectrum(torch.linspace(1, 0.9, 50).double(), 60, 64).float()


@pytest.mark.parametrize(("matrices", "tried"), [(FLAT, [2]), (decaying(64), [2, 64])])
def test_a_flat_spectrum_is_seen_by_a_few_matrices_before_all_are_iterated(matrices, tried, monkeypatch):
    seen, whole = [], svd.subspace
    monkeypatch.setattr(svd, "subspace", lambda A, rank: seen.append(len(A)) or whole(A, rank))
    before = set_threads(1)
    try:
        U, S, _ = batched_svd(matrices, 6)
    finally:
        set_threads(before)
    assert seen == tried
    assert (S - torch.linalg.svdvals(matrices.double())[:, :6]).abs().max() <= 20 * 1.2e-7 * S.max()
    assert U.shape == (64, 60, 6)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def seen_by_a_new_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.usefixtures("three_threads")
def test_thread_settings_stay(monkeypatch):
    inside = []

    def spy(A):
        inside.append((threading.get_ident(), torch.get_num_threads()))
        return torch.linalg.svd(A, full_matrices=False)

    monkeypatch.setattr(svd, "safe_svd", spy)
    assert_within(errors(CASES["gaussian"], *batched_svd(CASES["gaussian"])))
    assert {count for _, count in inside} == {1}  # else LAPACK's own threads would compete
    assert threading.get_ident() not in {thread for thread, _ in inside}
    assert (torch.get_num_threads(), seen_by_a_new_thread()) == (3, 3)


@pytest.mark.usefixtures("three_threads")
def test_thread_settings_stay_after_an_error(monkeypatch):
    def fail(A):
        raise RuntimeError("no convergence")

    monkeypatch.setattr(svd, "safe_svd", fail)
    with pytest.raises(RuntimeError, match="no convergence"):
        batched_svd(CASES["gaussian"])
    assert (torch.get_num_threads(), seen_by_a_new_thread()) == (3, 3)


@pytest.mark.usefixtures("three_threads")
def test_two_callers_at_once():
    results = {}

    def call(name):
        results[name] = batched_svd(CASES["gaussian"])

    callers = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(torch.equal(results[0][1], result[1]) for result in results.values())
    assert seen_by_a_new_thread() == 3


def test_the_input_stays_and_no_gradient_flows():
    matrices = CASES["gaussian"].clone().requires_grad_()
    U, _, _ = batched_svd(matrices)
    assert not U.requires_grad
    assert torch.equal(matrices, CASES["gaussian"])
    with torch.inference_mode():
        batched_svd(CASES["gaussian"].float() + 0, 3)


def test_strided_input():
    matrices = random(3, 20, 2, 15)[:, :, 1].flip(1)
    assert_within(errors(matrices, *batched_svd(matrices)))


@pytest.mark.parametrize(
    ("dtype", "shape", "rank", "name"),
    [
        (torch.float32, (112, 92), None, LAPACK),
        (torch.float32, (112, 92), 20, SUBSPACE),
        (torch.float64, (112, 92), 20, LAPACK),
        (torch.float32, (28, 28), 9, LAPACK),
    ],
)
def test_the_choice(dtype, shape, rank, name):
    assert choose_method(dtype, *shape, rank) == name


@pytest.mark.parametrize(
    ("matrices", "rank", "words"),
    [
        (torch.zeros(2, 5, 4), 5, "rank = 5 must be an integer from 1 to 4"),
        (torch.zeros(2, 5, 4), 0, "rank = 0 .* Leave it out"),
        (torch.zeros(2, 5, 4), 2.0, "rank = 2.0"),
        (torch.zeros(2, 5, 4), True, "rank = True"),
        (torch.zeros(5, 4), None, r"\(N, m, n\).*\(5, 4\)"),
        (torch.zeros(2, 3, 5, 4), None, "channels"),
        (torch.zeros(2, 0, 4), None, "m, n >= 1"),
        (torch.zeros(2, 5, 4, dtype=torch.uint8), None, "uint8"),
        (torch.zeros(2, 5, 4, dtype=torch.float16), None, "float16"),
        ([[1.0]], None, "list"),
        (torch.zeros(2, 5, 4, device="meta"), None, "meta"),
    ],
)
def test_bad_input(matrices, rank, words):
    with pytest.raises(InputError, match=words):
        batched_svd(matrices, rank)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_entries_that_are_not_finite(value):
    matrices = torch.zeros(4, 5, 4)
    matrices[2, 1, 1] = value
    with pytest.raises(InputError, match=r"1 of 4 matrices .* first matrix 2"):
        batched_svd(matrices)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_cuda(case, dtype):
    matrices = CASES[case].to(dtype)
    results = batched_svd(matrices.cuda())
    assert all(part.is_cuda for part in results)
    assert_within(errors(matrices, *(part.cpu() for part in results)), GRAM[dtype])
