"""A rehearsal takes public facts alone, says what an attacker could do, and that a larger epsilon is worth more."""

import dataclasses
from pathlib import Path

import pytest
import torch

from idpgan.commands import rehearse as command
from idpgan.commands.rehearse import RehearseOptions, rehearse_config, repeated
from idpgan.data import eyes, faces, people
from idpgan.data import load as loading
from idpgan.data import stand_ins as drawing
from idpgan.data.config import DataConfig
from idpgan.data.face_drawing import landmarks
from idpgan.data.load import DataShape, Sizes, known_shape
from idpgan.data.stand_ins import stand_ins
from idpgan.errors import InputError
from idpgan.privacy.tradeoff import gaussian_mu
from idpgan.report.rehearsal import rehearsal_page
from idpgan.synthesis.facts import eyes_of
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


def test_no_more_faces_are_painted_than_images_stand_in(monkeypatch):
    """Choosing rare looks among three times as many painted faces took most of a rehearsal's time."""
    painted, paint = [], faces.paint
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    monkeypatch.setattr(
        faces, "paint", lambda look, *rest, **more: painted.append(len(look["tilt"])) or paint(look, *rest, **more)
    )
    split = stand_ins(SHAPES["faces"])
    assert painted == [len(split.private), len(split.test)]


def test_so_many_people_stand_in_as_are_declared(monkeypatch):
    """What is released of people counts each once: four images of each made 1.7 times as much noise of 2.4."""
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    split = stand_ins(SHAPES["colored faces of people"], per_person=2.4)
    assert len(split.private.identities.unique()) == round(90 / 2.4)


def test_eyes_of_stand_ins_are_where_those_of_the_photos_are(monkeypatch, tmp_path):
    """Else they are registered to nothing: 1,461 photos in place were foretold 51 %. Not so where none is in place."""
    looks = []
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    monkeypatch.setattr(
        faces,
        "paint",
        lambda look, *_, **__: looks.append(look) or torch.zeros(len(look["tilt"]), 1, 32, 32, dtype=torch.uint8),
    )

    def eyes_at(places):
        stand_ins(SHAPES["faces"], eyes=places)
        points = landmarks(looks[-1], 32, 32) / 32
        return torch.stack([points[:, 36:42].mean(1), points[:, 42:48].mean(1)], 1)

    left, right, level = eyes.PLACES
    wanted = torch.tensor([[left, level], [right, level]])
    assert (eyes_at(eyes.PLACES) - wanted).abs().max() < 1e-4
    assert (eyes_at(None) - wanted).abs().max() > 0.05
    root = tmp_path / "photos"
    root.mkdir()
    config = DataConfig(name="folder", root=root)
    assert eyes_of(config) is None
    (root / "prepared.json").write_text('{"aligned": {"eyes": 9}}')
    assert eyes_of(config) == eyes.PLACES
    assert eyes_of(DataConfig(name="digits")) is None


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


def test_nothing_private_is_read(monkeypatch, tmp_path):
    def read(*_):
        raise AssertionError("a private image was read")

    monkeypatch.setattr(loading.digits, "read", read)
    monkeypatch.setattr(drawing, "LEAST_TEST", 20)
    page = tmp_path / "page.html"
    options = RehearseOptions(("digits-gaussian", "model.latent_dim=4", "1", "10"), out=page)
    monkeypatch.setattr("idpgan.metrics.evaluation.evaluate_images", lambda *_, **__: _Measured())
    done = rehearse_config(options)
    assert [row.epsilon for row in done.rows] == [1, 10]
    assert [row.shown.classes for row in done.rows] == [done.shown.classes] * 2
    assert page.read_text() == rehearsal_page(done)
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
        once, *several = repeated(planned)
        risk, mu = once.risk, gaussian_mu(planned.price.epsilon, planned.price.delta)
        assert once.epsilon == planned.price.epsilon
        for again in several:  # Gaussian mechanisms compose in mu
            assert again.risk.best_guess == pytest.approx(ndtr(mu * again.times**0.5 / 2), abs=2e-6)
            assert gaussian_mu(again.epsilon, planned.price.delta) == pytest.approx(mu * again.times**0.5, rel=1e-3)
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
    monkeypatch.setattr("idpgan.data.stand_ins.stand_ins", lambda *_, **__: pytest.fail("drawn"))
    with pytest.raises(InputError, match=said):
        rehearse_config(RehearseOptions(arguments, out=None))


def test_a_page_of_another_origin_is_not_overwritten(monkeypatch, tmp_path):
    monkeypatch.setattr("idpgan.data.stand_ins.stand_ins", lambda *_, **__: pytest.fail("drawn"))
    (tmp_path / "mine.html").write_text("<html>")
    with pytest.raises(InputError, match="Move it away"):
        rehearse_config(RehearseOptions(("digits-gaussian",), out=tmp_path / "mine.html"))


def test_both_units_are_tried_where_method_and_data_have_them():
    """With the cap that `idpgan init` would propose; nobody is named, or one is in two parts: the config's alone."""
    config = load_config(Path("faces-gaussian"), ["data.split_by=identity"])
    shape = known_shape(config.data)
    assert command._units(config, shape) == [str(config.privacy.unit), "person"]
    assert command._at(config, 2.0, "person", 2.4).privacy.most_per_person == 3
    assert command._at(config, 2.0, "image", 2.4).privacy == config.privacy.model_copy(update={"epsilon": 2.0})
    assert command._units(config, dataclasses.replace(shape, has_people=False)) == [str(config.privacy.unit)]
    assert command._units(load_config(Path("faces-gaussian"), ["data.split_by=image"]), shape) == ["image"]


def test_numbers_among_the_arguments_are_epsilons():
    assert RehearseOptions(("c.toml", "1", "3", "10"), epsilon=(0.3,)).epsilons == (0.3, 1, 3, 10)
    assert RehearseOptions(("c.toml",)).epsilons == (0.2, 0.5, 1, 2, 3, 5, 10)
    assert RehearseOptions(("c.toml", "2")).epsilons == (2,)
    with pytest.raises(InputError, match=r"FILE\.html"):
        RehearseOptions(("c.toml",), out=Path("x.png"))
    with pytest.raises(InputError, match="--unit label"):
        RehearseOptions(("c.toml",), unit=("label",))


@pytest.mark.slow
@pytest.mark.trained
def test_a_larger_epsilon_is_worth_more():
    done = rehearse_config(RehearseOptions(("digits-gaussian", "1", "30"), out=None))
    assert done.majority < done.rows[0].accuracy + 0.05
    assert done.rows[0].accuracy + 0.05 < done.rows[1].accuracy < done.real
