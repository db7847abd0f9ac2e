"""A rehearsal takes public facts alone, says what an attacker could do, and that a larger epsilon is worth more."""

import dataclasses
from pathlib import Path

import pytest
import torch

from idpgan.commands.rehearse import RehearseOptions, rehearse_config, risk_of
from idpgan.data import load as loading
from idpgan.data import people
from idpgan.data import stand_ins as drawing
from idpgan.data.load import DataShape, Sizes, known_shape
from idpgan.data.stand_ins import stand_ins
from idpgan.errors import InputError
from idpgan.privacy.tradeoff import gaussian_mu
from idpgan.trainer import load_config
from idpgan.training.plan import plan_run
from tests.data.made_head import made_head

SHAPES = {
    "faces": DataShape(Sizes(0, 90, 9, 40), (1, 32, 32), ("neutral", "happiness")),
    "colored faces of people": DataShape(Sizes(30, 90, 0, 40), (3, 28, 28), tuple("abc"), True),
    "many people as classes": DataShape(Sizes(0, 90, 0, 40), (1, 28, 28), tuple(map(str, range(100, 180)))),
    "digits": DataShape(Sizes(0, 90, 0, 40), (1, 28, 28), tuple("0123456789")),
    "small": DataShape(Sizes(0, 90, 0, 40), (1, 8, 8), ("x", "y", "z")),
    "unlabeled": DataShape(Sizes(0, 90, 0, 40), (1, 28, 28), ()),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_stand_ins_have_the_shape_number_and_classes(kind, monkeypatch):
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    shape = SHAPES[kind]
    split = stand_ins(shape)
    found = split.shape
    assert (found.image_shape, found.classes, found.has_people) == (shape.image_shape, shape.classes, shape.has_people)
    assert found.sizes[:2] == shape.sizes[:2]
    assert len(split.test) == 40 or kind == "faces"
    if shape.classes:
        counts = torch.bincount(split.private.labels, minlength=len(shape.classes))
        assert counts.max() - counts.min() <= 1
    assert split.digest == stand_ins(shape).digest


def test_no_person_of_the_stand_ins_is_in_two_parts(monkeypatch):
    """Else a config of unit person, as `idpgan init` proposes it, could not be rehearsed."""
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    split = stand_ins(SHAPES["colored faces of people"])
    people = [set(part.identities.tolist()) for part in (split.public, split.private, split.test)]
    assert all(people)
    assert len(set.union(*people)) == sum(map(len, people))


def apart(one, other):
    """The largest difference of the means of two sets of images at a pixel, in its standard errors."""
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return float(((one.mean(0) - other.mean(0)).abs() / error.clamp(min=1e-9)).max())


def test_classes_of_faces_look_different(monkeypatch):
    """By their mouths. Negative control: halves of one class."""
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    split = stand_ins(dataclasses.replace(SHAPES["faces"], sizes=Sizes(0, 1200, 0, 40)))
    images, labels = split.private.images.double(), split.private.labels
    one = images[labels == 0]
    assert apart(one[::2], one[1::2]) < 6 < apart(one, images[labels == 1])


def test_portraits_stand_in_where_the_run_draws_portraits(monkeypatch):
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    monkeypatch.setattr("idpgan.data.people.read_head", made_head)
    assert [drawing.kind_of(SHAPES[name], True).split()[0] for name in ("faces", "many people as classes", "digits")] \
        == ["portraits", "drawn", "digits"]  # fmt: skip
    few = dataclasses.replace(SHAPES["faces"], sizes=Sizes(0, 30, 0, 20))
    images = stand_ins(few, portraits=True).private
    drawn = people.draw(30, 32, 1, seed=7_101).images
    smiling = {image.numpy().tobytes() for image in drawn.images[drawn.attributes[:, 0] == 1]}
    assert [image.numpy().tobytes() in smiling for image in images.images] == images.labels.bool().tolist()


def test_nothing_private_is_read(monkeypatch):
    def read(*_):
        raise AssertionError("a private image was read")

    monkeypatch.setattr(loading.digits, "read", read)
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    options = RehearseOptions(("digits-gaussian", "model.latent_dim=4", "1", "10"))
    monkeypatch.setattr("idpgan.metrics.evaluation.evaluate_images", lambda *_, **__: _Measured())
    done = rehearse_config(options)
    assert [row.epsilon for row in done.rows] == [1, 10]
    assert done.picture[:4] == b"\x89PNG"
    assert done.num_private == known_shape(load_config(options.config).data).num_private


class _Measured:
    @property
    def results(self):
        return {"utility": self, "fidelity": self}

    kid, scores, accuracies = 0.1, property(lambda self: [self]), (0.5,)


def test_what_an_attacker_can_do_is_the_bound_of_the_mechanism():
    """Gaussian noise alone: TPR = Phi(Phi^-1(1 %) + mu), Dong, Roth and Su (2022)."""
    from scipy.special import ndtr, ndtri

    rates = []
    for epsilon in (0.3, 1.0, 3.0, 10.0):
        config = load_config(Path("digits-gaussian"), [f"privacy.epsilon={epsilon}"])
        planned = plan_run(config, known_shape(config.data))
        risk = risk_of(planned)
        mu = gaussian_mu(planned.price.epsilon, planned.price.delta)
        assert risk.found[0.01] == pytest.approx(ndtr(ndtri(0.01) + mu), abs=2e-6)
        assert risk.best_guess == pytest.approx(ndtr(mu / 2), abs=2e-6)
        rates.append(risk.found[0.01])
    assert rates == sorted(rates)
    assert 0.01 < rates[0] < 0.02


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("digits-wgan-gp",), "no privacy.epsilon to rehearse"),
        (("digits-gaussian", "-1"), "must be positive"),
        (("digits-gaussian", "privacy.delta=0.5", "1"), "below 1/N"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_before_anything_is_drawn(arguments, said, monkeypatch):
    monkeypatch.setattr("idpgan.data.stand_ins.stand_ins", lambda *_: pytest.fail("drawn"))
    with pytest.raises(InputError, match=said):
        rehearse_config(RehearseOptions(arguments))


def test_numbers_among_the_arguments_are_epsilons():
    assert RehearseOptions(("c.toml", "1", "3", "10"), epsilon=(0.3,)).epsilons == (0.3, 1, 3, 10)
    assert RehearseOptions(("c.toml",)).epsilons == (0.3, 1, 3, 10)
    assert RehearseOptions(("c.toml", "2")).epsilons == (2,)
    with pytest.raises(InputError, match=r"FILE\.png"):
        RehearseOptions(("c.toml",), out=Path("x.jpg"))


@pytest.mark.slow
@pytest.mark.trained
def test_a_larger_epsilon_is_worth_more():
    done = rehearse_config(RehearseOptions(("digits-gaussian", "1", "30")))
    assert done.majority < done.rows[0].accuracy + 0.05
    assert done.rows[0].accuracy + 0.05 < done.rows[1].accuracy < done.real
