"""`idpgan.publish_images` and `idpgan.evaluate`: images in memory, published one by one, or held against real ones."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from idpgan.checks import whole
from idpgan.commands.fit import FittedGenerator
from idpgan.commands.process_ledger import charge, records_of, refuse_limited_paths
from idpgan.commands.publish import BEST, Published, PublishOptions, publish_folder
from idpgan.config import nearest_hint
from idpgan.data.images import to_unit
from idpgan.data.intake import Range, gathered, is_npz
from idpgan.data.load import Split
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.kinds import opened
from idpgan.metrics.evaluation import METRICS, Evaluation, default_metrics, evaluate_images
from idpgan.metrics.features import RECIPES
from idpgan.metrics.source import read_images
from idpgan.models.generator import Generator
from idpgan.privacy.folder_ledger import FolderLedger
from idpgan.privacy.guarantee import Relation, parse_unit
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.plan import Budget
from idpgan.progress import shown
from idpgan.publish.plan import best_method
from idpgan.publish.publisher import Release
from idpgan.publish.publisher import release as release_images
from idpgan.release.folder import refuse_place


def publish_images(
    images: Any,
    *,
    epsilon: float,
    unit: str,
    method: str = BEST,
    delta: float = 0.0,
    out: str | os.PathLike[str] | None = None,
    pixel_range: Range = None,
    accept_unsound: bool = False,
    device: str = "cpu",
    progress: bool = True,
    **options: Any,
) -> Release | Published:
    """Publish every image by itself under differential privacy.

    Args:
        images: In memory or an npz file, as `idpgan.fit` takes them; or a folder (its path), which is published as by
            `idpgan publish` and whose ledger adds up.
        epsilon: Of this publication, per unit.
        unit: "pixel", "column" or "image": what one neighbor changes.
        method: A publisher of `idpgan methods`; "best" = by tests on drawn faces.
        delta: Below 1/N; 0 is pure.
        out: A new folder. Of images in memory it is the release to give away, None writes nothing; of a folder it must
            be given, and holds ``release`` and ``curator``.
        pixel_range: See `idpgan.fit`.
        accept_unsound: Publish by a method that proves nothing.
        **options: Of the method.

    Returns:
        For images in memory the `idpgan.publish.Release` (``images``, ``to_uint8()``, ``privacy``, ``write``); for a
        folder what `idpgan publish` made (``release``, ``curator``, ``quote``).

    Raises:
        InputError: If an argument or the data cannot be used. Nothing is charged then.

    Example:
        >>> import numpy as np
        >>> black = np.zeros((2, 16, 16), np.uint8)
        >>> made = publish_images(black, epsilon=4.0, unit="pixel", method="lap", progress=False)
        >>> made.to_uint8().shape, 3.9 < made.privacy.proven.epsilon <= 4
        (torch.Size([2, 16, 16]), True)
    """
    if isinstance(images, str | os.PathLike) and not is_npz(images):
        if out is None:
            raise InputError(f"out is missing: the folder {images} is published to a new folder. Name it.")
        if pixel_range is not None:
            raise InputError("pixel_range is for images in memory: files say it themselves. Leave it out.")
        settings = tuple(f"{key}={value}" for key, value in options.items())
        named = PublishOptions(
            (str(images), *settings),
            method,
            Path(out),
            epsilon=epsilon,
            unit=unit,
            delta=delta,
            accept_unsound=accept_unsound,
            device=device,
        )
        before = len(FolderLedger.read(named.ledger_path, named.name).publications)
        try:
            with shown(off=not progress) as show:
                return publish_folder(named, show)
        finally:
            for paid in FolderLedger.read(named.ledger_path, named.name).publications[before:]:
                charge(records_of(named.folder), paid.events, paid.delta, *paid.pair)
    if out is not None:
        refuse_place(Path(out), f"out = {out}")
    refuse_limited_paths(images)
    with shown(off=not progress) as show:
        private = gathered(images, pixel_range=pixel_range, labeled=False, progress=show)
    values = to_unit(private.images).to(resolve_device(device, "device"))
    values = values if values.shape[1] == 3 else values[:, 0]
    if method == BEST:
        if options:
            raise InputError(f"method 'best' takes no options, got {', '.join(options)}. Name the method.")
        method = best_method(unit, epsilon / private.image_shape[0])
    one = parse_unit(unit)
    ledger = Ledger(one, Relation.REPLACE_ONE, Budget(epsilon, delta) if not accept_unsound else None)
    try:
        made = release_images(
            values,
            method,
            epsilon=epsilon,
            delta=delta,
            unit=one,
            ledger=ledger,
            accept_unsound=accept_unsound,
            **options,
        )
    finally:
        together = charge(records_of(private), ledger.events, delta, one, Relation.REPLACE_ONE)
    if together is not None:
        made = dataclasses.replace(made, notes=(*made.notes, str(together)))
    if out is not None:
        made.write(Path(out))
    return made


def evaluate(
    synthetic: Any,
    real: Any,
    *,
    train: Any = None,
    only: str | None = None,
    num: int | None = None,
    seeds: int | None = None,
    classifiers: Sequence[str] = tuple(RECIPES),
    pixel_range: Range = None,
    device: str = "auto",
    progress: bool = True,
) -> Evaluation:
    """Measure synthetic images against real ones: utility, inception score, FID and KID. For the curator only.

    Args:
        synthetic: What `idpgan.fit` returned or `idpgan.load_generator` loaded, from which images are drawn; a
            `SyntheticDataset`; a pair (images, labels) or images alone, in memory as `idpgan.fit` takes them; or a path
            that `idpgan evaluate` takes.
        real: Images that were not trained on, best: a pair (images, labels), images alone, a data set, or a folder or
            an npz file (its path). All of them judge the utility.
        train: Real images to fit the networks that look at images; None takes every other one of ``real``, and the rest
            judges fidelity.
        only: Measure just this: "utility", "inception" or "fidelity".
        num: Images to draw from a generator; None = as many as are real, at least 1,000.
        seeds: Fits of each classifier; None = 3.
        classifiers: Kinds of them for utility: "cnn", "resnet", "logistic".
        pixel_range: Of images that are not bytes, see `idpgan.fit`; or "auto", the default of npz files: found by the
            darkest and the brightest pixel, or refused.

    Returns:
        Its ``results`` by name; `str` of it is a table.

    Raises:
        InputError: If something cannot be measured.
    """
    where = resolve_device(device, "device")
    if only is not None and only not in METRICS:
        raise InputError(f"only = '{only}' is unknown. {nearest_hint(only, METRICS)}")
    for name, value in (("seeds", seeds), ("num", num)):
        if value is not None:
            whole(value, name, 1)
    with shown(off=not progress) as show:
        measured: Any = {"pixel_range": pixel_range, "progress": show}
        judges = gathered(real, what="real", private=False, **measured)
        like = judges.image_shape, judges.classes
        known = None if train is None else read_images(train, *like, what="train", **measured)
        source = synthetic.generator if isinstance(synthetic, FittedGenerator) else synthetic
        source = opened(Path(source)) if isinstance(source, str | os.PathLike) else source
        if num is not None and not isinstance(source, Generator):
            raise InputError(f"num = {num} is for generators: all of these images are taken. Leave it out.")
        num = max(len(judges), 1000) if num is None else num
        images = read_images(source, *like, num=num, what="synthetic", **measured)
        wanted = [only] if only else list(default_metrics(judges.classes if images.labels is not None else ()))
        none, every = judges.select(torch.arange(0)), torch.arange(len(judges))
        first, second = (known, judges) if known else (judges.select(every[::2]), judges.select(every[1::2]))
        own = [name for name in wanted if name == "utility"]
        parts = (
            (own, Split(none, first, none, judges)),
            ([name for name in wanted if name not in own], Split(none, first, none, second)),
        )
        made = [
            evaluate_images(images, split, names, num_seeds=seeds, classifiers=classifiers, device=where, progress=show)
            for names, split in parts
            if names
        ]
    results = {name: result for each in made for name, result in each.results.items()}
    return Evaluation(results, "test", tuple(dict.fromkeys(note for each in made for note in each.notes)))
