"""What is given away of a private classifier: loaded again, judged, attacked, audited, verified, forged."""

import io
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch
from safetensors.torch import load, save

import idpgan
from idpgan.commands import main
from idpgan.data.config import DataConfig
from idpgan.data.load import load as load_data
from idpgan.errors import InputError
from idpgan.models.private_classifier import described_classifier
from tests.release.forging import put_file, verdict

WEIGHTS = "classifier.safetensors"


def said(*arguments):
    """Exit code, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def holdout():
    return load_data(DataConfig(name="digits")).holdout


def test_a_released_classifier_is_loaded_with_its_guarantee(finished, holdout):
    classifier = idpgan.load_classifier(finished)
    probabilities = classifier.probabilities(holdout.images)
    assert torch.allclose(probabilities.sum(1), torch.ones(len(holdout)))
    assert torch.equal(classifier.predict(holdout.images), probabilities.argmax(1))
    floats = holdout.images.float() / 127.5 - 1
    assert torch.allclose(classifier.probabilities(floats), probabilities, atol=1e-4)
    assert classifier.classes == holdout.classes
    assert 1.9 < classifier.privacy.proven.epsilon <= 2
    for path in (finished / "release", finished / "release" / WEIGHTS):
        assert torch.equal(idpgan.load_classifier(path).predict(holdout.images), classifier.predict(holdout.images))
    with pytest.raises(InputError, match=r"takes images \(N, 1, 8, 8\)"):
        classifier.predict(torch.zeros(3, 1, 9, 9))


def test_the_folder_holds_what_it_says_and_no_samples(finished):
    assert verdict(finished) == ""
    assert {path.name for path in (finished / "release").iterdir()} == {
        WEIGHTS, "config.json", "privacy.json", "README.md",
    }  # fmt: skip
    assert list((finished / "samples").glob("*")) == []
    card = (finished / "release" / "README.md").read_text()
    assert "idpgan.load_classifier" in card
    assert 'pipeline_tag: "image-classification"' in card


def test_what_is_forged_is_found(release):
    weights = load((release / WEIGHTS).read_bytes())
    name, tensor = next(iter(weights.items()))
    (release / WEIGHTS).write_bytes(save({**weights, name: tensor + 1}))
    assert "changed after the release" in verdict(release)
    put_file(release, WEIGHTS, save({**weights, name: tensor * torch.nan}))
    assert "not finite" in verdict(release)
    put_file(release, WEIGHTS, save({**weights, name: tensor[:1]}))
    assert "does not hold the classifier" in verdict(release)
    put_file(release, WEIGHTS, save(weights, {"epsilon": "0.1"}))
    assert "more than its tensors" in verdict(release)


@pytest.mark.parametrize(
    ("tamper", "word"),
    [
        (
            lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-1] + b"\x01"),
            "was changed after the release",
        ),
        (lambda f: put_file(f, WEIGHTS, save(load((f / WEIGHTS).read_bytes()), {"epsilon": "0.1"})), "more than its"),
        (
            lambda f: change(f, "privacy.json", lambda d: d["report"]["proven"].update(epsilon=0.1)),
            "the report says 0.1",
        ),
        (
            lambda f: change(f, "privacy.json", lambda d: d["events"][0].update(noise_multiplier=50.0)),
            "of the settings",
        ),
        (lambda f: (f / "privacy.json").unlink(), "without its privacy.json"),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    ],
)
def test_a_tampered_classifier_is_not_loaded(release, holdout, tamper, word):
    assert len(idpgan.load_classifier(release).predict(holdout.images[:2])) == 2  # negative control
    tamper(release)
    with pytest.raises(InputError, match=word):
        idpgan.load_classifier(release)


def change(folder, name, edit):
    document = json.loads((folder / name).read_text())
    edit(document)
    (folder / name).write_text(json.dumps(document, indent=2) + "\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["classifier"].update(network="resnet"), "no classifier network 'resnet'"),
        (lambda c: c["classifier"].update(options={}), "Missing key|Unknown key"),
        (lambda c: c["classifier"].update(image_shape=[1, 10**9, 8]), "sides of 8 to 512"),
        (lambda c: c["classifier"].update(classes=["0"]), "at least 2|refused"),
        (lambda c: c["classifier"].update(classes=["a\nb", *map(str, range(9))]), "cannot be released"),
        (lambda c: c.update(kind="generator", generator=c.pop("classifier")), "does not describe a generator"),
        (lambda c: c["settings"]["privacy"].update(noise_multiplier=0.5), "events are not those of the settings"),
    ],
)
def test_a_forged_description_is_refused_in_one_line(release, change, said):
    config = json.loads((release / "config.json").read_text())
    change(config)
    put_file(release, "config.json", json.dumps(config, indent=2) + "\n")
    assert re.search(said, verdict(release))


def test_a_network_that_the_settings_do_not_make_is_found(release):
    """The options of another network than that of [method], with weights that fit it."""
    config = json.loads((release / "config.json").read_text())
    described = config["classifier"]
    key = "width" if "width" in described["options"] else "directions"
    described["options"][key] = 3
    shapes = described_classifier(*described.values()).state_dict()
    put_file(release, "config.json", json.dumps(config, indent=2) + "\n")
    put_file(release, WEIGHTS, save({name: torch.zeros(tensor.shape) for name, tensor in shapes.items()}))
    assert "not of the run's [method]" in verdict(release)


def test_commands_that_need_a_generator_refuse_it_in_one_line(finished, tmp_path):
    for command in (
        ("sample", finished, "--num", 2, "--out", tmp_path / "x"),
        ("sample", finished / "release", "--num", 2, "--out", tmp_path / "x"),
    ):
        code, _, err = said(*command)
        assert code == 2
        assert "has released a classifier, which draws no images" in err
        assert err.count("\n") == 1
    with pytest.raises(InputError, match="is not a released classifier"):
        idpgan.load_classifier(tmp_path)
    for option in (["--num", 3], ["--only", "fidelity"], ["--ceiling"]):
        code, _, err = said("evaluate", finished, *option)
        assert (code, f"leave {option[0]} out" in err) == (2, True)
    for option in (["--attack", "nearest-sample"], ["--train-reference"], ["--samples", 50], ["--riskiest", 3]):
        code, _, err = said("attack", finished, *option)
        assert (code, "generator" in err) == (2, True)


def test_evaluate_says_how_often_it_is_right_and_how_sure_that_is(finished, holdout, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    code, out, _ = said("evaluate", copy, "--part", "holdout", "--json")
    found = json.loads(out)["classifier"]
    right = int((idpgan.load_classifier(copy).predict(holdout.images) == holdout.labels).sum())
    assert (code, found["correct"], found["num_images"]) == (0, right, len(holdout))
    assert found["interval"][0] < found["accuracy"] == right / len(holdout) < found["interval"][1]
    assert found["majority"] == int(holdout.labels.bincount().max()) / len(holdout)
    assert json.loads((copy / "evaluation.json").read_text())["kind"] == "classifier"
    _, out, _ = said("evaluate", copy, "--part", "holdout", "--no-progress")
    assert f"accuracy {right / len(holdout):.2%}" in out
    assert "always the majority" in out
    assert re.search(r"epsilon (2|1\.9\d*)\b", out)
    said("evaluate", copy, "--part", "holdout", "--predictions", tmp_path / "said.csv", "--no-progress")
    rows = [line.split(",") for line in (tmp_path / "said.csv").read_text().splitlines()]
    assert (rows[0], len(rows) - 1) == (["index", "label", "predicted"], len(holdout))
    assert sum(label == predicted for _, label, predicted in rows[1:]) == right


@pytest.mark.trained
def test_attack_and_audit_of_a_run(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("idpgan.attacks.losses._STEPS", 1)  # six epochs
    copy = shutil.copytree(finished, tmp_path / "run")
    code, out, _ = said("attack", copy, "--json")
    found = json.loads(out)["attacks"]
    assert code == 0
    assert set(found) == {"loss-threshold", "loss-calibrated"}
    assert min(row["auc"] for row in found.values()) > 0.3
    assert max(row["auc"] for row in found.values()) < 0.7
    assert (copy / "attack.png").exists()
    code, out, _ = said("audit", copy, "--runs", 400, "--seed", 3, "--confidence", 0.9999, "--release", "--json")
    audited = json.loads(out)
    assert (code, audited["violation"], audited["proven"] <= 2) == (0, False, True)
    assert audited["audited_mu"] <= audited["proven_mu"]
    assert verdict(copy) == ""
    assert idpgan.load_classifier(copy).privacy.audited is not None


def test_a_classifier_stands_beside_the_utility_of_images(finished, holdout, tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.setenv("IDPGAN_CACHE", str(tmp_path / "cache"))

    np.savez(tmp_path / "x.npz", images=holdout.images[:, 0].numpy(), labels=holdout.labels.numpy())
    code, out, _ = said(
        "evaluate", tmp_path / "x.npz", "--data", "digits", "--part", "holdout", "--only", "utility", "--classifier",
        "logistic", "--seeds", 1, "--classifier-run", finished, "--no-progress",
    )  # fmt: skip
    assert code == 0
    accuracy = (idpgan.load_classifier(finished).predict(holdout.images) == holdout.labels).double().mean()
    assert "private classifier" in out.replace("\n", " ")
    assert f"{float(accuracy):.2%}" in out
