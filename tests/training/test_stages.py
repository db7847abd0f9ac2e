"""Every stage of a run that may take minutes tells how far it is; none of them says 0 of 1."""

from pathlib import Path

import pytest

from idpgan.trainer import load_config, start

TEACHER = {"features of images", "features for the teacher", "teacher steps"}
STAGES = {
    "gaussian": ([], {"features of images"}),
    "evolution": (["model.codes=4", "training.steps=2"], {"features of images", "training steps"}),
    "aggregate": (
        [
            "method.teacher_share=0.3", "method.pretrain_steps=3", "training.steps=2", "data.public_share=0.1",
            "data.confirm_public=true", "model.width=4", "training.batch_size=20",
        ],
        TEACHER | {"balance the teacher", "pre-training steps", "training steps"},
    ),
    "scattering-linear": (["training.steps=2"], {"features of images", "training steps"}),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_says_how_far_it_is(name, tmp_path):

    settings, stages = STAGES[name]
    told = {}

    def progress(what, done, total, note=""):
        told.setdefault(what, []).append((done, total))

    start(load_config(Path(f"digits-{name}"), [*settings, "release.samples=4"]), tmp_path / "run", progress)
    assert stages <= set(told)
    assert [what for what, calls in told.items() if {total for _, total in calls} == {1}] == []
    assert all(done <= total for calls in told.values() for done, total in calls)
    assert all(calls[-1][0] == calls[-1][1] for what, calls in told.items())
