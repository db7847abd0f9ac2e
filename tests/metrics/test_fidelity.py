"""Fidelity: closed forms, and what broken sets of images do to each score."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.nn.functional import avg_pool2d

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics import fidelity as module
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import fit_feature_autoencoder, full_training_set, load_inception, num_steps
from idpgan.metrics.fidelity import frechet_distance, kernel_distance, measure_fidelity, nearest_scores

SCORES = ("fid", "kid", "precision", "recall", "density", "coverage")


def exact_normal(num, mean, covariance, seed):
    """Rows whose mean and covariance are these up to rounding."""
    rows = torch.randn(num, len(mean), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rows -= rows.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(rows.T)), rows.T, upper=False).T
    return white @ torch.linalg.cholesky(covariance).T + mean


def covariance(size, seed):
    factor = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return factor @ factor.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_frechet_distance_of_gaussians_is_the_closed_form():
    size = 12
    first, second = covariance(size, 0), covariance(size, 1)  # they do not commute
    mean = torch.linspace(-1, 1, size, dtype=torch.float64)
    root = scipy.linalg.sqrtm((first @ second).numpy()).real
    truth = float(mean.square().sum() + first.trace() + second.trace()) - 2 * np.trace(root)
    zero = torch.zeros(size, dtype=torch.float64)
    found = frechet_distance(exact_normal(300, zero, first, 2), exact_normal(500, mean, second, 3))
    assert found == pytest.approx(truth, abs=1e-4)
    assert found > 1


@pytest.mark.parametrize("offset", [1e4, 1e7, 1e8, -1e8])
def test_a_common_offset_changes_no_distance_that_is_one_of_positions(offset):
    """Sums of squares at 1e8 have no digits left for a variance of 1: it was 0.0 there, and 5 % off at 1e7."""
    rng = torch.Generator().manual_seed(5)
    real, fake = (torch.randn(200, 8, dtype=torch.float64, generator=rng) for _ in range(2))
    moved = [(1.5 * rows + 0.5 * shift + offset) for rows, shift in ((fake, 1), (real, 0))]
    near = [rows - offset for rows in moved]  # exact: what the offset's own rounding left
    assert frechet_distance(*moved) == pytest.approx(frechet_distance(*near), rel=1e-6)
    assert nearest_scores(*moved) == nearest_scores(*near)


def test_frechet_distance_of_a_set_to_itself_is_zero_where_the_covariance_is_singular_too():
    for num, size in ((400, 20), (30, 100)):
        rows = torch.randn(num, size, generator=torch.Generator().manual_seed(num)) * 3 + 50
        assert 0 <= frechet_distance(rows, rows) < 1e-4


def test_kernel_distance_is_unbiased_and_has_one_value():
    rng = torch.Generator().manual_seed(0)
    first, second = (torch.randn(600, 8, generator=rng) for _ in range(2))
    mean, std = kernel_distance(first, second)
    assert abs(mean) < 2 * std  # subsets share their rows, so their mean is not ten times as sure
    assert kernel_distance(first, second) == (mean, std)
    shifted, _ = kernel_distance(first + 1, second)
    x, y = (first + 1).double(), second.double()
    kernel = [(a @ b.T / 8 + 1) ** 3 for a, b in ((x, x), (y, y), (x, y))]
    within = [(k.sum() - k.trace()) / (600 * 599) for k in kernel[:2]]
    assert shifted == pytest.approx(float(within[0] + within[1] - 2 * kernel[2].mean()), rel=0.1)


def brute_force(fake, real):
    """The four scores by their definitions, one pair at a time."""

    def radius(rows, k):
        return [sorted(np.linalg.norm(rows - row, axis=1))[k] for row in rows]  # 0 is the row itself

    fake, real = fake.double().numpy(), real.double().numpy()
    apart = np.linalg.norm(fake[:, None] - real[None], axis=2)
    three, five, other = radius(real, 3), radius(real, 5), radius(fake, 3)
    return {
        "precision": np.mean([any(apart[j, i] <= three[i] for i in range(len(real))) for j in range(len(fake))]),
        "recall": np.mean([any(apart[j, i] <= other[j] for j in range(len(fake))) for i in range(len(real))]),
        "density": np.mean([sum(apart[j, i] <= five[i] for i in range(len(real))) / 5 for j in range(len(fake))]),
        "coverage": np.mean([any(apart[j, i] <= five[i] for j in range(len(fake))) for i in range(len(real))]),
    }


@pytest.mark.parametrize("chunk", [1 << 24, 100])
def test_nearest_scores_are_their_definitions_in_blocks_of_any_size(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", chunk)
    rng = torch.Generator().manual_seed(1)
    real, fake = torch.randn(60, 4, generator=rng) + 100, 0.7 * torch.randn(50, 4, generator=rng) + 101.5
    found, expected = nearest_scores(fake, real), brute_force(fake, real)
    assert vars(found) == pytest.approx(expected)
    assert 0 < found.recall < found.precision < 1


def test_no_chunk_is_larger_than_said(monkeypatch):
    sizes = []
    cdist = torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda a, b: sizes.append(len(a) * len(b)) or cdist(a, b))
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 2000)
    rows = torch.randn(300, 3, generator=torch.Generator().manual_seed(2))
    scores = nearest_scores(rows, rows)
    assert (scores.precision, scores.recall, scores.coverage) == (1, 1, 1)
    assert max(sizes) <= 2000


def scored(digits, network, changed, part="test"):
    return measure_fidelity(changed, getattr(digits, part), network, part=part)


def with_pixels(images, pixels):
    return Images(pixels, images.labels, images.classes)


def blurred(images):
    pixels = images.images.float()
    for _ in range(2):
        pixels = avg_pool2d(pixels, 3, stride=1, padding=1)
    return with_pixels(images, pixels.round().to(torch.uint8))


def grained(images):
    grain = 180 * torch.randn(images.images.shape, generator=torch.Generator().manual_seed(4))
    return with_pixels(images, (images.images.float() + grain).clamp(0, 255).round().to(torch.uint8))


@pytest.fixture(scope="module")
def autoencoder(digits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.metrics.features.FEWEST_STEPS", 150)  # half of them
        return fit_feature_autoencoder(full_training_set(digits))


@pytest.fixture(params=["feature_classifier", "autoencoder"])
def network(request):
    return request.getfixturevalue(request.param)


@pytest.mark.trained
def test_blur_and_dropped_classes_are_seen(digits, network):
    num = len(digits.test)
    real, others = (digits.private.select(2 * torch.arange(num) + start) for start in (0, 1))
    whole, again = scored(digits, network, real), scored(digits, network, others)
    blur = scored(digits, network, blurred(real))
    few = digits.private.select(digits.private.labels < 3)
    few = few.select(torch.arange(num) % len(few))  # as many, of three classes
    lost = scored(digits, network, few)
    for worse in (blur, lost):
        assert worse.fid > 2 * whole.fid
        assert worse.kid > whole.kid + 2 * whole.kid_std
        assert worse.coverage < whole.coverage - 0.2
        assert worse.recall < whole.recall - 0.2
    assert blur.density < whole.density - 0.2  # not its precision: all may lie within one wide radius
    assert lost.recall < 0.5
    # The control: other real images are no worse.
    assert again.fid < 2 * whole.fid
    assert again.kid < whole.kid + 2 * whole.kid_std
    assert again.coverage > whole.coverage - 0.2
    assert again.recall > whole.recall - 0.2
    assert again.density > whole.density - 0.2


@pytest.mark.trained
def test_grain_lowers_the_precision(digits, autoencoder):
    num = len(digits.test)
    real, others = (digits.private.select(2 * torch.arange(num) + start) for start in (0, 1))
    whole, again, grain = (scored(digits, autoencoder, images).precision for images in (real, others, grained(real)))
    assert grain < whole - 0.2
    assert again > whole - 0.2  # control: other real images


def test_the_result_says_what_it_was_measured_with(digits, feature_classifier, tmp_path):
    result = scored(digits, feature_classifier, digits.private, "holdout").to_json()
    assert (result["part"], result["num_images"], result["num_real"]) == (
        "holdout", len(digits.private), len(digits.holdout)
    )  # fmt: skip
    assert (result["num_nearest"], result["num_features"]) == (len(digits.holdout), 64)
    assert (result["network"], result["resize"]) == ("classifier", None)
    assert result["features_sha256"] == feature_classifier.sha256
    assert "too few for FID" in result["notes"][0]  # 144 images at 64 features
    assert set(SCORES) <= set(result)
    enough = scored(digits, feature_classifier, digits.private)  # 359 >= 5 x 64
    assert not any("FID" in note for note in enough.notes)


def test_an_autoencoder_is_kept_and_has_one_hash(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("idpgan.metrics.features.FEWEST_STEPS", 3)
    some, cache = digits.private.select(torch.arange(50)), Cache(tmp_path)
    first = fit_feature_autoencoder(some, cache=cache)
    monkeypatch.setattr("idpgan.metrics.features._fit_autoencoder", None)  # calling it again would fail
    assert fit_feature_autoencoder(some, cache=cache).sha256 == first.sha256


@pytest.mark.parametrize(("num", "expected"), [(2, 300), (1437, 300), (6400, 1000), (19_200, 3000), (10**6, 3000)])
def test_the_steps_of_an_autoencoder_follow_the_number_of_images(num, expected):
    assert num_steps(num) == expected


def test_each_step_of_an_autoencoder_is_shown(digits, monkeypatch):
    monkeypatch.setattr("idpgan.metrics.features.FEWEST_STEPS", 1)
    seen = []
    some = digits.private.select(torch.arange(13))  # 20 x 13 images, 128 at a time: 2.03
    fit_feature_autoencoder(some, progress=lambda what, done, total, note="": seen.append((what, done, total)))
    assert seen == [("feature autoencoder, steps", done, 3) for done in range(4)]


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 112, 92), (1, 64, 64)])
def test_an_autoencoder_takes_images_of_any_size(shape):
    from idpgan.metrics.features import Autoencoder

    model, images = Autoencoder(shape), torch.zeros(2, *shape)
    assert model(images).shape == (2, 64)
    assert model.decode(model(images)).shape == images.shape


def test_what_the_holdout_judges_was_not_trained_on_the_holdout(digits):
    seen = full_training_set(digits, "holdout")
    assert len(seen) == len(digits.public) + len(digits.private)
    assert seen.digest() != full_training_set(digits).digest()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frechet_distance(torch.zeros(5, 3), torch.zeros(5, 2)), "3 features do not compare with 2"),
        (lambda: frechet_distance(torch.zeros(1, 3), torch.zeros(5, 3)), "at least 2 rows"),
        (lambda: kernel_distance(torch.full((9, 3), torch.nan), torch.zeros(9, 3)), "NaN"),
        (lambda: nearest_scores(torch.zeros(5, 3), torch.zeros(9, 3)), "at least 6 rows"),
        (lambda: nearest_scores(torch.zeros(9, 3, dtype=torch.int64), torch.zeros(9, 3)), "floating point"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_inception_is_read_from_a_file_and_from_nothing_else(tmp_path):
    from safetensors.torch import save_file

    save_file({"conv.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    torch.save(print, tmp_path / "code.pth")
    for name, message in (
        ("other.safetensors", "inception_v3"),
        ("broken.pth", "cannot be read as weights"),
        ("code.pth", "cannot be read as weights"),
        ("missing.pth", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            load_inception(tmp_path / name, (1, 8, 8))
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_inception_features_of_grey_images(tmp_path, digits):
    import hashlib

    from torchvision.models import inception_v3

    torch.manual_seed(0)
    whole = inception_v3(weights=None, init_weights=False).eval()  # with both heads, as the file comes
    path = tmp_path / "inception.pth"
    torch.save(whole.state_dict(), path)
    network = load_inception(path, digits.image_shape)
    assert network.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    some = digits.private.select(torch.arange(8))
    result = measure_fidelity(some, digits.test.select(torch.arange(8)), network)
    assert (result.num_features, result.resize, result.network) == (2048, 299, "inception-v3")
    assert "singular" in result.notes[0]
