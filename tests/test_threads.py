"""Calls in several threads at once: what they set of the process is put back, in whatever order they end."""

import dataclasses
import functools
import logging
import socket
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend

from idpgan import device, host
from idpgan.checks import typed
from idpgan.data import dicom
from idpgan.data.sources import mnist
from idpgan.models import initialize
from idpgan.privacy.precision import attention_by, full_precision, gpu_products
from idpgan.privacy.tiles import Tiles

TILES = Tiles.fixed(4, "vmap")


def test_two_threads_and_a_failure_leave_the_host_as_it_was():
    """The second call begins before the first ends, and ends after it: the default dtype belongs to both."""
    begun, ended = threading.Event(), threading.Event()
    seen = []

    @typed
    def long():
        begun.set()
        assert ended.wait(10)
        seen.append(torch.get_default_dtype())

    @typed
    def failing():
        worker.start()
        assert begun.wait(10)
        raise LookupError

    worker = threading.Thread(target=long)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(LookupError):
            failing()
        assert torch.is_grad_enabled()
        ended.set()
        worker.join()
        assert (seen, torch.get_default_dtype()) == ([torch.float32], torch.float64)
    finally:
        torch.set_default_dtype(before)


def test_blocks_of_two_threads_without_warnings_leave_the_filters_of_the_host():
    """The first block ends before the second, and the host sets a filter of its own between them."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        first, second = host.unwarned(), host.unwarned()
        with first:
            second.__enter__()
            warnings.warn("of a library", UserWarning, stacklevel=1)
            warnings.filterwarnings("error", message="of the host")
        warnings.warn("of a library", UserWarning, stacklevel=1)
        second.__exit__(None, None, None)
        assert warnings.filters[1:] == before
        with pytest.raises(UserWarning):
            warnings.warn("of the host", UserWarning, stacklevel=1)
        warnings.warn("after it", UserWarning, stacklevel=1)
    assert [str(each.message) for each in heard] == ["after it"]


def test_a_setting_that_is_shared_is_put_back_when_the_last_block_ends():
    made = []

    @contextmanager
    def setting():
        made.append("set")
        yield
        made.append("put back")

    shared = host.Shared(setting)
    with ExitStack() as outer:
        with shared:
            outer.enter_context(shared)
        assert made == ["set"]
    assert made == ["set", "put back"]


def in_a_thread(call):
    """Start a call in a thread of its own; returns what waits for its value."""
    with_value = []
    thread = threading.Thread(target=lambda: with_value.append(call()))
    thread.start()

    def value():
        thread.join(20)
        return with_value[0]

    return value


def threads_of_torch():
    return torch.get_num_threads(), in_a_thread(torch.get_num_threads)()


def products():
    backends = torch.backends
    return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision, backends.cudnn.deterministic


def kernels():
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


BLOCKS = {  # of two threads: what both set, and how it is read
    "threads of a step": (lambda: dataclasses.replace(TILES, threads=1).computing(),) * 2 + (threads_of_torch,),
    "threads of two steps": (
        lambda: dataclasses.replace(TILES, threads=1).computing(),
        lambda: dataclasses.replace(TILES, threads=3).computing(),
        threads_of_torch,
    ),
    "products": (full_precision, full_precision, products),
    "products of two kinds": (full_precision, lambda: gpu_products("tf32"), products),
    "kernels of attention": (lambda: attention_by(SDPBackend.MATH),) * 2 + (kernels,),
    "random numbers": (lambda: initialize.seeded_init(1), lambda: initialize.seeded_init(2), torch.get_rng_state),
    "patience": (lambda: mnist._PATIENT, lambda: mnist._PATIENT, socket.getdefaulttimeout),
    "the log of pydicom": (lambda: dicom._QUIET, lambda: dicom._QUIET, lambda: logging.getLogger("pydicom").level),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_two_threads_that_end_in_their_order_leave_the_host_as_it_was(name):
    """The second one begins while the first one lasts, and is born in it; it ends last."""
    one, other, read = BLOCKS[name]
    before, begun, ended = read(), threading.Event(), threading.Event()

    def second():
        with other():
            begun.set()
            ended.wait(20)

    with one():
        end = in_a_thread(second)
        begun.wait(0.3)  # where the blocks take turns, it waits for the first
    begun.wait(20)
    ended.set()
    end()
    after = read()
    assert torch.equal(after, before) if isinstance(after, torch.Tensor) else after == before


def test_products_are_exact_as_long_as_a_thread_needs_them_exact_and_else_as_the_innermost_block_says():
    before = products()
    with gpu_products("tf32"):
        assert products() == ("tf32", "tf32", True)
        with full_precision():
            assert products() == ("ieee", "ieee", True)
            with gpu_products("tf32"):
                assert products() == ("tf32", "tf32", True)
                exact, go = threading.Event(), threading.Event()

                def needs():
                    with full_precision():
                        exact.set()
                        go.wait(20)

                end = in_a_thread(needs)
                assert exact.wait(20)
                assert products() == ("ieee", "ieee", True)  # of the other thread
                go.set()
                end()
                assert products() == ("tf32", "tf32", True)
            assert products() == ("ieee", "ieee", True)
        assert products() == ("tf32", "tf32", True)
    assert products() == before


def test_two_threads_draw_each_from_its_own_seed():
    def weights(seed):
        drawn = []
        with initialize.seeded_init(seed):
            for _ in range(50):
                drawn.append(torch.rand(3))
                time.sleep(1e-4)
        return torch.stack(drawn)

    alone = [weights(seed) for seed in range(4)]
    together = [in_a_thread(functools.partial(weights, seed)) for seed in range(4)]
    assert all(torch.equal(value(), expected) for value, expected in zip(together, alone, strict=True))


def test_a_thread_computes_on_its_own_count_and_those_to_come_on_the_hosts():
    before = threads_of_torch()
    with device.computing_on(before[0] + 1):
        assert threads_of_torch() == (before[0] + 1, before[1])
        assert in_a_thread(lambda: [device.set_threads(5), torch.zeros(3) + 1, torch.get_num_threads()])()[2] == 5
        assert torch.get_num_threads() == before[0] + 1
    assert threads_of_torch() == before
