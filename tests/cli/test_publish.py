"""``idpgan publish``: a folder goes out whole, its ledger adds up, and bad input is one line beforehand."""

import contextlib
import errno
import json
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile

import numpy as np
import pytest
from PIL import Image

from idpgan.commands import publish as job
from idpgan.commands.publish import PublishOptions, publish_folder, quote
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.errors import InputError
from idpgan.files import new_folder, whole_folder
from idpgan.privacy.folder_ledger import FolderLedger
from idpgan.publish import METHODS, plan, publisher
from tests.training.toy import Stopped, stopping_at

SIDES = (16, 20)
FILES = ("s1/1.png", "s1/2.png", "s1/10.png", "s2/a/x.png", "s10/only.png")  # in the order of their numbers


def fill(folder, channels=1, names=FILES):
    for name, image in zip(names, draw(len(names), SIDES, channels, seed=3).images, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png_bytes(image))
    return folder


@pytest.fixture
def faces(tmp_path):
    return fill(tmp_path / "faces")


@pytest.fixture
def order(faces, tmp_path):
    def make(**changes):
        return PublishOptions(
            **{"arguments": (str(faces),), "method": "lap", "epsilon": 2.0, "unit": "image", "out": tmp_path / "out"}
            | changes
        )

    return make


@pytest.fixture
def command(run, faces, tmp_path):
    """Publish; a later option wins over the usual one."""

    def publishing(*arguments, folder=faces, **changes):
        options = {"method": "lap", "epsilon": 2, "unit": "image", "out": tmp_path / "out"} | changes
        given = [part for key, value in options.items() for part in (f"--{key}", value)]
        return run("publish", folder, *given, *arguments)

    return publishing


def below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# What comes out ------------------------------------------------------------------------------------------------


def test_a_folder_is_published_with_its_order_and_structure(command, run, faces, tmp_path):
    code, said, _ = command(epsilon=3)
    assert code == 0
    out = tmp_path / "out"
    numbered = ["0001/0001.png", "0001/0002.png", "0001/0003.png", "0002/0001/0001.png", "0003/0001.png"]
    assert {f"images/{name}" for name in numbered} == {name for name in below(out / "release") if "images" in name}
    report = json.loads((out / "curator" / "report.json").read_text())
    assert [row["original"] for row in report["images"]] == list(FILES)
    assert [row["released"] for row in report["images"]] == numbered
    assert {"mse", "ssim", "entropy_original", "entropy_released"} <= set(report["mean"])
    assert stat.S_IMODE((out / "curator").stat().st_mode) == 0o700
    assert np.array(Image.open(out / "curator" / "contact.png")).shape == (2 * 18 - 2, 8 * 22 - 2)
    for words in (
        "unit:    image",
        "claimed: epsilon = 3",
        "k images of one person cost k epsilon",
        "3 of the largest",
    ):
        assert words in said
    assert run("verify", out / "release")[0] == 0
    given = "".join((out / "release" / name).read_text() for name in ("README.md", "privacy.json", "config.json"))
    assert not {"only", "s10"} & set(given.replace("/", " ").replace('"', " ").split())


def test_the_curators_errors_are_those_of_the_images(command, faces, tmp_path):
    assert command(unit="pixel", epsilon=50)[0] == 0
    rows = json.loads((tmp_path / "out" / "curator" / "report.json").read_text())["images"]
    for row in rows:
        original = np.array(Image.open(faces / row["original"])) / 255
        released = np.array(Image.open(tmp_path / "out" / "release" / "images" / row["released"])) / 255
        assert row["mse"] == pytest.approx(((original - released) ** 2).mean())
        assert 0 < row["mse"] < 0.01  # published and no copy
        assert row["relative_error"] == pytest.approx(abs(original - released).mean())
        assert row["absolute_error"] == pytest.approx(1 / 50, rel=0.2)  # of the noise itself: 320 draws of this scale
        levels = [
            np.bincount((image * 255).round().astype(int).ravel(), minlength=256) for image in (original, released)
        ]
        assert row["histogram_distance"] == pytest.approx(abs(levels[0] - levels[1]).sum() / 2 / original.size)


def test_names_are_kept_where_that_is_said(command, run, tmp_path):
    assert command("--keep-names")[0] == 0
    release = tmp_path / "out" / "release"
    assert {f"images/{name}" for name in FILES} < below(release)
    assert "names of the files" in (release / "README.md").read_text()
    assert run("verify", release)[0] == 0


def test_color_goes_out_by_channel_with_the_budget_split(command, run, tmp_path):
    folder = fill(tmp_path / "colors", 3)
    code, said, _ = command("--color", "--json", folder=folder, unit="pixel", epsilon=30)
    assert code == 0
    done = json.loads(said)
    assert 29 < done["report"]["proven"]["epsilon"] <= 30
    document = json.loads((tmp_path / "out" / "release" / "privacy.json").read_text())
    assert [event["count"] for event in document["events"]] == [3]
    assert run("verify", tmp_path / "out" / "release")[0] == 0
    released = Image.open(tmp_path / "out" / "release" / "images" / "0001" / "0001.png")
    original = np.array(Image.open(folder / FILES[0])) / 255
    assert released.mode == "RGB"
    assert ((np.array(released) / 255 - original) ** 2).mean() < 0.05  # each channel is its own


@pytest.mark.parametrize("unit", plan.UNITS)
def test_best_is_a_sound_method_of_the_unit_at_every_epsilon(unit):
    for epsilon in (1e-3, *plan.EPSILONS, 1e9):
        row = METHODS[plan.best_method(unit, epsilon)]
        assert row.sound
        assert unit in row.units
    assert len(plan._BEST[unit]) == len(plan.EPSILONS)


def test_best_is_resolved_before_it_is_said(command):
    code, said, _ = command("--dry-run", method="best", epsilon=10)
    assert code == 0
    assert f"method {plan.best_method('image', 10)}" in said


def test_a_dry_run_prices_and_writes_nothing(command, faces, tmp_path):
    (faces / FILES[0]).write_bytes((faces / FILES[0]).read_bytes()[:60])  # the pixels are gone, the header is whole
    code, said, _ = command("--dry-run", "--json")
    assert code == 0
    assert json.loads(said)["report"]["proven"]["epsilon"] == 2
    assert json.loads(said)["person"]["3"] == 6
    assert os.listdir(tmp_path) == ["faces"]


# The ledger ----------------------------------------------------------------------------------------------------


def test_a_second_publication_adds_up_with_one_more_image_too(command, faces, tmp_path):
    assert command()[0] == 0
    fill(faces, names=("s9/new.png",))
    code, said, _ = command(out=tmp_path / "again", epsilon=3)
    assert code == 0
    assert "2 publications, in total epsilon = 5 (unit image" in said
    assert "claimed: epsilon = 3" in said


def test_a_coarser_unit_counts_and_a_finer_one_is_named(command, tmp_path):
    assert command(unit="column", epsilon=1)[0] == 0
    pixel = json.loads(command("--dry-run", "--json", unit="pixel", out=tmp_path / "b")[1])["total"]
    assert pixel["epsilon"] == pytest.approx(3, rel=1e-2)
    assert (pixel["publications"], pixel["not_counted"]) == (2, 0)
    said = command("--dry-run", unit="image", out=tmp_path / "b")[1]
    assert "in total epsilon = 2 (unit image" in said
    assert "not counted: 1 of units that bound no image" in said


def test_an_unsound_publication_makes_the_total_infinite_and_leaves_the_number_of_each_release(command, run, tmp_path):
    code, _, error = command(method="sra", unit="column")
    assert code == 2
    assert "--accept-unsound" in error
    assert command("--accept-unsound", method="sra", unit="column")[0] == 0
    assert "**NOT private.**" in (tmp_path / "out" / "release" / "README.md").read_text()
    code, said, _ = command(unit="image", out=tmp_path / "b")
    assert code == 0
    assert "proven:  epsilon = 2 " in said
    assert "in total epsilon = infinite" in said
    assert "unsound before: sra" in said
    assert run("verify", tmp_path / "b" / "release")[0] == 0


def test_a_link_to_a_folder_has_the_ledger_of_the_folder(command, faces, tmp_path):
    assert command()[0] == 0
    (tmp_path / "other").symlink_to(faces)
    assert "2 publications" in command("--dry-run", folder=tmp_path / "other", out=tmp_path / "b")[1]


# Interruptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["replace", "rename"])
@pytest.mark.parametrize("error", [Stopped(), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_stopped_at_any_write_there_is_a_paid_release_or_none(order, tmp_path, call, error):
    asked, number = order(), 0
    while True:
        number += 1
        with stopping_at(number, error, call) as calls, contextlib.suppress(type(error)):
            publish_folder(asked)
        if len(calls) < number:
            break
        stands = FolderLedger.read(asked.ledger_path, "faces").publications
        assert not asked.out.exists() or (asked.out / "release" / "privacy.json").exists()
        assert len(stands) in (number - 1, number)  # every run before has charged but the first, perhaps
        assert not list(asked.out.rglob("*.part"))
    assert number > 2 if call == "replace" else number > 1
    charged = len(FolderLedger.read(asked.ledger_path, "faces").publications)
    assert charged == number - (call == "replace")  # stopped before the charge was durable: nothing is charged
    assert {path.name for path in tmp_path.iterdir()} == {
        "faces",
        "faces.ledger.json",
        ".faces.ledger.json.lock",
        "out",
    }


def test_the_charge_is_durable_before_an_image_is_published(order, monkeypatch):
    asked, seen = order(), []

    def fails(*arguments, **options):
        seen.append(len(FolderLedger.read(asked.ledger_path, "faces").publications))
        raise Stopped

    monkeypatch.setattr("idpgan.publish.publisher.release_planned", fails)
    with pytest.raises(Stopped):
        publish_folder(asked)
    assert seen == [1]
    assert not asked.out.exists()


def test_the_charge_is_durable_before_a_pixel_is_read(order, monkeypatch):
    asked, seen = order(), []

    def fails(path, channels, size=None):
        seen.append(len(FolderLedger.read(asked.ledger_path, "faces").publications))
        raise Stopped

    monkeypatch.setattr("idpgan.data.image_files.decode", fails)
    with pytest.raises(Stopped):
        publish_folder(asked)
    assert set(seen) == {1}
    assert not asked.out.exists()


def test_what_a_kill_left_is_removed_and_what_another_fills_stays(order, tmp_path):
    dead = [tmp_path / f".{name}.{'a' * 16}.part" for name in ("out", "other", "an.other")]
    foreign = [tmp_path / name for name in (".other.part", f"other.{'a' * 16}.part", f".other.{'x' * 16}.part")]
    for folder in (*dead, *foreign):
        (folder / "curator").mkdir(parents=True)
    with new_folder(tmp_path / "a") as one, whole_folder(tmp_path / "b") as two:  # a publication, and photos prepared
        publish_folder(order())
        assert one.exists()
        assert two.exists()
    assert not any(map(os.path.exists, dead))
    assert all(map(os.path.exists, foreign))


def test_a_publication_that_is_killed_leaves_a_folder_that_goes_with_the_next_one_beside_it(order, tmp_path):
    killed = multiprocessing.get_context("fork").Process(target=_die_while_computing, args=(order(),))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".out.*.part"))) == 1
    publish_folder(order(out=tmp_path / "another"))
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob(".*.part"))


def _die_while_computing(asked):
    publisher.release_planned = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    publish_folder(asked)


def test_two_publications_of_a_folder_do_not_run_at_once(order):
    with FolderLedger.locked(order().ledger_path, "faces"), pytest.raises(InputError, match="is running"):
        publish_folder(order())


def test_a_folder_that_was_filled_meanwhile_is_not_replaced(order, monkeypatch):
    def slow(*arguments):
        (asked.out / "mine").mkdir(parents=True)
        return original(*arguments)

    asked, original = order(), job._release
    monkeypatch.setattr(job, "_release", slow)
    with pytest.raises(InputError, match="not empty"):
        publish_folder(asked)
    assert os.listdir(asked.out) == ["mine"]


# Bad input -----------------------------------------------------------------------------------------------------


def emptied(faces):
    shutil.rmtree(faces)
    faces.mkdir()


def noted(faces):
    (faces / "s1" / "list.csv").write_text("a,b")


def damaged(faces):
    ledger = faces.with_name("faces.ledger.json")
    ledger.write_text('{"format": "idpgan folder ledger 1"')


def altered(faces):
    path = faces.with_name("faces.ledger.json")
    path.write_text(
        json.dumps({"format": "idpgan folder ledger 1", "folder": "faces", "publications": [], "checksum": ""})
    )


def of_another_folder(faces):
    FolderLedger(faces.with_name("faces.ledger.json"), "people").write()


def of_a_run(faces):
    faces.with_name("faces.ledger.json").write_text(json.dumps({"format": "idpgan ledger 2", "events": []}))


def filled(faces):
    (faces.parent / "out").mkdir()
    (faces.parent / "out" / "mine").touch()


def untouched(faces):
    pass


@pytest.mark.parametrize(
    ("spoil", "arguments", "options", "words"),
    [
        (emptied, [], {}, "holds no images"),
        (noted, [], {}, "list.csv is not an image"),
        (damaged, [], {}, "restore it from a copy"),
        (altered, [], {}, "its checksum does not fit"),
        (of_another_folder, [], {}, "belongs to a folder named 'people'"),
        (of_a_run, [], {}, "its format is not"),
        (filled, [], {}, "is not empty"),
        (untouched, ["law=nan"], {}, "law = nan"),
        (untouched, ["lwa=laplace"], {}, "Did you mean 'law'"),
        (untouched, ["law=laplace"], {"method": "best"}, "takes no options"),
        (
            untouched,
            ["--accept-unsound", "window=321"],
            {"method": "swp", "unit": "pixel"},
            "longer than the 320 pixels",
        ),
        (untouched, ["window=321"], {"method": "swp-sound", "unit": "pixel"}, "longer than the 320 pixels"),
        (untouched, ["--accept-unsound", "window=8", "step=9"], {"method": "swp", "unit": "pixel"}, "step = 9"),
        (untouched, ["--accept-unsound", "threshold=1.2"], {"method": "sort-swp", "unit": "pixel"}, "threshold = 1.2"),
        (untouched, ["threshold=nan"], {"method": "swp-sound", "unit": "pixel"}, "threshold = nan"),
        (untouched, ["compare=inf"], {"method": "sort-swp-sound", "unit": "pixel"}, "compare = inf"),
        (untouched, [], {"epsilon": "nan"}, "epsilon = nan"),
        (untouched, [], {"epsilon": 0}, "must be positive"),
        (untouched, [], {"epsilon": "inf", "method": "best"}, "must be positive and finite"),
        (untouched, ["--delta", "0.2"], {}, "below 1/N"),
        (untouched, ["--delta", "nan"], {}, "delta"),
        (untouched, [], {"unit": "pixel", "method": "codebook"}, "known: image"),
        (untouched, [], {"unit": "person", "method": "best"}, "known: pixel, column, image"),
        (untouched, [], {"method": "lapp"}, "Did you mean 'lap'"),
        (untouched, [], {"folder": "nowhere"}, "no folder"),
        (untouched, ["more"], {}, "name one folder"),
        (untouched, [], {"size": "16by20"}, "--size '16by20' is not a size"),
        (untouched, [], {"size": "0x16"}, "--size '0x16' is not a size"),
        (untouched, [], {"out": "nowhere/out"}, "Make it first"),
        (untouched, [], {"ledger": "nowhere/ledger"}, "folder that exists"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_charged(command, faces, tmp_path, spoil, arguments, options, words):
    spoil(faces)
    before = below(tmp_path)
    code, said, error = command(*arguments, **options)
    assert (code, said) == (2, "")
    assert words in error
    assert error.count("\n") == 1
    assert below(tmp_path) == before


@pytest.mark.parametrize(
    ("out", "ledger"), [("faces/out", None), (".", None), ("faces", None), ("o", "faces/l"), ("o", "o/l")]
)
def test_places_that_lie_in_each_other_are_refused(order, tmp_path, out, ledger):
    asked = order(out=tmp_path / out, ledger=None if ledger is None else tmp_path / ledger)
    before = below(tmp_path)
    for action in (quote, publish_folder):
        with pytest.raises(InputError, match=r"a folder of images|in what is published|not empty"):
            action(asked)
    assert below(tmp_path) == before


def test_two_names_that_become_one_are_refused(command, faces):
    Image.new("L", SIDES[::-1]).save(faces / "s1" / "1.bmp")
    assert command("--dry-run")[0] == 0  # numbers differ
    code, _, error = command("--keep-names")
    assert code == 2
    assert "would both be s1/1.png" in error


@pytest.mark.parametrize("place", ["out", "ledger"])
def test_a_disk_that_refuses_is_one_line_before_the_charge(command, tmp_path, monkeypatch, place):
    (tmp_path / "closed").mkdir()
    real = shutil.disk_usage

    def refuses(folder):
        return real(folder)._replace(free=0) if str(folder).endswith("closed") else real(folder)

    monkeypatch.setattr(shutil, "disk_usage", refuses)
    code, _, error = command(**{place: tmp_path / "closed" / "new"})
    assert code == 2
    assert "MB are free on that disk" in error
    assert not list(tmp_path.rglob("*.json"))


def test_a_read_only_disk_is_one_line_before_the_charge(command, tmp_path, monkeypatch):
    def refuses(**options):
        raise OSError(errno.EROFS, "Read-only file system", str(options["dir"]))

    monkeypatch.setattr("idpgan.files.tempfile.TemporaryFile", refuses)
    code, _, error = command()
    assert code == 2
    assert "Read-only file system. Write to another place" in error
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("way", [("--method", "lap", "--epsilon", 2, "--unit", "image"), ("--method", "blur")])
def test_images_on_a_read_only_disk_are_published_with_a_ledger_elsewhere(run, faces, tmp_path, monkeypatch, way):
    """It said "Write to another place", and not how."""
    made = tempfile.TemporaryFile

    def refuses(**options):
        if options["dir"] == faces.parent:
            raise OSError(errno.EROFS, "Read-only file system", str(options["dir"]))
        return made(**options)

    monkeypatch.setattr("idpgan.files.tempfile.TemporaryFile", refuses)
    (tmp_path / "home").mkdir()
    asked = ("publish", faces, *way, "--accept-unsound", "--out", tmp_path / "home" / "out")
    code, _, error = run(*asked)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{faces}.ledger.json cannot be kept there: Read-only file system." in error
    assert "--ledger FILE" in error
    assert not list(tmp_path.rglob("*.json"))
    assert run(*asked, "--ledger", tmp_path / "home" / "ledger.json")[0] == 0


def test_a_device_that_is_not_here_is_refused_before_a_charge(command, faces, tmp_path):
    code, _, said = command(device="cuda:99")
    assert code == 2
    assert "--device is cuda:99" in said
    assert not faces.with_name(f"{faces.name}.ledger.json").exists()
    assert not (tmp_path / "out").exists()
    assert command(device="cpu")[0] == 0
