"""A run with code of the user goes on only as it began: an edit is refused, what may differ is charged again."""

import pytest

from idpgan.errors import InputError
from idpgan.own_code import source_digest
from idpgan.privacy.books import count
from idpgan.privacy.ledger import Ledger
from idpgan.synthesis.dp_gan import Method as DpGan
from idpgan.trainer import load_config, resume, start
from tests.own.conftest import small

STEPS = 6


@pytest.fixture
def broken(mine, tmp_path, monkeypatch):
    """Start a run that breaks off in step 6: the last state is of step 4, and the charges of two steps follow it."""

    def begin(text=None, **tables):
        if text is not None:
            mine((tmp_path / "mine.py").read_text() + text)
        step = DpGan.step

        def breaking(self, number):
            if number == STEPS:
                raise KeyboardInterrupt
            return step(self, number)

        with monkeypatch.context() as patch:
            patch.setattr(DpGan, "step", breaking)
            with pytest.raises(KeyboardInterrupt):
                start(small("dp-gan", **tables), tmp_path / "run")
        return tmp_path / "run"

    return begin


def steps_charged(path):
    """Resume, and return how many steps stand on the run's ledger."""
    run = resume(path).run
    return count(Ledger.open(run.ledger, load_config(run.config).identity()).events)


def test_the_same_code_repeats_steps_without_a_charge(mine, broken):
    assert steps_charged(broken()) == STEPS


def test_edited_code_is_refused(mine, broken, tmp_path):
    run = broken()
    mine((tmp_path / "mine.py").read_text() + "\n# one more line\n")
    with pytest.raises(InputError, match=r"Cannot resume .* own code: .* saved"):
        resume(run)


def test_an_edited_helper_is_refused(mine, broken, tmp_path):
    mine("def scale(images):\n    return images\n", "helper")
    run = broken("\nfrom helper import scale\n")
    mine("def scale(images):\n    return images / 2\n", "helper")
    with pytest.raises(InputError, match="own code"):
        resume(run)


@pytest.mark.parametrize("part", ["weights", "forward"])
def test_code_that_computes_something_else_is_charged_again(mine, broken, monkeypatch, part):
    """The source is the same, and hangs on what it does not say."""
    own = {
        "weights": "        self.layers[0].bias.data.fill_(FACTOR)\n",
        "forward": "    def forward(self, z, labels=None):\n        return super().forward(FACTOR * z, labels)\n",
    }[part]
    head = "\n\nimport os\nFACTOR = float(os.environ['FACTOR'])\n\n\nclass Changes(Generator):\n"
    init = "    def __init__(self, num_classes=0):\n        super().__init__(num_classes=num_classes)\n"
    monkeypatch.setenv("FACTOR", "1.0")
    run = broken(head + init + own, model={"generator": "mine:Changes"})
    monkeypatch.setenv("FACTOR", "0.5")
    mine((run.parent / "mine.py").read_text())  # imported anew
    assert steps_charged(run) == STEPS + 2


def test_code_without_a_file_is_charged_again(mine, broken, tmp_path):
    run = broken("\ndel __file__\n")
    assert source_digest(("mine:Generator",)) is None
    assert steps_charged(run) == STEPS + 2


def test_a_network_that_draws_random_numbers_in_training_is_charged_again(mine, broken):
    run = broken(model={"generator": "mine:DropsOut"})
    assert steps_charged(run) == STEPS + 2


def test_the_digest_sees_what_a_module_uses(mine, tmp_path):
    mine("SCALE = 1\n", "helper")
    mine("import helper\nimport torch\n\n\ndef draw(z, labels):\n    return helper.SCALE * z\n")
    first = source_digest(("mine:draw",))
    mine("SCALE = 2\n", "helper")
    second = source_digest(("mine:draw",))
    mine("SCALE = 1\n", "helper")
    assert first == source_digest(("mine:draw",)) != second
