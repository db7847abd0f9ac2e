"""benchmarks/products.py: its routes make the gradients that a step makes, and it prints one line."""

import json
import sys

import products
import pytest
import torch

from idpgan.privacy.layer_gradients import ConvolutionCall, Outer, blocks


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(products, "BATCH", 6)
    monkeypatch.setattr(products, "BLOCK", 4)


def test_a_grouped_convolution_gives_the_rows_of_a_step():
    gradients = products.captured(4)
    calls = {name: own._calls for name, own in gradients.items() if isinstance(own, Outer)}
    rows = {name: [] for name in calls}
    for _, block in blocks(gradients, 6):
        for name, part in zip(gradients, block, strict=True):
            if name in rows:
                rows[name].append(part.clone())
    seen = 0
    for name, (call, *more) in calls.items():
        if not isinstance(call, ConvolutionCall):
            continue
        assert not more  # an image and its fake pass together
        by_group = products.grouped(call)  # (C, n, p, rows, columns), n images of 6 records
        own = by_group.unflatten(1, (6, -1)).sum(2).permute(1, 2, 3, 4, 0)  # (record, p, rows, columns, C)
        torch.testing.assert_close(own.flatten(1), torch.cat(rows[name]), rtol=1e-4, atol=1e-5)
        seen += 1
    assert seen == 2


def test_it_prints_one_line_with_the_processors_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["products.py", "--quick", "--widths", "4"])
    threads = torch.get_num_threads()
    try:
        products.main()
    finally:
        torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["processor"]
    [rows] = found["routes"].values()
    assert {"torch.bmm", "NumPy (OpenBLAS)", products.KEPT} < {*rows}
    assert all(taken >= 0 for taken in rows.values())
