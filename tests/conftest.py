"""Settings of all tests: one torch thread, fixed seeds of models and noise, hypothesis without a clock."""

import functools
import gc
import hashlib
import itertools
import os
import secrets
import sys
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from idpgan import host, trainer
from idpgan.device import keep_freed_memory
from idpgan.models.drawing import Drawing
from idpgan.privacy import Noise
from tests.small_runs import config_of

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # scripts there import each other by their names

_FILES_MOST = 4 << 30  # bytes; the suite was seen to hold 53 MB at once

# No deadline: a busy machine is not a defect. Derandomized: a failure is the same failure everywhere.
hypothesis.settings.register_profile("idpgan", deadline=None, derandomize=True)
hypothesis.settings.load_profile("idpgan")


def pytest_addoption(parser):
    """The suite on other machines (`tools/everywhere.py`) and with other seeds (`tools/margins.py`)."""
    parser.addoption("--threads", type=int, default=1, help="threads of torch in the tests")
    parser.addoption("--seed-shift", type=int, default=0, help="other seeds everywhere, for the tests marked `trained`")


def pytest_configure(config):
    # With more threads small operations wait for each other whenever the machine is busy.
    torch.set_num_threads(config.getoption("--threads"))
    _keep_files_in_memory()
    host.WARNED = "error"  # a warning inside the package is a defect here
    os.fsync = os.fstat  # nobody pulls the plug here, and a flush takes 4 ms; processes of their own do flush
    keep_freed_memory()  # short runs of ever other sizes gave a fifth of all seconds away for its pages
    if shift := config.getoption("--seed-shift"):
        _shift_seeds(shift)


def pytest_collection_finish():
    """What was collected stays until the end: let the garbage collector not walk through it again and again."""
    gc.collect()
    gc.freeze()


def _keep_files_in_memory():
    """Put temporary files where nothing waits for a disk: to delete 500 took 2 seconds on one, and 0.05 here."""
    shared = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(shared, os.W_OK | os.X_OK):
        return
    about = os.statvfs(shared)
    if about.f_bavail * about.f_frsize >= _FILES_MOST and not about.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"], tempfile.tempdir = str(shared), None


def _shift_seeds(shift):
    """Let every seed, said in a test or in the package, and every noise key become another one."""
    generator, model_seed, default_rng = torch.Generator, torch.manual_seed, np.random.default_rng
    bits = shift << 20  # above the small numbers that tests count seeds with: no two of them meet

    class Shifted(generator):
        def manual_seed(self, seed):
            return super().manual_seed(seed ^ bits)

    torch.Generator = Shifted
    torch.manual_seed = lambda seed: model_seed(seed ^ bits)
    np.random.default_rng = lambda seed=None: default_rng(seed ^ bits if isinstance(seed, int) else seed)
    fixed = Noise.fixed
    Noise.fixed = staticmethod(lambda seed: fixed(seed ^ bits))
    global _shift
    _shift = f"shift {shift} "


_shift = ""


@pytest.fixture(autouse=True)
def _model_seed():
    """Weights that a test does not seed are the same in every run; noise has its own source and is untouched."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def any_drawing():
    """Lets a config state any numbers of drawing, as only releases of earlier versions do: small ones, for a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.models.config.earlier_drawing", lambda table, _: Drawing.model_validate(table))
        yield


# The operating system's bits are replaced, so that no test fails by chance: each fixture and each test that draws a key
# gets keys of its own name, the same in every run. The marker `os_noise` leaves a test with the real ones.
_OS_BYTES = secrets.token_bytes


def _keys_of(name: str):
    numbers = itertools.count()
    return lambda size=32: hashlib.shake_256(f"{_shift}{name} {next(numbers)}".encode()).digest(size)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """Return the folder of a finished run of small_runs.py, trained once by keys of its own name; not to be changed."""

    @functools.cache
    def finished(name):
        before = secrets.token_bytes
        secrets.token_bytes = _keys_of(f"small run {name}")
        try:
            return trainer.start(config_of(name), tmp_path_factory.mktemp("small") / "run").run.path
        finally:
            secrets.token_bytes = before

    return finished


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """A fixture's noise hangs on its own name, and on the test's where it is made anew for each."""
    before = secrets.token_bytes
    if before is not _OS_BYTES or fixturedef.scope != "function":
        test = request.node.nodeid if fixturedef.scope == "function" else fixturedef.baseid
        secrets.token_bytes = _keys_of(f"{fixturedef.argname} {getattr(request, 'param_index', 0)} {test}")
    yield
    secrets.token_bytes = before


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """A test's noise hangs on its name."""
    if item.get_closest_marker("os_noise") is None:
        secrets.token_bytes = _keys_of(item.nodeid)
    yield
    secrets.token_bytes = _OS_BYTES
