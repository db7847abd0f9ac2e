"""Papers of drawn images: what the release states, in the words of catalogs, and readable by their own parsers."""

import json
import shutil
from hashlib import sha256

import pytest

from idpgan.errors import InputError
from idpgan.release.export import export_samples
from tests.release.conftest import SMALL, train


@pytest.fixture(scope="module")
def drawn(aggregate_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers") / "drawn"
    export_samples(aggregate_run, 20, folder, seed=1, papers=True)
    return folder


def test_the_registry_gets_the_three_numbers_and_null_where_only_the_curator_knows(drawn):
    entry = json.loads((drawn / "dp-deployment.json").read_text())
    stated = json.loads((drawn / "manifest.json").read_text())["privacy"]
    numbers = entry["privacy_loss"]["privacy_parameters"]
    assert numbers["proven"] == {key: stated["proven"][key] for key in ("epsilon", "delta")}
    assert numbers["audited"] is None
    assert (entry["privacy_loss"]["privacy_unit"], entry["dp_flavor"]["relation"]) == ("image", "zero-out-one")
    assert [entry[key] for key in ("data_curator", "intended_use", "publication_date")] == [None] * 3
    assert entry["accounting"]["charges"]


def test_croissant_names_the_table_by_its_hash_and_says_what_is_protected(drawn):
    document = json.loads((drawn / "croissant.json").read_text())
    table = document["distribution"][0]
    assert table["sha256"] == sha256((drawn / "metadata.csv").read_bytes()).hexdigest()
    assert "epsilon = " in document["rai:personalSensitiveInformation"][0]
    for phrase in json.loads((drawn / "manifest.json").read_text())["privacy"]["public_assumptions"]:
        assert phrase in document["rai:dataCollection"]
    assert {each["@id"] for each in document["recordSet"]} == {"rows", "pictures"}


def test_an_npz_has_its_papers_beside_it(aggregate_run, tmp_path):
    export_samples(aggregate_run, 20, tmp_path / "d.npz", seed=1, papers=True)
    file = json.loads((tmp_path / "d.croissant.json").read_text())["distribution"][0]
    assert file["sha256"] == sha256((tmp_path / "d.npz").read_bytes()).hexdigest()
    (tmp_path / "d.npz").unlink()
    with pytest.raises(InputError, match=r"d\.\S+ exists already"):
        export_samples(aggregate_run, 20, tmp_path / "d.npz", seed=1)


def test_papers_of_what_proves_nothing_say_so(tmp_path):
    run = train(
        tmp_path / "run", ["method.name=wgan-gp", "privacy.accept_unsound=true", "training.steps=1", *SMALL], {}
    )
    export_samples(run, 3, tmp_path / "drawn", papers=True)
    entry = json.loads((tmp_path / "drawn" / "dp-deployment.json").read_text())
    assert entry["dp_flavor"]["name"] == "none"
    assert entry["privacy_loss"]["privacy_parameters"]["proven"]["epsilon"] == "inf"
    described = json.loads((tmp_path / "drawn" / "croissant.json").read_text())
    assert "NOT private" in described["description"]


def test_bare_weights_have_nothing_to_say(aggregate_run, tmp_path):
    (tmp_path / "bare").mkdir()
    shutil.copy(aggregate_run / "release" / "generator.safetensors", tmp_path / "bare")
    described = json.loads((aggregate_run / "release" / "config.json").read_text())["generator"]
    (tmp_path / "bare" / "config.json").write_text(json.dumps({"kind": "generator", "generator": described}))
    with pytest.raises(InputError, match="--papers"):
        export_samples(tmp_path / "bare", 3, tmp_path / "drawn", papers=True)
    assert not (tmp_path / "drawn").exists()


@pytest.mark.filterwarnings("ignore")  # of the library's own
def test_croissant_is_read_by_its_own_library(drawn):
    mlcroissant = pytest.importorskip("mlcroissant", reason="the extra idpgan[papers] is not installed")
    read = mlcroissant.Dataset(str(drawn / "croissant.json"))
    assert not read.metadata.issues.errors
    assert len(list(read.records("rows"))) == len(list(read.records("pictures"))) == 20


@pytest.mark.filterwarnings("ignore")
def test_the_hub_reads_card_and_labels(drawn, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the extra idpgan[papers] is not installed")
    hub = pytest.importorskip("huggingface_hub", reason="the extra idpgan[papers] is not installed")
    read = datasets.load_dataset(str(drawn), split="train", cache_dir=str(tmp_path))
    assert read.features["label"].names == [str(digit) for digit in range(10)]
    assert hub.DatasetCard.load(str(drawn / "README.md")).data.task_categories == ["image-classification"]
