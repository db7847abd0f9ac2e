"""Pictures say what made them, byte for byte as the release says it; read here by Pillow and an XML parser alone."""

import json
from hashlib import sha256
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from idpgan import SyntheticDataset, publish
from idpgan.commands import app
from idpgan.kinds import verify
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
