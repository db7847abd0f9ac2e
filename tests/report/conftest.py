"""Reports of finished runs and of a publication, each made once."""

import shutil

import pytest

from idpgan.commands import attack, audit, evaluate
from idpgan.commands.attack import AttackOptions
from idpgan.commands.publish import PublishOptions, publish_folder
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.metrics.evaluation import METRICS, Evaluation
from idpgan.metrics.fidelity import FidelityResult
from idpgan.metrics.inception import InceptionResult
from idpgan.metrics.utility import ClassifierScore, UtilityResult
from idpgan.run import RunFolder
from idpgan.trainer import start
from idpgan.training.config import build_config
from tests.data.layouts import declared

NASTY = "<script>alert(1)"
SETTINGS = {
    "method": {"name": "idp-gan-aggregate", "features": "random", "moments": 4, "fourier": 8, "level": 0.1},
    "model": {"generator": "warp", "width": 4, "latent_dim": 4, "codes": 4},
    "privacy": {"epsilon": 3.0, "delta": 1e-5},
    "training": {"steps": 4, "tick_steps": 2, "batch_size": 16},
    "release": {"samples": 10},
}


def folder(path, classes=(NASTY, "b & 'c'"), each=30):
    """Write drawn faces as a folder of classes with names that would be tags."""
    images = draw(len(classes) * each, (28, 28), 1, seed=5).images
    for index, image in enumerate(images):
        file = path / classes[index % len(classes)] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png_bytes(image))
    return path


def evaluation(run):
    """Write an evaluation.json as `idpgan evaluate` does, of made-up scores."""
    score = ClassifierScore("cnn", 100, (0.5, 0.7), (0.6, 0.6))
    utility = UtilityResult((score,), (0, 1), 20, 12, 0.5, "a", "b", "p 1")
    inception = InceptionResult(1.5, 0.1, 0.05, 4, 20, 2, "c", 0.9, "a", "p 1", ("a note",))
    numbers = dict.fromkeys(("fid", "kid", "kid_std", "precision", "recall", "density", "coverage"), 0.25)
    fidelity = FidelityResult(
        **numbers, num_images=20, num_real=12, num_nearest=12, part="test", network="classifier", num_features=8,
        features_sha256="d", resize=None, standardized=True, images_digest="a", real_digest="b", protocol="p 1",
        notes=(),
    )  # fmt: skip
    found = {**dict.fromkeys(METRICS), "utility": utility, "inception": inception, "fidelity": fidelity}
    facts = {"source": "run", "kind": "generator", "num_images": 20, "seconds": 1.0, "environment": {}}
    evaluate.Evaluated(Evaluation(found, part="test", notes=()), facts, run.evaluation).write()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run of a folder of images, with everything that a report can show; not to be changed."""
    place = tmp_path_factory.mktemp("whole")
    data = declared(folder(place / "faces"), holdout_share=0.3).model_dump(mode="json", exclude_none=True)
    run = start(build_config({**SETTINGS, "data": data}, "the test"), place / "run <b>&").run
    attack.attack_run(run.path, AttackOptions(("nearest-sample", "critic-score"), samples=40)).write()
    audit.write_audit(run.path, audit.run_case(run.path).run(1000, seed=1))
    evaluation(run)
    return run


@pytest.fixture(scope="session")
def bare(small_run, tmp_path_factory):
    """A run of digits without a guarantee, of which nothing was measured."""
    return RunFolder(shutil.copytree(small_run("wgan-gp"), tmp_path_factory.mktemp("bare") / "run"))


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The output folder of a publication, the second of its folder."""
    place = tmp_path_factory.mktemp("published")
    faces = folder(place / "faces", each=3)
    for name, method in (("first", "lap"), ("out", "dct")):
        publish_folder(PublishOptions((str(faces),), method, place / name, epsilon=2.0, unit="image"))
    return place / "out"
