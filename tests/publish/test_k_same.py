"""k-same: groups of k share their mean; it hides who is in once, and not who is in several times."""

import pytest
import torch

from idpgan.data.faces import draw_people
from idpgan.errors import InputError
from idpgan.metrics.recognition import halves, recognize
from idpgan.publish import make_obfuscator

PEOPLE, EACH, K = 12, 8, 4


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
