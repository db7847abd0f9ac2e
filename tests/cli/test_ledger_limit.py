"""``idpgan ledger DIR --limit``: publish, train and fit ask it before they read or charge anything."""

import json
import shutil
import signal

import pytest
import torch

from idpgan import fit, publish_images, trainer
from idpgan.data.images import png_bytes
from idpgan.data.load import known_shape
from idpgan.errors import InputError
from idpgan.files import json_text
from idpgan.privacy.folder_ledger import FolderLedger, ledger_of
from idpgan.trainer import refuse_beyond_limits
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run

SIDE = 8


@pytest.fixture
def faces(tmp_path, monkeypatch):
    """Twelve small images of two classes in the current directory."""
    monkeypatch.chdir(tmp_path)
    pixels = torch.randint(256, (12, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for number, image in enumerate(pixels):
        path = tmp_path / "faces" / f"s{number % 2 + 1}" / f"{number // 2 + 1}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(image))
    return tmp_path / "faces"


def told(run, *arguments):
    code, said, error = run("ledger", *arguments, "--json")
    assert (code, error) == (0, "")
    return json.loads(said)


def rows(folder):
    return FolderLedger.read(ledger_of(folder), folder.name).publications


def config(root, epsilon=1.0, method="gaussian", **sections):
    data = {"name": "folder", "root": str(root), "num_images": 12, "image_size": SIDE, "channels": 1, "classes": []}
    table = {"method": {"name": method}, "privacy": {"epsilon": epsilon, "delta": 1e-6}, "data": data}
    return {
        **table,
        "model": {"generator": "gaussian", "conditional": False},
        "data": data | sections.pop("data", {}),
        **sections,
    }


def train(root, out, **changes):
    return trainer.start(build_config(config(root, **changes), "test"), out)


def test_no_command_goes_beyond_it_and_what_is_refused_leaves_everything_as_it_was(run, faces, tmp_path):
    assert told(run, faces, "--limit", 3)["limits"][0]["epsilon"] == 3
    asked = ("--method", "lap", "--unit", "image")
    assert run("publish", faces, *asked, "--epsilon", 1, "--out", "a")[0] == 0
    train(faces, tmp_path / "elsewhere" / "run", epsilon=1.0)
    fit(str(faces / "s1"), epsilon=0.9, method="gaussian", delta=1e-6, progress=False)
    before = ledger_of(faces).read_bytes(), ledger_of(faces / "s1").read_bytes(), sorted(tmp_path.rglob("*"))

    def refused(call, *arguments, **options):
        with pytest.raises(InputError, match=r"the limit on .*faces.ledger.json.* leaves no room: spent is epsilon = "):
            call(*arguments, **options)

    for extra in ((), ("--dry-run",)):
        code, said, error = run("publish", faces, *asked, "--epsilon", 1.2, "--out", "b", *extra)
        assert (code, said, error.count("\n")) == (2, "", 1)
        assert "asked epsilon = 1.2" in error
    code, _, error = run("publish", faces / "s1", "--method", "blur", "--out", "b", "--accept-unsound")
    assert (code, "asked epsilon = infinite" in error) == (2, True)
    refused(publish_images, str(faces / "s1"), epsilon=1.5, unit="image", method="lap", out="b", progress=False)
    refused(train, faces, tmp_path / "b", epsilon=2.5)
    refused(fit, str(faces / "s1"), epsilon=2.5, method="gaussian", progress=False)
    assert (ledger_of(faces).read_bytes(), ledger_of(faces / "s1").read_bytes()) == before[:2]
    assert [path for path in sorted(tmp_path.rglob("*")) if "lock" not in path.name] == [
        path for path in before[2] if "lock" not in path.name
    ]
    assert run("publish", faces / "s2", *asked, "--epsilon", 0.5, "--out", "b")[0] == 0  # never in the fit of s1


def test_it_is_raised_by_a_command_that_says_why(run, faces):
    told(run, faces, "--limit", 1)
    code, _, error = run("ledger", faces, "--limit", 2)
    assert (code, error.count("\n")) == (2, 1)
    assert "--limit 2 --reason TEXT" in error
    assert run("ledger", faces, "--limit", 2, "--reason", " ")[0] == 2
    told(run, faces, "--limit", 0.5)  # a stricter one needs no reason
    told(run, faces, "--limit", 2, "--reason", "second study")
    kept = FolderLedger.read(ledger_of(faces), "faces").limits
    assert [(each.epsilon, each.reason, each.delta) for each in kept] == [
        (1.0, "", 1e-5),
        (0.5, "", 1e-5),
        (2.0, "second study", 1e-5),
    ]
    said = run("ledger", faces)[1]
    assert "epsilon = 2, delta = 1e-05 (unit image, zero-out-one), since" in said
    assert "raised: second study; spent there: epsilon = 0" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--limit", "0"), "finite epsilon above 0"),
        (("--limit", "inf"), "finite epsilon above 0"),
        (("--delta", "1e-5"), "--limit E; a looser one with --reason"),
        (("--limit", "1", "--delta", "0.5"), "--delta = 0.5 must be at least 0 and below 1/N"),
        (("--limit", "1", "--unit", "face"), "unknown unit 'face'"),
        (("--reason", "x"), "finite epsilon above 0"),
        (("--limit", "1", "--reason", "x"), "that this raises"),
        (("--limit", "1", "--ledger", "x.json"), "Leave --ledger out"),
    ],
)
def test_what_is_no_limit_is_one_line_and_writes_nothing(run, faces, tmp_path, options, words):
    before = sorted(tmp_path.rglob("*"))
    code, said, error = run("ledger", faces, *options)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert words in error
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_of_before_are_charged_when_it_is_set_and_counted_once(run, faces, tmp_path):
    train(faces, tmp_path / "runs" / "first")
    before = told(run, faces)
    after = told(run, faces, "--limit", 3, "--delta", 1e-6)
    assert after["totals"] == [each | {"on_other_ledgers": 0} for each in before["totals"]]
    assert [(each["kind"], each["path"]) for each in after["spending"]] == [("run", str(tmp_path / "runs" / "first"))]
    assert len(rows(faces)) == 1
    (tmp_path / "runs").rename(tmp_path / "moved")  # its charge stays
    assert told(run, faces)["limits"][0]["spent"] == after["limits"][0]["spent"] > 0.5
    with pytest.raises(InputError, match="leaves no room"):
        train(faces, tmp_path / "second", epsilon=2.95)
    train(faces / "s1", tmp_path / "third", data={"num_images": 6, "holdout_share": 0.0})
    assert rows(faces / "s1")[0].run == str(tmp_path / "third")


@pytest.mark.parametrize(
    "data", [{"public_root": "faces/s2", "root": "other"}, {"public_share": 0.2, "confirm_public": True}]
)
def test_images_under_it_are_never_public(run, faces, data):
    shutil.copytree(faces, "other")
    planned = build_config(config(faces, data=data), "test")
    planned = plan_run(planned, known_shape(planned.data))
    refuse_beyond_limits(planned)
    told(run, faces, "--limit", 3)
    with pytest.raises(InputError, match=r"under a limit .* cannot be taken as public"):
        refuse_beyond_limits(planned)


def steps_stop(monkeypatch, number):
    step = load_method("dp-gan").Method.critic_step

    def stopping(self, at):
        if at == number:
            signal.raise_signal(signal.SIGTERM)
        return step(self, at)

    monkeypatch.setattr(load_method("dp-gan").Method, "critic_step", stopping)


@pytest.mark.parametrize("limit_first", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_that_goes_on_is_charged_once_and_repeated_steps_again(run, faces, tmp_path, monkeypatch, limit_first):
    """Interrupted before or after the limit was set; then its state is lost, so that all steps are repeated."""
    training = {"steps": 6, "tick_steps": 2, "batch_size": 2, "device": "cpu"}
    model = {"width": 4, "latent_dim": 4, "conditional": False}
    if limit_first:
        told(run, faces, "--limit", 100)
    with monkeypatch.context() as patch:
        steps_stop(patch, 4)
        settings = {
            "training": training,
            "model": model,
            "privacy": {"epsilon": 10.0, "delta": 1e-3, "sample_rate": 0.2},
        }
        train(faces, tmp_path / "run", method="dp-gan", **settings)
    if not limit_first:
        told(run, faces, "--limit", 100, "--delta", 1e-2)

    def charged():
        return sum(event.count for row in rows(faces) for event in row.events)

    assert charged() == 6
    (tmp_path / "run" / "state" / "state.pt").unlink()
    trainer.resume(tmp_path / "run")
    books = json.loads((tmp_path / "run" / "state" / "ledger.json").read_text())
    again = sum(event["count"] for event in books["repeated"])
    assert again >= 4
    assert charged() == 6 + again


def test_files_of_a_folder_with_a_limit_are_not_taken_by_themselves(run, faces):
    told(run, faces, "--limit", 3)
    paths = sorted((faces / "s1").glob("*.png"))
    with pytest.raises(InputError, match=r"are under a limit\. Give the folder itself"):
        publish_images(paths, epsilon=1, unit="image", progress=False)
    with pytest.raises(InputError, match=r"are under a limit\. Give the folder itself"):
        fit([str(path) for path in paths], epsilon=1, progress=False)


def test_a_damaged_ledger_ends_a_run_before_a_read(run, faces, tmp_path):
    told(run, faces, "--limit", 3)
    ledger_of(faces).write_text(json_text({}))
    with pytest.raises(InputError, match="cannot be used"):
        train(faces, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_table_has_as_many_records_as_rows(run, faces):
    """``prepare`` writes a metadata.csv, which is no image to be moved away."""
    names = [path.relative_to(faces).as_posix() for path in sorted(faces.rglob("*.png"))]
    (faces / "metadata.csv").write_text("\n".join(["file_name", *names, "refused.png"]) + "\n")
    told(run, "faces", "--limit", "3")
    assert FolderLedger.read(ledger_of(faces), faces.name).limit.epsilon == 3
    code, _, error = run("ledger", "faces", "--limit", "3", "--delta", "0.08")
    assert code != 0
    assert "13" in error
