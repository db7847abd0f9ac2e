"""Blur, pixelation, disguise and k-same do what their docstrings say; k-same does not hide who is in several times."""

import pytest
import torch

from idpgan.commands.audit import audit_entry, nothing_to_audit
from idpgan.data.faces import draw_people
from idpgan.errors import InputError
from idpgan.methods import METHODS, methods_of
from idpgan.metrics.recognition import halves, recognize
from idpgan.publish import load_obfuscator, make_obfuscator, release
from idpgan.publish.obfuscators.filters import from_blocks, to_blocks

SHAPE = (1, 16, 16)
PEOPLE, EACH, K = 12, 8, 4  # of k-same


def test_a_blurred_point_is_the_normal_density():
    image = torch.zeros(1, 1, 33, 33)
    image[0, 0, 16, 16] = 1
    blurred = make_obfuscator("blur", (1, 33, 33), sigma=2.0).transform(image)[0, 0]
    away = torch.arange(33) - 16.0
    density = torch.exp(-(away[:, None] ** 2 + away**2) / 8)
    assert torch.allclose(blurred, density / density.sum(), atol=1e-4)


def test_a_flat_image_stays_flat_to_the_border():
    flat = torch.full((2, 3, 12, 16), 0.3)
    for name, options in (("blur", {"sigma": 5.0}), ("pixelate", {"block": 5})):
        assert torch.allclose(make_obfuscator(name, (3, 12, 16), **options).transform(flat), flat)


def test_pixelation_keeps_block_means_and_nothing_else():
    images = torch.rand(3, 1, 10, 8, generator=torch.Generator().manual_seed(1))
    out = make_obfuscator("pixelate", (1, 10, 8), block=4).transform(images)
    assert torch.allclose(out[:, :, :4, :4].mean((2, 3)), images[:, :, :4, :4].mean((2, 3)))
    assert torch.allclose(out[:, :, 8:, 4:], images[:, :, 8:, 4:].mean((2, 3), keepdim=True).expand(3, 1, 2, 4))
    assert len(out[0, 0].unique()) == 6  # 2.5 x 2 blocks


def test_blocks_are_put_together_again():
    images = torch.rand(2, 3, 8, 12)
    assert torch.equal(from_blocks(to_blocks(images, 4), (8, 12)), images)


def test_a_disguise_without_matrices_and_noise_permutes_blocks():
    images = torch.rand(2, 1, 16, 16)
    hidden = make_obfuscator("disguise", SHAPE, block=4, transform=False, noise=0.0, key=3).transform(images)
    before, after = (to_blocks(x, 4)[0].flatten(1) for x in (images, hidden))
    nearest = torch.cdist(before, after)
    assert (nearest.amin(1) < 1e-3).all()
    assert nearest.argmin(1).sort().values.tolist() == list(range(16))
    assert nearest.argmin(1).tolist() != list(range(16))


def test_disguised_images_stay_images_and_need_the_key():
    images = torch.rand(8, 1, 16, 16)
    one = make_obfuscator("disguise", SHAPE, block=4, noise=0.0, key=3)
    other = make_obfuscator("disguise", SHAPE, block=4, noise=0.0, key=4)
    hidden = one.transform(images)
    assert hidden.min() >= 0
    assert hidden.max() <= 1
    assert torch.equal(one.transform(images), hidden)
    assert not torch.allclose(other.transform(images), hidden, atol=0.05)
    centered = (to_blocks(hidden, 4) - 0.5) * one.matrices.abs().sum(1).max()
    back = torch.einsum("nkcij,klj->nkcil", centered, one.matrices) + 0.5
    assert torch.allclose(back, to_blocks(images, 4)[:, one.order], atol=1e-4)


def test_a_key_is_shown_nowhere_but_to_its_curator():
    made = release(torch.rand(3, 16, 16), "disguise", accept_unsound=True, key=123456789)
    assert made.options == {"block": 4, "permute": True, "transform": True, "noise": 0.01}
    assert "123456789" not in f"{made!r} {made.privacy} {made.events}"


def test_a_fresh_key_is_drawn_and_kept(tmp_path):
    one, other = (make_obfuscator("disguise", SHAPE, block=4) for _ in range(2))
    assert not torch.equal(one.matrices, other.matrices)
    one.save(tmp_path)
    again = load_obfuscator(tmp_path)
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(again.transform(images, seed=1), one.transform(images, seed=1))


@pytest.mark.parametrize(
    ("name", "shape", "options", "said"),
    [
        ("blurr", SHAPE, {}, "'blurr' is not a known publisher. Did you mean 'blur'?"),
        ("blur", SHAPE, {"sigma": 0.0}, "sigma"),
        ("blur", (2, 8, 8), {}, "neither grey"),
        ("disguise", (1, 10, 16), {"block": 4}, "block = 4 must divide both sides of 16 x 10"),
        ("pprl-vgan", SHAPE, {}, "at least 2 values to keep and 2 people to hide, got 0 and 0"),
        ("pixelate", SHAPE, {"blocks": 2}, "blocks"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(name, shape, options, said):
    with pytest.raises(InputError, match=said) as error:
        make_obfuscator(name, shape, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "images", [torch.rand(2, 1, 8, 8), torch.rand(2, 1, 16, 16) * 2, torch.full((1, 1, 16, 16), torch.nan)]
)
def test_images_of_another_shape_or_range_are_refused(images):
    with pytest.raises(InputError):
        make_obfuscator("blur", SHAPE).transform(images)


@pytest.mark.parametrize("name", methods_of("obfuscator"))
def test_an_audit_of_an_obfuscator_says_why_there_is_none(name):
    with pytest.raises(InputError, match="so there is no guarantee to audit"):
        audit_entry(name)
    assert nothing_to_audit(name) == METHODS[name].nothing_to_audit


# k-same ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces():
    """Pictures of drawn people, (96, 1, 32, 28), and who is on them."""
    drawn = draw_people(PEOPLE, EACH, 32, 28, channels=1, seed=1)
    return drawn.images.float() / 255, drawn.identities


def surrogates(images, k=K, seed=0):
    return make_obfuscator("k-same", tuple(images.shape[1:]), k=k).transform(images, seed=seed)


@pytest.mark.parametrize("num", [4, 7, 8, 23])
def test_groups_share_their_mean(num):
    images = torch.rand(num, 1, 6, 5, generator=torch.Generator().manual_seed(1))
    groups, member = surrogates(images).unique(dim=0, return_inverse=True)
    sizes = member.bincount()
    assert sizes.sort().values[:-1].tolist() == [K] * (num // K - 1)  # fewer than 2 k that are left are one group
    for group, size in enumerate(sizes):
        assert K <= size < 2 * K
        assert torch.allclose(groups[group], images[member == group].mean(0), atol=1e-6)


def test_those_who_look_alike_are_averaged():
    lines = torch.tensor([0.0, 0.9, 0.1, 1.0, 0.05, 0.95]).view(6, 1, 1, 1)
    expected = torch.tensor([0.05, 0.95] * 3).view(6, 1, 1, 1)
    for seed in range(3):  # whoever is drawn first
        assert torch.allclose(surrogates(lines, 3, seed), expected)


def test_who_is_in_once_is_named_once_in_k(faces):
    """The theorem of Newton, Sweeney and Malin, against the nearest clear image."""
    clear = faces[0][::EACH].flatten(1)
    shown = surrogates(faces[0][::EACH]).flatten(1)
    right = torch.cdist(shown, clear).argmin(1) == torch.arange(PEOPLE)
    assert right.float().mean() <= 1 / K
    assert (torch.cdist(clear, clear).argmin(1) == torch.arange(PEOPLE)).all()  # the control: clear images are named


@pytest.mark.parametrize("parrot", [False, True])
def test_who_is_in_several_times_is_found(faces, parrot):
    """He knows other pictures of these people, clear (naive) or released (parrot): far more than one in k."""
    images, people = faces
    shown = surrogates(images)
    known, asked = halves(people)
    learned = shown if parrot else images
    found = recognize(learned[known], people[known], shown[asked], people[asked], 20)
    assert found.accuracy > 2 / K


def test_too_few_images_are_refused():
    with pytest.raises(InputError, match="changes 5 images together, and here are 4"):
        surrogates(torch.rand(4, 1, 3, 3), 5)
