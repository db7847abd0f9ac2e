"""Exposure is exact by rank and extrapolated by a law; learning by heart is seen, private training is not."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from papers.exposure import CanarySpace, expose, exposure_of, main, with_canaries
from papers.literature.exposure import FLOOR, _log_tail, exposure, rank_exposure, rank_of_first
from scipy.stats import norm, skewnorm

from idpgan import trainer
from idpgan.attacks.losses import loss_threshold
from idpgan.config import dump_toml
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.models.private_classifier import GroupNormCnn
from idpgan.training.config import build_config
from idpgan.training.fit import FitConfig, fit_classifier, predict

CONFIG = Path(__file__).parents[2] / "configs" / "digits-dp-sgd.toml"


def test_exposure_by_rank_is_its_definition():
    references = torch.arange(1023.0)
    found = rank_exposure(torch.tensor([5000.0, 1022.0, 1021.5, 511.0, -1.0]), references)
    assert found.tolist() == pytest.approx([10.0, 9.0, 9.0, 10 - math.log2(513), 0.0])  # a tie counts against it


def test_canaries_that_nobody_has_seen_have_the_exposure_of_chance():
    rng = torch.Generator().manual_seed(1)
    scores, references = torch.randn(500, generator=rng), torch.randn(1000, generator=rng)
    found = exposure(scores, references, 64.0)
    assert found.by_rank.mean().item() == pytest.approx(FLOOR, abs=0.25)
    assert found.extrapolated.mean().item() == pytest.approx(FLOOR, abs=0.25)
    assert found.fits
    assert not exposure(scores, references.sign() * 5 + references, 64.0).fits  # two humps: no skew-normal law


def test_extrapolation_reaches_beyond_the_references():
    references = torch.from_numpy(norm.ppf((np.arange(2000) + 0.5) / 2000))
    found = exposure(torch.tensor([6.0, 20.0], dtype=torch.float64), references, 40.0)
    assert found.by_rank.tolist() == [math.log2(2001)] * 2
    assert found.extrapolated[0].item() == pytest.approx(-norm.logsf(6.0) / math.log(2), rel=0.15)
    assert found.extrapolated[1].item() == 40.0  # no more than the space holds
    assert json.dumps(found.to_json())


@pytest.mark.parametrize("shape", [-4.0, 0.0, 3.0])
def test_the_tail_of_the_law_is_exact(shape):
    for z in (-6.0, -1.0, 0.5, 2.0):
        exact = skewnorm.sf(z, shape)
        if exact > 1e-12:
            assert math.exp(_log_tail(z, shape)) == pytest.approx(exact, rel=1e-3)
    assert _log_tail(30.0, 0.0) == pytest.approx(math.log(2) + norm.logsf(30.0) - math.log(2), rel=1e-6)


def test_bad_scores_are_refused():
    good = torch.randn(200)
    for scores, references, words in (
        (torch.tensor([math.nan]), good, "finite"),
        (torch.ones(1), good[:50], "at least 100"),
        (torch.ones(1), torch.ones(200), "same score"),
        (torch.ones(0), good, "a canary"),
    ):
        with pytest.raises(InputError, match=words):
            exposure(scores, references)


def test_the_space_is_what_it_declares():
    space = CanarySpace((3, 28, 28), ("a", "b", "c", "d"))
    assert space.bits == 66
    drawn = space.draw(50, 1)
    assert drawn.images.shape == (50, 3, 28, 28)
    assert drawn.images.unique().tolist() == [0, 255]
    assert len(drawn.images.flatten(1).unique(dim=0)) == 50
    assert CanarySpace((1, 8, 8)).draw(3, 1).labels is None


def test_completions_are_all_members_that_agree_with_what_is_known():
    space = CanarySpace((3, 28, 28), ("a", "b"))
    member = space.draw(1, 1)
    found = space.completions(member, 5, 2)
    assert torch.equal(found.images[:1], member.images)
    assert len(found.images.flatten(1).unique(dim=0)) == 32
    assert found.images.unique().tolist() == [0, 255]
    assert int((found.images != member.images).any(0).any(0).sum()) < 28 * 28 / 4  # five of 64 blocks
    assert found.labels.unique().tolist() == member.labels.tolist()
    assert not torch.equal(space.completions(member, 5, 3).images, found.images)
    for unknown in (0, 17):
        with pytest.raises(InputError, match="unknown blocks must be in"):
            space.completions(member, unknown, 0)
    assert [rank_of_first(torch.tensor(scores)) for scores in ([3.0, 1, 2], [1.0, 1, 0], [0.0, 1, 2])] == [1, 2, 3]


@pytest.fixture(scope="module")
def few():
    """Forty digits: easily learned by heart."""
    config = build_config({"data": {"name": "digits"}, "method": {"name": "dp-sgd"}, **PRIVACY}, "test")
    split = load(config.data)
    return dataclasses.replace(split, private=split.private.select(torch.arange(40)))


PRIVACY = {"privacy": {"epsilon": 1.0, "delta": 1e-4}}


def by_heart(split):
    """Fit a network without any privacy until it knows all that it was given."""
    model = GroupNormCnn(split.image_shape, split.classes, width=8, seed=0)
    images = split.private.existing()
    fit_classifier(
        model, images.images, images.labels,
        config=FitConfig(epochs=40, batch_size=32, learning_rate=1e-2, weight_decay=0, held_back_share=0.02),
    )  # fmt: skip
    return model


def privately(split):
    config = build_config(
        {
            "data": {"name": "digits"}, "method": {"name": "dp-sgd", "width": 8},
            "training": {"steps": 10, "batch_size": 40, "tick_steps": 10}, **PRIVACY,
        },
        "test",
    )  # fmt: skip
    return trainer.train_on(config, split).product


def loss(model, images):
    logits = model.logits if hasattr(model, "logits") else (lambda x: predict(model, x))
    return loss_threshold(images.images, images.labels, logits)


@pytest.mark.trained
def test_a_network_that_learns_by_heart_is_exposed_and_a_private_one_is_not(few):
    searched = {"canaries": 40, "references": 200, "repeats": 2, "unknown": 6}
    _, learned, found = expose(few, by_heart, {"loss": loss}, **searched)
    _, private, missed = expose(few, privately, {"loss": loss}, **searched)
    assert learned["loss"].by_rank.mean() > 5
    assert learned["loss"].by_rank.mean() > private["loss"].by_rank.mean() + 3
    # Chance, and what epsilon = 1 allows above it for a record that is there twice: 2 epsilon / ln 2.
    assert private["loss"].by_rank.mean() < FLOOR + 2 / math.log(2)
    # Among 64 ways to fill it a secret comes early; one that nobody has seen, or that was learned privately, anywhere.
    assert found["loss"].extracted[0] > 3
    assert found["loss"].ranks.double().mean() < 16
    assert min(each.double().mean() for each in (found["loss"].never_seen, missed["loss"].ranks)) > 23


def test_canaries_stand_among_the_private_images_only(few):
    drawn = CanarySpace(few.image_shape, few.classes).draw(3, 0)
    joined = with_canaries(few, drawn, 4)
    assert len(joined.private) == 52
    assert torch.equal(joined.private.images[40:], drawn.images.repeat(4, 1, 1, 1))
    assert (joined.holdout, joined.test, joined.public) == (few.holdout, few.test, few.public)


def test_a_config_is_trained_with_secrets_and_nothing_of_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = build_config(
        {
            "data": {"name": "digits"}, "method": {"name": "dp-sgd", "width": 4},
            "training": {"steps": 2, "batch_size": 60, "tick_steps": 2}, **PRIVACY,
        },
        "test",
    )  # fmt: skip
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(config))
    report = exposure_of(path, canaries=5, references=100, unknown=3)
    assert list(report.results) == list(report.extractions) == ["critic"]
    assert "out of 8 ways to fill its 3 unknown blocks" in " ".join(report.lines())
    written = report.to_json()
    assert (written["for_release"], written["curator_only"]) == (False, True)
    assert 0 < written["proven"]["epsilon"] <= 1.0
    assert json.dumps(written)
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--canaries", "0"], "exposure: canaries = 0"),
        (["--repeats", "0"], "exposure: repeats = 0"),
        (["--extract", "17"], "exposure: 17 unknown blocks"),
        ([], "3 secrets, 2 times each"),
    ],
)
def test_the_command_says_what_a_model_knows_or_refuses_in_a_line(tmp_path, extra, words, capsys, monkeypatch):
    settings = ["training.steps=2", "training.tick_steps=2", "training.batch_size=60", "method.width=4"]
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(trainer.load_config(CONFIG, settings)))
    monkeypatch.setattr("sys.argv", ["exposure.py", str(path), "--canaries", "3", "--repeats", "2", *extra])
    if not extra:
        main()
        out = capsys.readouterr().out
        for word in (words, "bits by rank among 1,000", "never released", "for the curator"):
            assert word in out
    else:
        with pytest.raises(SystemExit, match=words):
            main()
