"""The controls: no correct mechanism is ever caught, every broken one is."""

import math
import tracemalloc

import pytest
import torch

from idpgan.audit import audit
from idpgan.audit.cases import CASES
from idpgan.audit.entry import Request
from idpgan.audit.statistics import LowOrderBits, SubspaceDistance, likelihood_ratio
from idpgan.errors import InputError
from idpgan.privacy import DiscreteLaplace, Laplace, Noise, Relation, Unit

PAIR = (Unit.IMAGE, Relation.REPLACE_ONE)
CORRECT = [(name, epsilon) for name in CASES for epsilon in (0.5, 2.0) if (name, epsilon) != ("gaussian-noise", 0.5)]
CONFIDENCE = 1 - 0.001 / len(CORRECT)  # 99.9 % over all of them (Bonferroni)
ZERO, ONE = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(("name", "epsilon"), CORRECT)
def test_a_correct_mechanism_is_never_caught(name, epsilon):
    audited = CASES[name].case(name, Request(epsilon)).run(40_000, confidence=CONFIDENCE, seed=11)
    assert audited.result.epsilon_lower <= audited.case.proven.epsilon <= epsilon
    assert not audited.violation
    least = 0.0 if "gaussian" in name else 0.3  # Gaussian noise reaches its epsilon only in far tails
    assert audited.result.epsilon_lower >= least * epsilon


def test_gaussian_noise_shows_half_of_its_epsilon_where_that_is_large():
    audited = CASES["rounded-gaussian"].case("rounded-gaussian", Request(4.0)).run(100_000, seed=5)
    assert 1.8 < audited.result.epsilon_lower <= 4.0


def test_laplace_at_epsilon_one_is_audited_to_nine_tenths():
    noise, mechanism = Noise.fixed(1), Laplace(1.0, 1.0, *PAIR)
    known = audit(lambda x: mechanism(x, noise), ZERO, ONE, runs=100_000, statistics=[likelihood_ratio(mechanism)])
    unknown = audit(lambda x: mechanism(x, noise), ZERO, ONE, runs=100_000)
    assert 0.9 <= known.epsilon_lower <= 1.0
    assert 0.9 <= unknown.epsilon_lower <= 1.0


# Broken mechanisms. Each returns (release, data, neighbor, claimed epsilon, statistics).


def laplace(values, scale, noise):
    return Laplace(1.0, scale, *PAIR)(values, noise)


def half_the_noise(noise):
    return lambda x: laplace(x, 0.5, noise), ZERO, ONE, 1.0, None


def sensitivity_forgotten(noise):
    return lambda x: laplace(x, 1.0, noise), torch.zeros(3).double(), torch.ones(3).double(), 1.0, None


def budget_not_split(noise):
    """Two answers about the same record, each with the whole budget."""
    return lambda x: torch.cat([laplace(x, 1.0, noise), laplace(x, 1.0, noise)], 1), ZERO, ONE, 1.0, None


def noise_shared_by_a_batch(noise):
    """A row is a batch of two records; the second one is the same on both sides."""
    data, neighbor = torch.zeros(2, 4).double(), torch.zeros(2, 4).double()
    neighbor[0] = 1
    return lambda x: x + laplace(torch.zeros_like(x[:, :1]), 4.0, noise), data, neighbor, 1.0, None


def float32_noise_at_an_absurd_scale(noise):
    """Noise 64 times the sensitivity, claimed epsilon 1/64; the low-order bits tell whether 1 was added."""
    rng = torch.Generator().manual_seed(1)

    def release(values):
        uniform = torch.rand(values.shape, generator=rng) * 2 - 1
        return values.float() - uniform.sign() * (-uniform.abs()).log1p() * 64

    return release, ZERO, ONE, 1 / 64, [LowOrderBits]


def generator_seed_reused(noise):
    """Every release seeds torch's generator with one of a few seeds: whoever tries them all subtracts the noise."""
    drawn = torch.cat([torch.randn(1, generator=torch.Generator().manual_seed(seed)) for seed in range(200)]).double()
    return lambda x: x + 10 * drawn[noise.integers(200, x.shape)], ZERO, ONE, 0.5, None


def scale_of_the_private_image(noise):
    """Noise in proportion to the image itself: a black one is released as it is."""

    def release(values):
        return values + laplace(torch.zeros_like(values), 1.0, noise) * values.abs().sum(1, keepdim=True)

    return release, torch.zeros(4).double(), torch.full((4,), 1 / 255).double(), 1.0, None


BROKEN = [
    half_the_noise,
    sensitivity_forgotten,
    budget_not_split,
    noise_shared_by_a_batch,
    float32_noise_at_an_absurd_scale,
    generator_seed_reused,
    scale_of_the_private_image,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_mechanism_is_caught(broken):
    release, data, neighbor, claimed, statistics = broken(Noise.fixed(7))
    result = audit(release, data, neighbor, runs=40_000, confidence=1 - 0.001 / len(BROKEN), statistics=statistics)
    assert result.epsilon_lower > 1.3 * claimed


def test_singular_vectors_without_noise_are_caught_at_the_cap():
    """SRA's mistake: singular values get noise, singular vectors none."""
    from idpgan.audit.neighbors import low_rank

    noise, pair = Noise.fixed(8), low_rank((6, 5), Unit.COLUMN)

    def release(matrices):
        left, values, right = (x[..., :2] for x in (lambda u, s, v: (u, s, v.mT))(*torch.linalg.svd(matrices)))
        return left * laplace(values, 50.0, noise)[:, None] @ right.mT

    result = audit(release, pair.data, pair.neighbor, runs=1000, statistics=[SubspaceDistance])
    assert result.epsilon_lower == result.cap

    def sound(matrices):
        return laplace(matrices, 50.0, noise)

    assert audit(sound, pair.data, pair.neighbor, runs=2000, statistics=[SubspaceDistance]).epsilon_lower < 0.5


def test_low_order_bits_catch_continuous_noise_and_not_discrete():
    noise, steps = Noise.fixed(9), DiscreteLaplace(1024, 1024, *PAIR)
    continuous = audit(lambda x: laplace(x, 1.0, noise), ZERO, ONE, runs=20_000, statistics=[LowOrderBits])
    discrete = audit(
        lambda x: steps((x * 1024).long(), noise) / 1024, ZERO, ONE, runs=20_000, statistics=[LowOrderBits]
    )
    assert continuous.epsilon_lower > 4  # Mironov 2012: why releases use discrete noise
    assert discrete.epsilon_lower <= 1


# The game itself.


def test_no_noise_reaches_the_cap_and_equal_neighbors_nothing():
    without = audit(lambda x: x, ZERO, ONE, runs=2000)
    assert (without.epsilon_lower, without.held_out) == (without.cap, 1000)
    noise = Noise.fixed(2)
    assert audit(lambda x: laplace(x, 1.0, noise), ZERO, ZERO, runs=4000).epsilon_lower < 0.2


def test_only_entries_that_differ_are_released():
    seen, noise = set(), Noise.fixed(3)

    def release(values):
        seen.add(values.shape[1:])
        return laplace(values, 1.0, noise)

    data, neighbor = torch.zeros(50, 40).double(), torch.zeros(50, 40).double()
    neighbor[3, 4] = 1
    result = audit(release, data, neighbor, runs=20_000, entrywise=True)
    assert seen == {(1,)}
    assert 0.8 < result.epsilon_lower <= 1


def test_memory_does_not_grow_with_outputs():
    noise = Noise.fixed(4)
    peaks = []
    for runs in (400, 4000):
        tracemalloc.start()
        audit(lambda x: laplace(x, 100.0, noise), torch.zeros(2000).double(), torch.ones(2000).double(), runs=runs,
              statistics=[likelihood_ratio(Laplace(1.0, 100.0, *PAIR))])  # fmt: skip
        peaks.append(tracemalloc.get_traced_memory()[1])  # NumPy's share: the noise and the scores
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + 8 * 2 * 4000


def test_threads_have_their_own_noise_and_a_fixed_result():
    case = CASES["lap"].case("lap", Request(1.0, unit=Unit.COLUMN, law="laplace"))
    results = [case.run(4000, seed=1, threads=2).result for _ in range(2)]
    assert results[0] == results[1]
    assert case.run(4000, seed=2, threads=2).result != results[0]


@pytest.mark.gpu
def test_a_gpu_finds_the_same():
    """Its CPU twin is `test_a_correct_mechanism_is_never_caught`."""
    case = CASES["lap"].case("lap", Request(1.0, unit=Unit.PIXEL, law="laplace"))
    assert 0.9 < case.run(1_000_000, device="cuda").result.epsilon_lower <= 1.0
    image = CASES["lap"].case("lap", Request(1.0, unit=Unit.IMAGE, law="laplace"))
    assert image.run(20_000, device="cuda").result.epsilon_lower <= 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["laplace", "discrete-laplace"])
def test_a_fixed_seed_gives_a_gpu_the_noise_of_the_cpu(name):
    case = CASES[name].case(name, Request(1.0))
    cpu, gpu = (case.run(2000, seed=1, device=device).result for device in ("cpu", "cuda"))
    assert gpu.epsilon_lower == pytest.approx(cpu.epsilon_lower, abs=0.05)


def test_progress_ends_at_the_end():
    told = []
    audit(lambda x: x, ZERO, ONE, runs=501, progress=lambda what, done, total: told.append((done, total)))
    assert told[-1] == (501, 501)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_rows_that_share_their_noise_are_refused():
    noise = Noise.fixed(5)
    with pytest.raises(InputError, match="make the batch the row"):
        audit(lambda x: x + laplace(torch.zeros(1).double(), 1.0, noise), ZERO, ONE, runs=1000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": 10}, "runs = 10"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"neighbor": torch.zeros(2)}, "one shape"),
        ({"neighbor": ZERO, "entrywise": True}, "nothing to tell apart"),
        ({"mechanism": lambda x: x.sum()}, "one output per row"),
        ({"mechanism": lambda x: x * math.nan, "statistics": [likelihood_ratio(Laplace(1.0, 1.0, *PAIR))]}, "number"),
    ],
)
def test_bad_arguments_are_refused(change, words):
    arguments = {"mechanism": lambda x: x, "data": ZERO, "neighbor": ONE, "runs": 1000, **change}
    with pytest.raises(InputError, match=words):
        audit(**arguments)


@pytest.mark.parametrize(
    "changed",
    [
        {"runs": 10**21},
        {"runs": 1e21},
        {"runs": True},
        {"runs": "1000"},
        {"confidence": "0.9"},
        {"delta": None},
        {"delta": math.nan},
    ],
)
def test_absurd_numbers_and_wrong_types_are_refused(changed):
    with pytest.raises(InputError, match=next(iter(changed))):
        audit(lambda x: x, ZERO, ONE, **{"runs": 1000, **changed})


def test_neighbors_that_are_no_tensors_are_refused():
    with pytest.raises(InputError, match="data must be a tensor or a NumPy array"):
        audit(lambda x: x, [0.0], ONE, runs=1000)


def test_a_request_of_another_type_is_refused():
    for request in (Request("1"), Request(True), Request(1.0, delta="0")):
        with pytest.raises(InputError, match="must be a number"):
            CASES["laplace"].case("laplace", request)
