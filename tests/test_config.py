import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idpgan.config import (
    Section,
    apply_overrides,
    build,
    config_names,
    digest,
    dump_toml,
    load_table,
    nearest_hint,
    packaged,
)
from idpgan.errors import ConfigError, DataError, InputError
from idpgan.privacy.guarantee import Unit
from idpgan.trainer import load_config
from idpgan.training.config import build_config


class Inner(Section):
    width: int = 8
    names: tuple[str, ...] = ()


class Example(Section):
    steps: int = pydantic.Field(default=5, ge=1)
    share: float = pydantic.Field(default=0.5, ge=0, lt=1)
    kind: Literal["a", "b"] = "a"
    note: str | None = None
    root: Path | None = None
    epsilon: Annotated[float, pydantic.Field(allow_inf_nan=True, gt=0)] = 1.0
    table: dict[str, float] = pydantic.Field(default_factory=dict)
    inner: Inner = Inner()

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Example":
        if self.steps == 13:
            raise ConfigError("steps = 13 brings bad luck. Take 14.")
        return self


def test_build_fills_defaults_and_the_result_is_frozen():
    example = build(Example, {"steps": 7, "inner": {"width": 3}}, "[example]")
    assert (example.steps, example.share, example.inner.width) == (7, 0.5, 3)
    with pytest.raises(pydantic.ValidationError):
        example.steps = 8


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"stepz": 3}, ["Unknown key 'stepz' in [example]", "Did you mean 'steps'?"]),
        ({"zzz": 3}, ["Unknown key 'zzz'", "Known: epsilon, inner, kind"]),
        ({"inner": {"widht": 3}}, ["Unknown key 'inner.widht'", "Did you mean 'width'?"]),
        ({"inner": 4}, ["inner must be a section", "got 4"]),
        ({"steps": 0}, ["steps = 0 in [example]", "greater than or equal to 1"]),
        ({"steps": 2.5}, ["steps = 2.5", "integer"]),
        ({"share": 1.0}, ["share = 1.0", "less than 1"]),
        ({"share": math.nan}, ["share = nan", "finite"]),
        ({"epsilon": math.nan}, ["epsilon = nan", "greater than 0"]),
        ({"kind": "c"}, ["kind = 'c'", "'a' or 'b'"]),
        ({"note": "x" * 1000, "kind": "y" * 1000}, ["kind = 'yyy", "..."]),
        ({"steps": 13}, ["In [example]: steps = 13 brings bad luck."]),
        ({"steps": 0, "kind": "c"}, ["steps = 0", "kind = 'c'"]),
        (5, ["[example] must be a section"]),
    ],
)
def test_build_names_key_value_and_limit_in_one_line(table, parts):
    with pytest.raises(ConfigError) as caught:
        build(Example, table, "[example]")
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert "pydantic" not in message
    assert len(message) < 300


def test_a_missing_key_is_named():
    class Needs(Section):
        delta: float

    with pytest.raises(ConfigError, match=r"Missing key 'delta' in \[privacy\]"):
        build(Needs, {}, "[privacy]")


def test_a_default_out_of_range_is_found_too():
    class Wrong(Section):
        steps: int = pydantic.Field(default=0, ge=1)

    with pytest.raises(ConfigError, match="steps = 0"):
        build(Wrong, {}, "[wrong]")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["training.steps=0"], "training.steps = 0 in the command line"),
        (["training.stepz=1"], "'training.stepz' in the command line. Did you mean 'steps'?"),
        (["trainin.steps=1"], "'trainin' in the command line. Did you mean 'training'?"),
        (["data.public_share=0.9"], "In [data] of run.toml with the command line: "),  # with the share of the file
        (["training.batch_size=5"], "model.width = -1 in run.toml"),
    ],
)
def test_what_the_command_line_said_is_not_blamed_on_the_file(tmp_path, monkeypatch, settings, said):
    monkeypatch.chdir(tmp_path)
    wrong = "width = -1" if "batch_size" in settings[0] else ""
    text = f'[method]\nname = "wgan-gp"\n[data]\nname = "digits"\nholdout_share = 0.5\n[model]\n{wrong}\n'
    Path("run.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(Path("run.toml"), settings)
    assert said in str(refused.value)


def test_error_classes():
    assert issubclass(ConfigError, InputError)
    assert issubclass(DataError, InputError)
    assert issubclass(InputError, ValueError)


def test_overrides_read_toml_values_and_bare_words():
    table = {"training": {"steps": 5}, "data": {"name": "digits"}}
    overrides = ["training.steps=100", "data.name=mnist", "data.root=/a b/c=d", "privacy.delta=1e-5"]
    overrides += ["a.list=[1, 2]", 'a.text="7"', "a.flag=true", "training.steps = 200", 'a.empty=""', "a.two=1\nb = 2"]
    assert apply_overrides(table, overrides) == {
        "training": {"steps": 200},
        "data": {"name": "mnist", "root": "/a b/c=d"},
        "privacy": {"delta": 1e-5},
        "a": {"list": [1, 2], "text": "7", "flag": True, "empty": "", "two": "1\nb = 2"},
    }
    assert table == {"training": {"steps": 5}, "data": {"name": "digits"}}  # the input is left as it was


@pytest.mark.parametrize(
    "override", ["steps", "=1", "a..b=1", "a b=1", "a=", "a= ", 'a="x', "a=[1", "a={x=1", "a.b.c=1"]
)
def test_overrides_that_cannot_be_meant_are_refused(override):
    with pytest.raises(ConfigError):
        apply_overrides({"a": {"b": 1}}, [override])


def test_load_table(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[privacy]\ndelta = 1e-5\n")
    assert load_table(path) == {"privacy": {"delta": 1e-5}}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_configs_that_other_programs_have_written(tmp_path, encoding):
    """PowerShell redirects as UTF-16, Notepad may begin UTF-8 with a mark."""
    (tmp_path / "c.toml").write_bytes('[data]\r\nroot = "zo\u00eb"\r\n'.encode(encoding))
    assert load_table(tmp_path / "c.toml") == {"data": {"root": "zo\u00eb"}}


@pytest.mark.parametrize("content", [b"a = ", b"a = 1\na = 2", b"\xff\xff", None])
def test_load_table_names_the_file_it_cannot_read(tmp_path, content):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_table(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        load_table(tmp_path)


texts = st.text(st.characters(codec="utf-8"), max_size=5)


@settings(max_examples=50)
@given(
    note=st.none() | texts,
    share=st.floats(0, 1, exclude_max=True),
    epsilon=st.floats(min_value=0, exclude_min=True),
    table=st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    names=st.lists(texts, max_size=3),
)
def test_toml_reads_back_to_an_equal_section(note, share, epsilon, table, names):
    inner = {"width": 2, "names": names}
    example = Example(note=note, share=share, epsilon=epsilon, table=table, inner=inner, root="/x/y")
    assert build(Example, tomllib.loads(dump_toml(example)), "[example]") == example
    assert build(Example, json.loads(json.dumps(example.to_json())), "[example]") == example
    both = tomllib.loads(dump_toml({"one": example, "two words": Inner()}))
    assert build(Example, both["one"], "[one]") == example
    assert build(Inner, both["two words"], "[two]") == Inner()


def test_toml_of_a_none_against_the_default_is_refused():
    class Target(Section):
        epsilon: float | None = 10.0

    with pytest.raises(ConfigError, match="None"):
        dump_toml(Target(epsilon=None))


def test_toml_is_fit_to_read():
    expected = '[model]\nwidth = 8\nnames = [\n    "a",\n]\n'
    assert dump_toml({"model": Inner(names=("a",))}) == expected
    nested = tomllib.loads(expected)["model"]
    assert dump_toml({"run": Example(inner=Inner(**nested))}).endswith(expected.replace("[model]", "\n[run.inner]"))


def test_tables_in_lists_read_back():
    class Row(Section):
        name: str
        sizes: tuple[int, ...] = ()

    class Rows(Section):
        rows: tuple[Row, ...] = ()

    for name in ("a", "long " * 40):  # in one line, and as tables of their own
        rows = Rows(rows=(Row(name=name, sizes=(1, 2)), Row(name="b")))
        assert build(Rows, tomllib.loads(dump_toml(rows)), "[rows]") == rows
        assert rows.to_json() == {"rows": [{"name": name, "sizes": [1, 2]}, {"name": "b"}]}
        assert build(Rows, rows.to_json(), "[rows]") == rows


def test_digest_depends_on_values_only():
    assert digest(Example(steps=6)) == digest(build(Example, {"inner": {"width": 8}, "steps": 6}, "[example]"))
    different = [
        Example(),
        Example(steps=6),
        Example(note=""),
        Example(epsilon=math.inf),
        Example(inner=Inner(width=9)),
    ]
    assert len({digest(section) for section in different}) == len(different)


def test_a_key_that_has_its_default_is_not_written():
    class Later(Example):
        inner: Inner = Inner(width=9)
        added: float | None = 0.5

    assert Example(steps=6, inner=Inner(width=3)).to_json() == {"steps": 6, "inner": {"width": 3}}
    assert Later(steps=6).to_json() == {"steps": 6}
    assert digest(Later(steps=6)) == digest(Example(steps=6))
    assert Later(added=None).to_json() == {"added": None}
    own = Later(inner=Inner())  # not the default of the key, though all of its keys have theirs
    assert own.to_json() == {"inner": {}}
    assert build(Later, own.to_json(), "[later]") == own


@pytest.mark.parametrize(
    "name", [name for name in config_names() if not load_table(Path(name)).get("model", {}).get("trained")]
)
def test_a_run_is_named_by_what_differs_from_the_defaults(name):
    config = build_config(load_table(Path(name)), name)
    table = config.to_json()
    again = build_config(json.loads(json.dumps(table)), name)
    assert again == config
    assert again.identity() == config.identity()
    assert (table["data"]["name"], table["method"]["name"]) == (config.data.name, config.method.name)
    moved = config.model_copy(update={"data": config.data.model_copy(update={"root": Path("/elsewhere")})})
    assert moved.identity() == config.identity()
    other = config.model_copy(update={"training": config.training.model_copy(update={"seed": 7})})
    assert other.identity() != config.identity()


def test_nearest_hint():
    assert nearest_hint("mnits", ["mnist", "digits"]) == "Did you mean 'mnist'?"
    assert nearest_hint("qqq", ["mnist", "digits"]) == "Known: digits, mnist."
    assert nearest_hint("qqq", []) == "Known: none."


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("steps", True, "must be an integer, like 100"),
        ("steps", "100", "without quotes"),
        ("steps", 5.0, "without a decimal point"),
        ("share", False, "must be a number, like 0.5"),
        ("share", "0.5", "without quotes"),
        ("flag", "yes", "must be true or false"),
        ("flag", 1, "must be true or false"),
        ("note", 3, "must be a text in quotes"),
        ("root", 3, "must be a text in quotes"),
        ("root", "a\0b", "name of no file"),
        ("root", "", "name of no file"),
        ("root", "a\udcff", "can be written as UTF-8"),
        ("note", "a\udcff", "can be written as UTF-8"),
        ("names", "abc", "must be a list, like [1, 2]"),
        ("names", [1], "must be a text in quotes"),
        ("names", [["a"]], "must be a text in quotes"),
        ("number", True, "none of 1, 3"),
        ("number", 1.0, "none of 1, 3"),
        ("unit", "imge", "none of image"),
        ("unit", 3, "none of image"),
        ("some", "column", "should be 'image' or 'person'"),
        ("kind", 1, "'a' or 'b'"),
    ],
)
def test_a_value_of_another_type_is_refused_and_never_corrected(key, value, wanted):
    with pytest.raises(ConfigError) as caught:
        build(Strict, {key: value}, "[strict]")
    message = str(caught.value)
    assert wanted in message
    assert key in message
    assert message.isprintable()


class Strict(Section):
    steps: int = 1
    share: float = 0.5
    flag: bool = False
    note: str | None = None
    root: Path | None = None
    names: tuple[str, ...] = ()
    number: Literal[1, 3] | None = None
    unit: Unit = Unit.IMAGE
    some: Literal[Unit.IMAGE, Unit.PERSON] = Unit.IMAGE
    kind: Literal["a", "b"] = "a"


def test_what_can_only_mean_one_thing_is_taken():
    table = {"share": 0, "root": "/x", "names": ["a"], "number": 3, "unit": "person", "some": "person"}
    strict = build(Strict, table, "[strict]")
    assert strict == Strict(share=0.0, root=Path("/x"), names=("a",), number=3, unit=Unit.PERSON, some=Unit.PERSON)
    assert isinstance(strict.share, float)
    assert build(Strict, tomllib.loads(dump_toml(strict)), "[strict]") == strict
    assert digest(build(Strict, json.loads(strict.model_dump_json()), "[strict]")) == digest(strict)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a = " + "[" * 100_000, "levels deep"),
        ("a = " + "[" * 20 + "]" * 20, "levels deep"),
        ("a.b.c.d.e.f.g.h.i.j = 1", "levels deep"),
        ("a = " + "9" * 5000, "4300"),
        ("a = 1\n" * 200_000, "characters"),
        ("a = '\x01'", "not valid TOML"),
    ],
)
def test_hostile_toml_is_one_line(tmp_path, text, word):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=word) as caught:
        load_table(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        apply_overrides({}, [text.replace(" = ", "=", 1)] if "\n" not in text else ["a=["])


def test_a_missing_key_says_what_to_choose():
    with pytest.raises(ConfigError, match=r"Missing key 'privacy.delta' in x: .* the smaller of 1e-5 and 1 / \(10 N\)"):
        build_config({"method": {"name": "dp-gan"}, "privacy": {"epsilon": 1.0, "sample_rate": 0.1}}, "x")


# The package's own configs -------------------------------------------------------------------------------------------


def test_the_package_brings_its_configs_along_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no checkout around
    assert {"default", "digits-gaussian", "mnist-dp-gan"} <= set(config_names())
    for name in config_names():
        table = load_table(Path(name))
        assert table == load_table(Path(f"{name}.toml")) == tomllib.loads(packaged(name))
        assert "root" not in table["data"]  # of somebody's machine
    assert load_table(None) == load_table(Path("default"))


def test_a_file_that_is_there_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mnist-dp-gan").write_text("[training]\nsteps = 3\n")
    assert load_table(Path("mnist-dp-gan")) == {"training": {"steps": 3}}
    for path in ("configs/mnist-dp-gan.toml", "./sub/mnist-dp-gan", "mnist-dpgan", str(tmp_path / "default")):
        with pytest.raises(ConfigError, match="Cannot read the config file"):
            load_table(Path(path))
    with pytest.raises(ConfigError, match="The package has one called mnist-dp-gan"):
        load_table(Path("mnist-dpgan"))
