"""Kinds of places are hidden one by one, on a folder of made pictures in the layout of `idpgan prepare`."""

import json
import sys

import pytest
import torch
from papers import places

from idpgan.data.images import png_bytes

KINDS = ("arch", "army_base", "field", "sea")


@pytest.fixture
def folder(tmp_path):
    """Eight pictures of each kind, which is the brightness of one quarter, and one that nobody has labeled."""
    draw, lines = torch.Generator().manual_seed(0), ["file_name,label"]
    for number, kind in enumerate((*KINDS, "")):
        for picture in range(8 if kind else 1):
            pixels = torch.randint(0, 60, (3, 8, 8), generator=draw, dtype=torch.uint8)
            pixels[:, 4 * (number // 2 % 2) :, 4 * (number % 2) :][:, :4, :4] += 180
            name = f"{kind}{picture}.png"
            (tmp_path / name).write_bytes(png_bytes(pixels))
            lines.append(f"{name},{kind}")
    (tmp_path / "metadata.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_question_is_asked_of_as_many_pictures_of_a_kind_as_of_others(folder):
    images, kinds, names = places.read(folder)
    assert (tuple(images.shape), names) == ((32, 3, 8, 8), sorted(KINDS))
    chosen, answers = places.question(kinds, 1)
    assert answers.bincount().tolist() == [8, 8]
    assert torch.equal(answers == 1, kinds[chosen] == 1)


def test_every_encoder_is_judged_on_every_question(folder, monkeypatch, capsys):
    hidden = KINDS[:3]
    monkeypatch.setattr(
        sys, "argv", ["places.py", str(folder), "--steps", "2", "--width", "2", "--epochs", "1", "--hide", *hidden]
    )
    places.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["none", "blur, sigma 3", *(f"hides {kind}" for kind in hidden), "hides army_base, keeps field"]
    assert [row["encoder"] for row in rows] == names
    assert all(0 <= row[kind] <= 1 for row in rows for kind in hidden)
    monkeypatch.setattr(sys, "argv", ["places.py", str(folder)])
    with pytest.raises(SystemExit, match="name three kinds or more of arch, army_base, field, sea"):
        places.main()
