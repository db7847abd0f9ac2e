"""A slice of benchmarks/audits.py: its cells cover all that is sound, and none of those tried is above its proof."""

import audits

from idpgan import publish
from idpgan.audit.cases import CASES
from idpgan.commands.audit import nothing_to_audit
from idpgan.methods import methods_of


def test_the_cells_cover_every_sound_method():
    cells = list(audits.cells())
    sound = {
        row.name for row in (*methods_of("generator", "classifier").values(), *publish.METHODS.values()) if row.sound
    }
    assert {name for name in sound if not nothing_to_audit(name)} <= {cell.method for cell in cells}
    assert len(cells) == len({str(cell.spec) for cell in cells}) >= 200
    assert not [cell for cell in cells if nothing_to_audit(cell.method)]  # pgd: it has no guarantee, and no case


def test_a_slice_of_them_is_not_above_what_is_proven():
    chosen = [cell for cell in audits.cells() if cell.method in CASES and cell.request.epsilon == 3.0]
    chosen = [cell for cell in chosen if cell.method != "lap"]
    assert len(chosen) == 13
    each = 1 - 0.001 / (2 * len(chosen))
    for row in (audits.play(cell, each) for cell in chosen):
        assert 0 < row["audited"] <= row["proven"]
        assert not row["violation"]
