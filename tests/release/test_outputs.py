"""Results are never written over what the command did not make itself."""

import json
import os
import shutil

import pytest

from idpgan import trainer
from idpgan.errors import InputError
from idpgan.release.export import export_samples
from idpgan.release.folder import check_output

FORM = "idpgan evaluation 1"


def test_a_new_file_and_an_earlier_result_are_fine(tmp_path):
    check_output(tmp_path / "new.json", FORM)
    (tmp_path / "new.json").write_text(json.dumps({"format": FORM}))
    check_output(tmp_path / "new.json", FORM)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "idpgan ledger 2"}', "x" * 100, "[" * 100_000])
def test_another_file_is_not_written_over(tmp_path, content):
    (tmp_path / "mine").write_text(content)
    with pytest.raises(InputError, match="not an earlier result"):
        check_output(tmp_path / "mine", FORM)


def test_links_pipes_and_folders_are_not_written_over(tmp_path):
    (tmp_path / "good.json").write_text(json.dumps({"format": FORM}))
    (tmp_path / "link").symlink_to(tmp_path / "good.json")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "folder", "pipe"):
        with pytest.raises(InputError, match="not an earlier result"):
            check_output(tmp_path / name, FORM)
    with pytest.raises(InputError, match="does not exist"):
        check_output(tmp_path / "nowhere" / "x.json", FORM)


def test_an_input_is_not_written_over(tmp_path):
    (tmp_path / "images.npz").write_text(json.dumps({"format": FORM}))  # even if it looked like a result
    (tmp_path / "sub").mkdir()
    with pytest.raises(InputError, match="to be read"):
        check_output(tmp_path / "sub" / ".." / "images.npz", FORM, [tmp_path / "images.npz"])


@pytest.mark.parametrize("place", ["state/ledger.json", "state/new.json", "release/x.json", "release/deeper/x.json"])
def test_state_and_release_of_a_run_are_closed(aggregate_run, place):
    (aggregate_run / "release" / "deeper").mkdir(exist_ok=True) if "deeper" in place else None
    with pytest.raises(InputError, match=r"of a run|in a release"):
        check_output(aggregate_run / place, FORM)
    if "deeper" in place:
        (aggregate_run / "release" / "deeper").rmdir()
    check_output(aggregate_run / "evaluation.json", FORM)  # negative control


@pytest.mark.parametrize("place", ["release", "release/images", "release/deep/run", "state/images"])
def test_neither_images_nor_a_run_go_into_a_release_or_a_state(aggregate_run, tmp_path, place):
    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    shutil.rmtree(copy / "release") if place == "release" else None
    out = copy / place
    with pytest.raises(InputError, match=r"of a run|in a release"):
        trainer.plan(trainer.load_config(None), out)
    if out.parent.is_dir():
        with pytest.raises(InputError, match=r"of a run|in a release"):
            export_samples(aggregate_run, 2, out)
    trainer.plan(trainer.load_config(None), copy / "elsewhere")  # negative control
    assert not os.path.lexists(out)
