"""The published algorithms are caught beyond their claim, ``lap`` never beyond its proof."""

import pytest
import torch

from idpgan.audit.entry import Request
from idpgan.audit.neighbors import brighter, full_rank
from idpgan.audit.statistics import NoiseScale, OutputRank
from idpgan.commands.audit import method_case
from idpgan.errors import InputError
from idpgan.privacy import Unit
from idpgan.publish.sound.numbers import NoisyNumbers

CAUGHT = ("lap-published", "lra", "sra", "esra", "lrm", "mm")
SOUND = [
    (Unit.PIXEL, "discrete-laplace", None, 0.85),
    (Unit.COLUMN, "discrete-laplace", None, 0.0),
    (Unit.COLUMN, "rounded-gaussian", 1e-5, 0.0),
    (Unit.PIXEL, "rounded-gaussian", None, 0.2),
    (Unit.PIXEL, "laplace", None, 0.85),
]


@pytest.mark.parametrize("method", CAUGHT)
def test_a_published_algorithm_goes_beyond_its_claim_to_the_cap(method):
    audited = method_case(method, Request(1.0)).run(600, seed=1)
    assert audited.exceeds_claim
    assert not audited.violation  # nothing was proven
    assert audited.result.epsilon_lower == audited.result.cap > 4
    assert audited.to_json()["claimed"] == 1.0


@pytest.mark.parametrize(("method", "pair"), [("lap-published", "low-rank"), ("sra", "low-rank"), ("mm", "extremes")])
def test_other_neighbors_show_what_they_show(method, pair):
    audited = method_case(method, Request(1.0, pair=pair)).run(600, seed=1)
    # LAP's scale is the same on both images of the low-rank pair: nothing beyond the claim is to be seen there.
    assert audited.exceeds_claim == (method != "lap-published")


@pytest.mark.parametrize(("unit", "law", "delta", "least"), SOUND)
def test_lap_is_never_caught(unit, law, delta, least):
    case = method_case("lap", Request(1.0, delta=delta, unit=unit, law=law))
    audited = case.run(40_000 if unit is Unit.PIXEL else 3000, confidence=1 - 0.001 / len(SOUND), seed=2)
    assert least <= audited.result.epsilon_lower <= case.proven.epsilon <= 1.0


@pytest.mark.parametrize(
    ("method", "unit", "law", "least"),
    [
        ("lap-shrink", Unit.PIXEL, "discrete-laplace", 0.0),
        ("lap-wiener", Unit.PIXEL, "discrete-laplace", 0.6),
        ("dct", Unit.COLUMN, "discrete-laplace", 0.05),
        ("dct", Unit.IMAGE, "rounded-gaussian", 0.0),
        ("fourier", Unit.PIXEL, "discrete-laplace", 0.6),
        ("wavelet", Unit.PIXEL, "discrete-laplace", 0.6),
        ("pix", Unit.PIXEL, "discrete-laplace", 0.6),
        ("quadtree", Unit.PIXEL, "discrete-laplace", 0.3),
        ("face-parts", Unit.COLUMN, "discrete-laplace", 0.05),
        ("pix", Unit.COLUMN, "rounded-gaussian", 0.0),
        ("eigenfaces", Unit.PIXEL, "discrete-laplace", 0.1),
        ("eigenfaces", Unit.IMAGE, "discrete-laplace", 0.1),
        ("codebook", Unit.IMAGE, None, 0.8),
    ],
)
def test_a_sound_publisher_is_never_caught(method, unit, law, least):
    case = method_case(method, Request(1.0, unit=unit, law=law))
    audited = case.run(20_000, confidence=1 - 0.001 / 13, seed=4)
    assert least <= audited.result.epsilon_lower <= case.proven.epsilon <= 1.0


@pytest.mark.parametrize("method", ["pix", "wavelet", "eigenfaces", "lap-wiener"])
def test_half_the_noise_on_numbers_is_a_violation(method, monkeypatch):
    case = method_case(method, Request(1.0, unit=Unit.PIXEL))
    release = NoisyNumbers.__call__
    monkeypatch.setattr(NoisyNumbers, "__call__", lambda self, x, noise: (release(self, x, noise) + x) / 2)
    assert case.run(20_000, seed=3).violation


def test_half_the_noise_in_lap_is_a_violation(monkeypatch):
    case = method_case("lap", Request(1.0))
    release = NoisyNumbers.__call__
    monkeypatch.setattr(NoisyNumbers, "__call__", lambda self, x, noise: (release(self, x, noise) + x) / 2)
    audited = case.run(40_000, seed=3)
    assert audited.violation
    assert audited.result.epsilon_lower > 1.5


def test_the_rank_of_outputs_is_counted():
    pair = full_rank((6, 4), Unit.COLUMN)
    score = OutputRank(pair.data, pair.neighbor)
    low = torch.ones(6, 4).double()
    assert score(torch.stack([pair.data, low, low * 0])).tolist() == [4.0, 1.0, 0.0]
    with pytest.raises(InputError, match="matrices"):
        OutputRank(torch.zeros(3), torch.zeros(3))


def test_the_scale_of_the_noise_is_read_where_neighbors_agree():
    pair = brighter((6, 40), Unit.COLUMN)
    score = NoiseScale(pair.data, pair.neighbor)
    noise = torch.randn(2, 6, 40, generator=torch.Generator().manual_seed(1)).double()
    scores = score(torch.stack([pair.data, pair.data + noise[0], pair.neighbor + 3 * noise[1]]))
    assert scores[0] < -600 < scores[1] < scores[2]
    with pytest.raises(InputError, match="equal on both"):
        NoiseScale(pair.data, pair.data + 1)


def test_the_full_rank_pair_has_different_column_spaces():
    pair = full_rank((8, 6), Unit.COLUMN)
    assert torch.linalg.matrix_rank(pair.data) == torch.linalg.matrix_rank(pair.neighbor) == 6
    both = torch.cat([pair.data, pair.neighbor], 1)
    assert torch.linalg.matrix_rank(both) == 7
    for unit, changed in ((Unit.PIXEL, 1), (Unit.COLUMN, 8), (Unit.IMAGE, 48)):
        for make in (full_rank, brighter):
            made = make((8, 6), unit)
            assert int((made.data != made.neighbor).sum()) == changed
        with pytest.raises(InputError, match="person"):
            make((8, 6), Unit.PERSON)
