import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.load import people_indices, people_sizes, split_indices, split_sizes
from idpgan.errors import ConfigError, DataError


def config(**keys):
    return DataConfig(confirm_public=True, **keys)


@given(
    num=st.integers(30, 3000),
    num_test=st.none() | st.integers(1, 50),
    public=st.floats(0.1, 0.4) | st.just(0.0),
    holdout=st.floats(0.1, 0.4) | st.just(0.0),
)
def test_split_is_deterministic_disjoint_complete_and_of_the_declared_sizes(num, num_test, public, holdout):
    sizes = split_sizes(num, num_test, config(public_share=public, holdout_share=holdout))
    parts = split_indices(num, sizes)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(num))  # each position once
    assert all(torch.equal(part, again) for part, again in zip(parts, split_indices(num, sizes), strict=True))
    assert [len(part) for part in parts[:3]] == list(sizes[:3])
    assert len(parts.test) == (sizes.test if num_test is None else 0)
    rest = num - len(parts.test)
    assert abs(sizes.public - public * rest) < 1
    assert abs(sizes.holdout - holdout * rest) < 1


@given(st.integers(1, 500), st.floats(0, 0.99), st.floats(0, 0.99))
def test_no_part_that_was_asked_for_is_empty(num, public, holdout):
    assume(public + holdout < 1)
    try:
        sizes = split_sizes(num, None, config(public_share=public, holdout_share=holdout))
    except DataError:
        return
    assert sizes.private > 0
    assert sizes.test > 0
    assert (sizes.public > 0) == (public > 0)
    assert (sizes.holdout > 0) == (holdout > 0)


def test_the_permutation_never_changes():
    """Members of a trained run must stay members, whatever the version of NumPy."""
    sizes = split_sizes(20, None, config(public_share=0.2, holdout_share=0.2))
    parts = split_indices(20, sizes)
    assert [part.tolist() for part in parts] == [
        [7, 6, 12],
        [15, 17, 0, 16, 13, 9, 8, 2, 10, 4],
        [1, 14, 11],
        [5, 19, 3, 18],
    ]


@given(
    people=st.lists(st.integers(1, 9), min_size=15, max_size=60),
    public=st.sampled_from([0.0, 0.2]),
    num_test=st.none() | st.just(7),
)
def test_people_are_dealt_out_whole(people, public, num_test):
    settings = config(public_share=public, split_by="identity")
    numbers = torch.arange(len(people)).repeat_interleave(torch.tensor(people))
    identities = numbers[torch.randperm(len(numbers), generator=torch.Generator().manual_seed(1))] * 3 + 5
    parts = people_indices(identities, num_test, settings)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(identities)))  # each position once
    owners = [set(identities[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(people)  # nobody twice
    sizes, shares = people_sizes(people, num_test, settings), split_sizes(len(people), num_test, settings, "people")
    assert [len(part) for part in parts[:3]] == list(sizes[:3])  # as announced without reading an image
    assert sizes.test == (num_test or len(parts.test))
    assert [len(part) for part in owners[:3]] == list(shares[:3])


def test_people_depend_on_their_number_alone():
    """One image a person is the split of so many images; other counts deal out the same people."""
    settings = config(holdout_share=0.2, split_by="identity")
    one = people_indices(torch.arange(20), None, settings)
    assert [part.tolist() for part in one] == [
        part.tolist() for part in split_indices(20, people_sizes([1] * 20, None, settings))
    ]
    several = people_indices(torch.arange(20).repeat_interleave(3), None, settings)
    for part, single in zip(several, one, strict=True):
        assert sorted(set((part // 3).tolist())) == sorted(single.tolist())
    assert several.private.tolist() != sorted(several.private.tolist())  # images are mixed within a part


def test_too_few_people_are_refused_with_the_number():
    with pytest.raises(DataError, match=r"4 people of 'digits' are too few"):
        people_indices(torch.arange(4).repeat_interleave(50), None, config(split_by="identity"))


def test_whole_products_are_not_rounded_down():
    assert split_sizes(100, 10, config(public_share=0.29)).public == 29  # 0.29 * 100 is 28.999... in floats
    assert split_sizes(60_000, 10_000, config(public_share=0.02)) == (1200, 52_800, 6000, 10_000)
    assert split_sizes(1797, None, config()) == (0, 1295, 143, 359)


@pytest.mark.parametrize(
    ("num", "num_test", "keys"),
    [
        (0, None, {}),
        (4, None, {"holdout_share": 0.0}),  # 20 % of 4 are not one test image
        (10, None, {}),  # 10 % of 8 are not one holdout image
        (50, 10, {"public_share": 0.01}),
        (0, 10, {"holdout_share": 0.0}),
        (50, 0, {}),
    ],
)
def test_too_few_images_are_refused_with_the_numbers(num, num_test, keys):
    with pytest.raises(DataError, match=f"{num} images of 'digits' are too few"):
        split_sizes(num, num_test, config(**keys))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"public_share": 0.02}, "no protection at all"),
        ({"public_share": 0.02, "confirm_public": True, "public_root": "x"}, "exclude each other"),
        ({"public_share": 0.5, "confirm_public": True, "holdout_share": 0.5}, "must be below 1"),
        ({"public_share": -0.1}, "public_share = -0.1"),
        ({"holdout_share": 1.0}, "holdout_share = 1.0"),
        ({"image_size": 0}, "image_size = 0"),
        ({"channels": 2}, "channels = 2"),
    ],
)
def test_config_refuses(table, message):
    with pytest.raises(ConfigError, match=message):
        build(DataConfig, table, "[data]")


def test_data_root(monkeypatch):
    monkeypatch.delenv("IDPGAN_DATA", raising=False)
    assert str(DataConfig().data_root) == "data"
    monkeypatch.setenv("IDPGAN_DATA", "/somewhere")
    assert str(DataConfig().data_root) == "/somewhere"
    assert str(DataConfig(root="/here").data_root) == "/here"
