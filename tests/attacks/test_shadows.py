"""Shadow generators: the likelihood ratios find what is planted, blind shadows find nothing, no bits are shared."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from idpgan import trainer
from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.knowledge import choose_members
from idpgan.attacks.shadows import Density, halves, lira, rmia, vulnerable
from idpgan.commands.attack import AttackOptions, attack_run
from idpgan.commands.attacked_run import Target
from idpgan.commands.shadow_runs import train_shadows
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.progress import silent
from idpgan.run import RunFolder
from idpgan.trainer import start

CONFIGS = Path(__file__).parents[2] / "configs"
RECORDS, SHADOWS = 400, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


def game(effect, seed=1):
    """What shadows and target show of records of very different difficulty; a member's number is larger by effect."""
    included = halves(SHADOWS, RECORDS, seed)
    difficulty = 5 * torch.randn(RECORDS, generator=rng(seed + 1)).double()
    observed = difficulty + effect * included + torch.randn(SHADOWS, RECORDS, generator=rng(seed + 2)).double()
    member = torch.arange(RECORDS) < RECORDS // 2
    found = difficulty + effect * member + torch.randn(RECORDS, generator=rng(seed + 3)).double()
    return found, observed, included


@pytest.mark.parametrize("score", [lira, rmia])
def test_a_planted_effect_is_found_where_difficulty_hides_it_and_none_is_found_without(score):
    found, observed, included = game(effect=2.0)
    half = RECORDS // 2
    assert evaluate_scores(found[:half], found[half:]).auc < 0.7  # the number itself hardly tells
    scores = score(found, observed, included)
    assert evaluate_scores(scores[:half], scores[half:]).auc > 0.8
    blind = score(*game(effect=0.0, seed=11))
    low, high = evaluate_scores(blind[:half], blind[half:], confidence=0.9999).auc_interval
    assert low < 0.5 < high


def test_every_record_is_in_half_of_the_shadows_and_every_shadow_has_half_of_them():
    included = halves(10, 30, 0)
    assert included.sum(0).tolist() == [5] * 30
    assert included.sum(1).tolist() == [15] * 10
    with pytest.raises(InputError, match="must be even"):
        halves(5, 30, 0)


def test_the_most_isolated_records_are_chosen_by_the_reference_alone():
    images = torch.zeros(50, 1, 4, 4)
    images[7] = 1.0
    images[20] = 0.5
    assert vulnerable(images, torch.zeros(30, 1, 4, 4), 2).tolist() == [7, 20]


def test_what_does_not_fit_is_refused():
    found, observed, included = game(effect=1.0)
    with pytest.raises(InputError, match="2 shadows"):
        lira(found, observed, torch.ones_like(included))
    with pytest.raises(InputError, match="must be"):
        rmia(found[:3], observed, included)
    with pytest.raises(InputError, match="a density needs 3"):
        Density.of(torch.zeros(2, 1, 4, 4))


OPTIONS = AttackOptions(attacks=("shadow-lira", "shadow-rmia"), shadows=4, samples=300)


@pytest.fixture
def run(tmp_path):
    config = trainer.load_config(CONFIGS / "digits-gaussian.toml", ["release.samples=10"])
    start(config, tmp_path / "run")
    return tmp_path / "run"


def test_shadows_are_kept_continued_and_share_no_bits_with_the_run(run, monkeypatch):
    trained, train_on = [], trainer.train_on
    target = trainer.load_config(CONFIGS / "digits-gaussian.toml")

    def spy(config, split, progress):
        trained.append((config.training.seed, split.private.digest(), len(split.private)))
        if len(trained) == 3:
            raise InputError("interrupted")
        return train_on(config, split, progress)

    monkeypatch.setattr("idpgan.trainer.train_on", spy)
    with pytest.raises(InputError, match="interrupted"):
        attack_run(run, OPTIONS)
    assert len(list((run / "shadows").iterdir())) == 2
    report = attack_run(run, OPTIONS)
    assert len(trained) == 5  # the two that were done are not done again
    seeds, digests = {seed for seed, _, _ in trained}, {digest for _, digest, _ in trained}
    assert len(seeds) == len(digests) == 4
    assert target.training.seed not in seeds
    assert {num for _, _, num in trained} == {load(target.data).num_private}
    assert {found.attack.name for found in report.outcomes if found.result is not None} == {
        "shadow-lira",
        "shadow-rmia",
    }
    assert attack_run(run, OPTIONS).best.auc == report.best.auc
    assert len(trained) == 5
    assert (run / "shadows").stat().st_mode & 0o077 == 0
    assert json.loads((run / "shadows" / "0000.json").read_text())["curator_only"]


def test_a_shadow_knows_the_records_of_its_half_alone_also_beside_null_records(tmp_path, monkeypatch):
    config = trainer.load_config(CONFIGS / "digits-gaussian.toml")
    split = load(config.data)
    null = torch.zeros(len(split.private), dtype=torch.bool)
    null[:300:3] = True
    split = dataclasses.replace(split, private=dataclasses.replace(split.private, null=null))
    members, others, reference = choose_members(split.existing(), 40)
    known = []

    def spy(config, split, progress):
        known.append(set(split.private.digests()))
        assert len(split.private) == int((~null).sum())
        raise InputError("seen")

    monkeypatch.setattr("idpgan.trainer.train_on", spy)
    target = Target(RunFolder(tmp_path), config, None, split, None, torch.device("cpu"), silent)
    with pytest.raises(InputError, match="seen"):
        train_shadows(target, members, others, reference, 4, 100)
    judged = [*members.digests(), *others.digests()]
    assert len(set(judged)) == len(judged) == 80
    assert sum(digest in known[0] for digest in judged) == 40
    assert all(digest in known[0] for digest in split.existing().private.digests()[40:])


@pytest.mark.trained
@pytest.mark.slow
def test_sums_and_teacher_of_a_run_are_attacked(tmp_path):
    few = ["release.samples=10", "method.teacher_share=0.3", "data.holdout_share=0.85", "privacy.epsilon=0.2"]
    config = trainer.load_config(CONFIGS / "digits-gaussian.toml", few)
    start(config, tmp_path / "run")
    names = ("trace", "teacher-loss", "teacher-loss-calibrated")
    report = attack_run(tmp_path / "run", AttackOptions(attacks=names, samples=60, confidence=0.9999))
    assert [found.skipped for found in report.outcomes] == [None] * 3
    for found in report.outcomes:  # at this epsilon nothing may be found: a negative control
        low, high = found.result.auc_interval
        assert low < 0.5 < high, found.attack.name
