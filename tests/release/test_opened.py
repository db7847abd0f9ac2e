"""Tampered releases: none is loaded, drawn from, evaluated, attacked or shown; the card and strangers only warn."""

import importlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load, load_file, save, save_file

import idpgan
from idpgan.commands import attack, audit, evaluate, main
from idpgan.commands.attack import AttackOptions
from idpgan.commands.report import write_report
from idpgan.errors import InputError
from idpgan.kinds import opened, verify
from idpgan.publish import release as publish
from idpgan.release.export import export_samples
from idpgan.release.statement import read_privacy
from tests.release.forging import document_of, put, put_file, raw, replaced_text, with_hash

WEIGHTS = "generator.safetensors"
OTHER = Path(__file__).parents[2] / "checkpoints" / "digits-aggregate-eps10"


def edited(name, change):
    """Change a JSON file as an editor does, and mend nothing; the change is an expression of the table ``d``."""

    def apply(folder):
        table = json.loads((folder / name).read_text())
        change(table)
        (folder / name).write_text(json.dumps(table, indent=2) + "\n")

    return apply


def stated(**changes):
    return edited("privacy.json", lambda d: d.update(changes))


def reported(**changes):
    return edited("privacy.json", lambda d: d["report"].update(changes))


def proven(**changes):
    return edited("privacy.json", lambda d: d["report"]["proven"].update(changes))


def event(**changes):
    return edited("privacy.json", lambda d: d["events"][0].update(changes))


def config(change):
    return edited("config.json", change)


def cut(name, keep):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def missing(name):
    return lambda folder: (folder / name).unlink()


def of_another(name):
    return lambda folder: shutil.copy(OTHER / name, folder / name)


def linked_to_another(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(OTHER / WEIGHTS)


def one_byte(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def padded(content):
    """One space more in the header, which JSON allows."""
    size = int.from_bytes(content[:8], "little")
    return (size + 8).to_bytes(8, "little") + content[8 : 8 + size] + b" " * 8 + content[8 + size :]


def with_metadata(content, text="proven epsilon: 0.1"):
    return save(load(content), {"epsilon": text})


def with_a_stranger(content):
    tensors = load(content)
    return save({**tensors, "records": next(iter(tensors.values())).clone()})


TAMPERED = {
    # the weights
    "a byte of the weights": (lambda f: raw(WEIGHTS, one_byte((f / WEIGHTS).read_bytes()))(f), "begins with"),
    "weights of another release": (of_another(WEIGHTS), "was changed after the release"),
    "a link to weights of another": (linked_to_another, "was changed after the release"),
    "weights cut off": (cut(WEIGHTS, -10), "was changed after the release"),
    "no weights": (missing(WEIGHTS), WEIGHTS),
    "a pickle": (with_hash(WEIGHTS, lambda content: pickle.dumps({})), "damaged"),
    "a text in the header": (with_hash(WEIGHTS, with_metadata), "more than its tensors"),
    "a long text in the header": (with_hash(WEIGHTS, lambda c: with_metadata(c, "x" * 500_000)), "more than its"),
    "a longer header": (with_hash(WEIGHTS, padded), "more than its tensors"),
    "a tensor more": (with_hash(WEIGHTS, with_a_stranger), "does not hold the generator"),
    "a tensor more, the old hash": (lambda f: raw(WEIGHTS, with_a_stranger((f / WEIGHTS).read_bytes()))(f), "changed"),
    # the numbers
    "proven 0.1": (proven(epsilon=0.1), "the report says 0.1"),
    "proven a little lower": (proven(epsilon=9.99), "the events cost"),
    "proven infinite": (proven(epsilon="inf"), "cannot be marked private"),
    "proven at another delta": (proven(delta=0.0), "'proven' is not"),
    "proven of another unit": (proven(unit="pixel"), "'proven' is not"),
    "proven of another relation": (proven(relation="replace-one"), "'proven' is not"),
    "claimed less": (edited("privacy.json", lambda d: d["report"]["claimed"].update(epsilon=1.0)), "'claimed' is not"),
    "audited by nobody": (
        edited("privacy.json", lambda d: d["report"].update(audited={**d["report"]["proven"], "epsilon": 0.1})),
        "does not rest on",
    ),
    "not private any more": (reported(private=False), "'private' is not"),
    "another reason": (reported(reason="no noise is needed"), "'reason' is not"),
    "no assumptions": (reported(public_assumptions=[]), "'public_assumptions' is not"),
    "another delta": (stated(delta=1e-9), "the settings state epsilon at"),
    "another unit": (stated(unit="person"), "which speak of unit image"),
    "another relation": (stated(relation="replace-one"), "which speak of unit image"),
    "more records": (stated(num_private=200_000), "below 1/N"),
    "public images": (stated(num_public=100), "'public_assumptions' is not"),
    "a class fewer": (stated(num_classes=9), "num_classes = 9, but the settings"),
    # the charges
    "more noise": (event(noise_multiplier=50.0), "gaussian 50 stands for"),
    "a charge without noise": (event(noise_multiplier=0.0), "positive and finite"),
    "a charge of another unit": (event(unit="pixel"), "not all of unit image"),
    "a charge twice": (edited("privacy.json", lambda d: d["events"].append(d["events"][0])), "1 are planned"),
    "a charge counted twice": (event(count=2), "exceed the target"),
    "no charge": (stated(events=[]), "there is none"),
    "an unknown charge": (event(kind="magic"), "unknown event kind"),
    # privacy.json
    "no privacy.json": (missing("privacy.json"), "without its privacy.json"),
    "privacy.json of another": (of_another("privacy.json"), "was changed after the release"),
    "privacy.json cut off": (cut("privacy.json", 300), "is damaged"),
    "privacy.json empty": (cut("privacy.json", 0), "is damaged"),
    "a key twice": (replaced_text("privacy.json", '"delta"', '"delta": 0.5, "delta"'), "a key stands twice"),
    "a key more": (stated(note="trust me"), "Unknown key 'note'"),
    "NaN": (replaced_text("privacy.json", "1295", "NaN"), "NaN is not a JSON number"),
    "a format of tomorrow": (stated(format="idpgan release 7"), "not of the format"),
    "written otherwise": (lambda f: raw("privacy.json", json.dumps(document_of(f)))(f), "not written as"),
    "a hash of zeros": (edited("privacy.json", lambda d: d["files"].update({WEIGHTS: "0" * 64})), "'000000000000'"),
    "a hash less": (edited("privacy.json", lambda d: d["files"].pop(WEIGHTS)), "speaks of other files"),
    "a hash more": (edited("privacy.json", lambda d: d["files"].update({"x": "0" * 64})), "speaks of other files"),
    # config.json and the picture
    "epsilon in the settings": (config(lambda d: d["settings"]["privacy"].update(epsilon=0.1)), "config.json was"),
    "epsilon in the settings, with its hash": (
        lambda f: (config(lambda d: d["settings"]["privacy"].update(epsilon=0.1))(f), put(f, document_of(f))),
        "not those of the settings",
    ),
    "other classes": (config(lambda d: d["generator"]["classes"].reverse()), "config.json was changed"),
    "another model": (config(lambda d: d["settings"]["model"].update(warp=0.5)), "config.json was changed"),
    "no settings": (config(lambda d: d.pop("settings")), "config.json"),
    "no config": (missing("config.json"), "config.json"),
    "another picture": (of_another("samples.png"), "samples.png was changed"),
    "no picture": (missing("samples.png"), "samples.png is missing"),
}  # fmt: skip


def refusals(folder, out):
    """What every door to a generator says."""
    doors = {
        "load_generator": lambda: idpgan.load_generator(folder),
        "the weights themselves": lambda: idpgan.load_generator(folder / WEIGHTS),
        "SyntheticDataset": lambda: idpgan.SyntheticDataset(folder, num=2),
        "sample": lambda: export_samples(folder, 2, out),
        "evaluate and attack --members": lambda: opened(folder),
    }
    said = []
    for door in doors.values():
        with pytest.raises(InputError) as refused:
            door()
        said.append(str(refused.value))
    return said


def test_there_are_forty_and_the_untouched_one_is_drawn_from_in_silence(release, tmp_path, caplog):
    assert len(TAMPERED) >= 40
    manifest = export_samples(release, 2, tmp_path / "out", seed=1)
    assert manifest["privacy"] == read_privacy(release / "privacy.json").report.to_json()
    assert len(opened(release).sample(2)) == 2
    assert caplog.text == ""


@pytest.mark.parametrize("name", TAMPERED)
def test_nothing_is_drawn_from_a_tampered_release(release, tmp_path, name):
    tamper, word = TAMPERED[name]
    tamper(release)
    said = refusals(release, tmp_path / "out")
    assert any(word in each for each in said)
    assert all("\n" not in each and len(each) < 1000 for each in said)
    assert not (tmp_path / "out").exists()


BESIDE = {
    "a card of 0.1": (replaced_text("README.md", "epsilon = 10", "epsilon = 0.1"), "README.md was changed"),
    "a card of 0.1, with its hash": (
        lambda f: put_file(f, "README.md", (f / "README.md").read_text().replace("epsilon = 10", "epsilon = 0.1")),
        "README.md is not the card of these numbers",
    ),
    "no card": (missing("README.md"), "README.md is missing"),
    "a stray file": (raw("stats.jsonl", "loss"), "stats.jsonl does not belong to the release"),
    "a stray folder": (lambda f: (f / "more").mkdir(), "more does not belong to the release"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_the_card_and_strangers_are_warned_of_in_one_line(release, tmp_path, caplog, name):
    tamper, word = BESIDE[name]
    tamper(release)
    assert word in " ".join(verify(release).problems)
    assert export_samples(release, 2, tmp_path / "out")["privacy"]["proven"]["epsilon"] == pytest.approx(10, abs=1e-3)
    (record,) = caplog.records
    assert word in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "epsilon = 0.1;" not in (tmp_path / "out" / "README.md").read_text()


def test_links_of_a_download_cache_are_followed(release, tmp_path, caplog):
    """Every file of huggingface_hub's cache is a link; the hashes speak of content, wherever it lies."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for item in release.iterdir():
        (cache / item.name).symlink_to(item)
    assert idpgan.load_generator(cache).privacy.proven.finite
    assert caplog.text == ""


def test_a_stray_file_of_weights_is_not_taken_for_those_of_the_release(release):
    shutil.copy(release / WEIGHTS, release / "better.safetensors")
    with pytest.raises(InputError, match=r"better\.safetensors is not the generator\.safetensors of the release"):
        idpgan.load_generator(release / "better.safetensors")


def test_bare_weights_are_drawn_from_and_nothing_is_said_to_be_proven(release, tmp_path, caplog, capsys):
    bare, out = tmp_path / "bare", tmp_path / "out"
    idpgan.models.save_generator(bare, idpgan.load_generator(release))
    assert idpgan.load_generator(bare).privacy is None
    assert "holds no privacy.json: what protects its training images, if anything, is not known" in caplog.text
    assert export_samples(bare, 2, out)["privacy"] is None
    assert not (out / "README.md").exists()
    assert json.loads((out / "manifest.json").read_text())["privacy"] is None
    assert "privacy unknown" in repr(idpgan.SyntheticDataset(out))
    with pytest.raises(SystemExit, match="0"):
        main(["sample", str(bare), "--num", "2", "--out", str(tmp_path / "said")])
    said = capsys.readouterr().out
    assert "without a card" in said
    assert "give away" not in said
    save_file(load_file(bare / WEIGHTS), bare / WEIGHTS, {"epsilon": "0.1"})
    with pytest.raises(InputError, match="more than its tensors"):
        idpgan.load_generator(bare)


CURATORS = {name: TAMPERED[name] for name in ("a byte of the weights", "proven 0.1", "no privacy.json", "more noise")}


@pytest.mark.parametrize("name", CURATORS)
def test_no_private_image_is_read_for_a_tampered_release(aggregate_run, tmp_path, monkeypatch, name):
    """`evaluate`, `attack`, `report` and `audit` refuse before they read the private images."""
    run = shutil.copytree(aggregate_run, tmp_path / "run")
    tamper, word = CURATORS[name]
    tamper(run / "release")

    def read(*_, **__):
        pytest.fail("private images were read")

    for module in ("commands.attacked_run", "commands.canaries", "metrics.evaluation", "report.run"):
        importlib.import_module(f"idpgan.{module}")  # one that is imported below would keep `read`
    for module in ("idpgan.trainer", "idpgan.data.load"):  # imported in turn
        monkeypatch.setattr(f"{module}.load", read)
    for module in ("idpgan.report.run", "idpgan.data.load"):
        monkeypatch.setattr(f"{module}.load_again", read)
    doors = [lambda: evaluate.evaluate_source(run), lambda: attack.attack_run(run, AttackOptions())]
    if name != "no privacy.json":  # such a run has released nothing, and may be shown and audited
        doors += [lambda: write_report(run), lambda: audit.run_case(run)]
    for door in doors:
        with pytest.raises(InputError, match=word):
            door()
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("suffix", ["", ".npz"])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d["privacy"]["proven"].update(epsilon=0.1), "it says 0.1 for image"),
        (lambda d: d["privacy"]["proven"].update(delta=1e-9), "its charges cost epsilon"),
        (lambda d: d["privacy"]["proven"].update(unit="person"), "for person"),
        (lambda d: d["contained"][0]["events"][0].update(noise_multiplier=0.1), "its charges cost epsilon"),
        (lambda d: d["privacy"].pop("proven"), "Missing key 'proven'"),
    ],
)
def test_a_manifest_that_says_less_than_its_charges_cost_is_refused(release, tmp_path, suffix, change, word):
    export_samples(release, 2, tmp_path / f"out{suffix}", seed=1)
    assert idpgan.SyntheticDataset(tmp_path / f"out{suffix}").privacy.proven.finite  # negative control
    manifest = tmp_path / "out.manifest.json" if suffix else tmp_path / "out" / "manifest.json"
    edited(manifest.name, change)(manifest.parent)
    with pytest.raises(InputError, match=word):
        idpgan.SyntheticDataset(tmp_path / f"out{suffix}")


@pytest.mark.parametrize(
    ("tamper", "word"),
    [
        (lambda f: shutil.copy(f / "images" / "000000.png", f / "images" / "000001.png"), r"000001\.png was changed"),
        (proven(epsilon=0.1), "the report says 0.1"),
        (cut("privacy.json", 100), "is damaged"),
    ],
)
def test_published_images_are_checked_before_they_are_judged(tmp_path, tamper, word):
    from tests.release.test_artifacts import IMAGES

    publish(IMAGES, "lap", epsilon=2.0, unit="column").write(tmp_path / "release", "nine drawings")
    assert opened(tmp_path / "release" / "images") == tmp_path / "release" / "images"
    tamper(tmp_path / "release")
    with pytest.raises(InputError, match=word):
        opened(tmp_path / "release" / "images")
