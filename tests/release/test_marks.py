"""Pictures say what made them, byte for byte as the release says it; read here by Pillow and an XML parser alone."""

import dataclasses
import json
import shutil
from hashlib import sha256
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from idpgan import SyntheticDataset, load_generator, publish, trainer
from idpgan.commands import app
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.kinds import verify
from idpgan.models.config import ModelConfig
from idpgan.release.export import export_samples
from idpgan.release.mark import DigitalSource, Mark, of_pictures, of_public
from idpgan.training.config import build_config
from idpgan.version import made_with
from tests.publish.pictures import pictures
from tests.release.conftest import AGGREGATE, train
from tests.release.forging import document_of, verdict

TERMS = "http://cv.iptc.org/newscodes/digitalsourcetype/"
NAMES = {
    "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType": "source",
    "{http://ns.adobe.com/xap/1.0/}CreatorTool": "tool",
    "{http://purl.org/dc/elements/1.1/}identifier": "identity",
}


def mark_of(path):
    with Image.open(path) as picture:
        packet = picture.text["XML:com.adobe.xmp"]
    described = next(ElementTree.fromstring(packet).iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Description"))
    return {NAMES[key]: value for key, value in described.attrib.items() if key in NAMES}


def has_mark(path):
    with Image.open(path) as picture:
        return "XML:com.adobe.xmp" in picture.text


def expected(term, file):
    identity = sha256(file.read_bytes()).hexdigest()
    return {"source": TERMS + term, "tool": f"idpgan {made_with()}", "identity": f"sha256:{identity}"}


def hashes_mended(folder):
    document = document_of(folder)
    for name in document["files"]:
        document["files"][name] = sha256((folder / name).read_bytes()).hexdigest()
    (folder / "privacy.json").write_text(json.dumps(document, indent=2) + "\n")


def call(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, image in enumerate(pictures(4, 12, 12)):
        Image.fromarray((image.numpy() * 255).astype(np.uint8)).save(folder / f"{index}.png")
    return folder


def test_a_run_marks_its_release_and_every_grid(aggregate_run):
    weights = aggregate_run / "release" / "generator.safetensors"
    assert mark_of(aggregate_run / "release" / "samples.png") == expected("trainedAlgorithmicMedia", weights)
    *_, last = sorted((aggregate_run / "samples").glob("*.png"))
    assert mark_of(last)["source"] == TERMS + "trainedAlgorithmicMedia"
    assert verify(aggregate_run).problems == ()


def test_a_publication_is_enhanced_and_a_filter_too(photos, tmp_path):
    call("publish", photos, "--method", "lap", "--epsilon", 2, "--unit", "column", "--out", tmp_path / "noisy")
    call("publish", photos, "--method", "blur", "--out", tmp_path / "blurred", "--accept-unsound")
    for name in ("noisy", "blurred"):
        release = tmp_path / name / "release"
        for picture in (release / "samples.png", *sorted(release.rglob("images/*.png"))):
            assert mark_of(picture) == expected("algorithmicallyEnhanced", release / "config.json")
        assert verify(release).problems == ()
        sheet = next((tmp_path / name / "curator").glob("*.png"))
        with Image.open(sheet) as real:  # it shows photos
            assert not real.text


def test_photos_that_a_trained_network_drew_again_are_composite(photos, tmp_path):
    rows = [f"{index}.png,{index % 2},{index // 2}" for index in range(4)]
    (photos / "metadata.csv").write_text("\n".join(["file_name,person,label", *rows]) + "\n")
    quick = ("--method", "pprl-vgan", "width=4", "steps=1", "--keep", "label", "--accept-unsound")
    call("publish", photos, *quick, "--out", tmp_path / "out")
    assert (
        mark_of(tmp_path / "out" / "release" / "samples.png")["source"]
        == TERMS + "compositeWithTrainedAlgorithmicMedia"
    )
    assert verify(tmp_path / "out" / "release").problems == ()


def test_a_face_out_of_a_codebook_is_drawn_by_formula(tmp_path):
    publish.release(pictures(2, 12, 10), "codebook", epsilon=8.0).write(tmp_path / "release")
    assert mark_of(tmp_path / "release" / "samples.png") == expected(
        "algorithmicMedia", tmp_path / "release" / "config.json"
    )
    assert verify(tmp_path / "release").problems == ()


def test_an_export_is_marked_in_both_forms(aggregate_run, tmp_path):
    weights = aggregate_run / "release" / "generator.safetensors"
    call("sample", aggregate_run, "--num", 10, "--out", tmp_path / "drawn", "--seed", 1)
    call("sample", aggregate_run, "--num", 10, "--out", tmp_path / "drawn.npz", "--seed", 1)
    for picture in (tmp_path / "drawn").rglob("*.png"):
        assert mark_of(picture) == expected("trainedAlgorithmicMedia", weights)
    with np.load(tmp_path / "drawn.npz") as arrays:
        assert str(arrays["digital_source_type"]) == TERMS + "trainedAlgorithmicMedia"
    said = [json.loads(path.read_text())["mark"] for path in tmp_path.rglob("*manifest.json")]
    assert said == [said[0]] * 2
    assert said[0]["sha256"] == sha256(weights.read_bytes()).hexdigest()
    assert len(SyntheticDataset(tmp_path / "drawn")) == len(SyntheticDataset(tmp_path / "drawn.npz")) == 10


@pytest.mark.parametrize("place", [40, 300, 600])
def test_a_mark_changed_by_one_byte_is_refused(release, place):
    picture = release / "samples.png"
    content = bytearray(picture.read_bytes())
    content[place] ^= 1
    picture.write_bytes(bytes(content))
    hashes_mended(release)
    assert "samples.png lacks the mark that privacy.json speaks of" in verdict(release)


def test_the_mark_of_another_release_is_refused(release, tmp_path):
    publish.release(pictures(2, 6, 5), "lap", epsilon=1.0, unit="column").write(tmp_path / "other")
    theirs = (tmp_path / "other" / "samples.png").read_bytes()
    ours = (release / "samples.png").read_bytes()
    ends = [45 + int.from_bytes(content[33:37], "big") for content in (ours, theirs)]
    (release / "samples.png").write_bytes(ours[:33] + theirs[33 : ends[1]] + ours[ends[0] :])
    hashes_mended(release)
    assert "lacks the mark" in verdict(release)


def test_a_mark_cannot_be_dropped_in_silence(release):
    document = document_of(release)
    del document["mark"]
    (release / "privacy.json").write_text(json.dumps(document, indent=2) + "\n")
    assert "mark = None, but the settings say trainedAlgorithmicMedia" in verdict(release)


def test_without_a_mark_the_card_says_so(photos, aggregate_run, tmp_path):
    unmarked = train(tmp_path / "run", [*AGGREGATE, "release.mark=false"])
    publishing = ("--method", "lap", "--epsilon", 2, "--unit", "column", "--no-mark")
    call("publish", photos, "--out", tmp_path / "noisy", *publishing)
    call("sample", aggregate_run, "--num", 4, "--out", tmp_path / "drawn", "--no-mark")
    for folder in (unmarked / "release", tmp_path / "noisy" / "release", tmp_path / "drawn"):
        for path in folder.rglob("*.png"):
            with Image.open(path) as picture:
                assert not picture.text
        assert "carry no machine-readable mark" in (folder / "README.md").read_text()
    assert verify(unmarked).problems == verify(tmp_path / "noisy" / "release").problems == ()


PUBLIC = {  # a setting by which public pictures are given out -> what its grid says
    "moved": ({"generator": "gaussian", "latent_dim": 6, "moved": 20, "conditional": False}, "algorithmicallyEnhanced"),
    "population": ({"generator": "population", "simulator": "public", "codes": 6}, "algorithmicallyEnhanced"),
    "agreed": (
        {"generator": "warp", "drawing": {"agreed": 10, "plain_share": 0.5}},
        "compositeWithTrainedAlgorithmicMedia",
    ),
}
METHOD_OF = {
    "moved": {"method": {"name": "gaussian"}},
    "population": {"method": {"name": "evolution"}, "training": {"steps": 1}},
    "agreed": {
        "method": {"name": "idp-gan-aggregate", "teacher_share": 0.2},
        "training": {"steps": 10, "batch_size": 20},
    },
}


@pytest.fixture(scope="module", params=PUBLIC)
def with_public(request, any_drawing, tmp_path_factory):
    """A run that gives out public pictures, what it says of them, and the pictures."""
    root, (model, term) = tmp_path_factory.mktemp("public"), PUBLIC[request.param]
    split = load(DataConfig(name="digits"))
    np.savez(root / "public.npz", images=split.private.images.numpy(), labels=split.private.labels.numpy())
    table = {"data": {"name": "digits", "public_root": str(root / "public.npz")}, "model": model}
    table |= {"privacy": {"epsilon": 3.0, "delta": 1e-5}, **METHOD_OF[request.param]}
    return trainer.start(build_config(table, "test"), root / "run").run.path, term, split.private.images


def test_a_grid_of_public_pictures_does_not_say_that_a_model_drew_it(with_public):
    run, term, _ = with_public
    release = run / "release"
    assert mark_of(release / "samples.png") == expected(term, release / "generator.safetensors")
    assert verify(run).problems == ()
    said = (release / "README.md").read_text()
    assert "public ones" in said or "public pictures as they were" in said
    assert f"`{term}`" in said


def test_a_release_of_public_pictures_cannot_say_that_a_model_drew_them(with_public, tmp_path):
    release = tmp_path / "release"
    shutil.copytree(with_public[0] / "release", release)
    content = (release / "samples.png").read_bytes()
    document = document_of(release)
    mark = Mark(DigitalSource.TRAINED, document["idpgan"], document["files"]["generator.safetensors"])
    theirs = dataclasses.replace(mark, source=DigitalSource(with_public[1]))
    (release / "samples.png").write_bytes(mark.on(theirs.off(content)))
    document["mark"] = str(DigitalSource.TRAINED)
    (release / "privacy.json").write_text(json.dumps(document, indent=2) + "\n")
    hashes_mended(release)
    assert f"mark = trainedAlgorithmicMedia, but the settings say {with_public[1]}" in verdict(release)


@pytest.mark.parametrize("purpose", ["looking", "training"])
def test_each_exported_picture_says_what_made_it(with_public, purpose, tmp_path):
    run, _, public = with_public
    model = load_generator(run).config
    export_samples(run, 40, tmp_path / "drawn", seed=1, purpose=purpose)
    export_samples(run, 40, tmp_path / "drawn.npz", seed=1, purpose=purpose)
    with np.load(tmp_path / "drawn.npz") as arrays:
        images, said = arrays["images"], np.broadcast_to(arrays["digital_source_type"], 40)
    held = {picture.numpy().tobytes() for picture in public}
    as_they_were = [image.tobytes() in held for image in images]
    assert 5 < sum(as_they_were) < 35 if model.drawn.agreed else not any(as_they_were)
    files = sorted((tmp_path / "drawn").rglob("*.png"), key=lambda path: path.name)
    terms = [(mark_of(path)["source"] if has_mark(path) else "") for path in files]
    assert terms == said.tolist()
    assert [term == "" for term in terms] == as_they_were
    law = model.drawn.agreed or (model.moved and purpose == "training")
    changed = set(terms) - {""} - {TERMS + "trainedAlgorithmicMedia"}
    assert changed == (set() if model.drawn.agreed else {TERMS + "algorithmicallyEnhanced"})
    assert (TERMS + "trainedAlgorithmicMedia" in terms) == bool(law)
    data = SyntheticDataset(tmp_path / "drawn")
    assert data._made_by == (DigitalSource.COMPOSITE if law else DigitalSource.ENHANCED)


@pytest.mark.parametrize("model", [each for each, _ in PUBLIC.values()])
def test_public_pictures_that_a_program_drew_are_no_photos(any_drawing, model):
    config = ModelConfig.model_validate(model)
    drawn, photo = of_public(config, formula=True), of_public(config, formula=False)
    assert drawn == (DigitalSource.FORMULA if config.drawn.agreed else DigitalSource.TRAINED)
    assert photo == (None if config.drawn.agreed else DigitalSource.ENHANCED)


def test_what_a_simulator_of_the_user_drew_is_no_public_picture():
    moved = {"generator": "gaussian", "latent_dim": 6, "moved": 20, "simulator": "tests.own.things:draw"}
    assert of_pictures(ModelConfig.model_validate(moved), formula=False) is DigitalSource.TRAINED
