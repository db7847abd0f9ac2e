"""Whatever can be run or published is audited by the entry that it brings, or says in a true sentence why not."""

import ast
import itertools
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import idpgan
from idpgan import classify, publish, synthesis
from idpgan.audit import neighbors, statistics
from idpgan.audit.cases import CASES, AuditCase, guarantees
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import likelihood_ratio
from idpgan.commands.audit import audit_entry, method_case, nothing_to_audit, run_case
from idpgan.config import dump_toml
from idpgan.data.load import known_shape
from idpgan.errors import InputError
from idpgan.methods import METHODS, MethodInfo, methods_of
from idpgan.privacy import Event, Laplace, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.run import RunFolder
from idpgan.training.config import settings
from idpgan.training.plan import RunPlan, plan_run
from tests.small_runs import config_of

TRAINED = dict(methods_of("generator", "classifier"))
ROWS = {**TRAINED, **publish.METHODS}
FOLDERS = "|".join(re.split("[.:]", row.code)[1] for row in TRAINED.values())
ROOMS = re.compile(rf"idpgan\.(?:synthesis|classify)\.({FOLDERS})\b")
NAMES = set(TRAINED) - {"gaussian", "diffusion"}  # these are generators too
LIKELY = re.compile("|".join(["synthesis", "classify", *NAMES]))  # a file without these words is not parsed
ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.nothing_to_audit is None])
def test_a_method_brings_an_entry_that_fits_its_row(name):
    entry, row = audit_entry(name), ROWS[name]
    assert {str(unit) for unit in entry.units} == set(row.units)
    assert all(str(relation) in row.relation for relation in entry.relations)
    case = method_case(name, Request(2.0))
    assert case.method == name
    assert str(case.proven.unit) == row.units[0]
    assert case.proven.finite == (row.proven != "inf")
    assert (entry.of_run is not None) == (name in TRAINED)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.nothing_to_audit])
def test_a_method_without_an_entry_says_why_and_it_is_true(name):
    sentence = nothing_to_audit(name)
    assert sentence.endswith("so there is no guarantee to audit.")
    for asked in (lambda: audit_entry(name), lambda: method_case(name, Request(2.0))):
        with pytest.raises(InputError, match=sentence):
            asked()
    config = config_of(name)
    shape = known_shape(config.data)
    plan = plan_run(config, shape)
    events = plan.events
    assert math.isinf(compose_epsilon(events, 1e-5))
    assert plan.report_of(events, plan.total_of(events), ()).claimed is None
    assert any(event.reason and event.reason in sentence for event in events)


def test_mechanisms_have_entries_and_there_is_one_sentence_for_a_wrong_name():
    assert all(audit_entry(name) is CASES[name] for name in CASES if name not in ROWS)
    assert nothing_to_audit("laplace") is None
    with pytest.raises(InputError, match="Did you mean 'evolution'"):
        audit_entry("evolutio")
    with pytest.raises(InputError, match=r"Known: .*, gaussian, gaussian-noise, gp-gan, idp-gan-aggregate,"):
        audit_entry("nonsense")


@pytest.mark.parametrize("name", [name for name, row in TRAINED.items() if row.nothing_to_audit is None])
def test_a_release_may_say_what_the_audit_of_a_run_says(name):
    """`verify` takes no other words for neighbors and statistics than those that are listed."""
    entry = audit_entry(name)
    for field, unit, relation in itertools.product(
        [{}] if not entry.options else [{key: value} for key in entry.options for value in entry.options[key]],
        entry.units,
        entry.relations,
    ):
        case = method_case(name, Request(2.0, unit=unit, relation=relation, **field))
        names = {make(case.pair.data, case.pair.neighbor).name for make in case.statistics}
        assert case.pair.name in neighbors.OF_RUNS
        assert names <= set(statistics.OF_RUNS)


def test_a_name_means_one_thing():
    """`idpgan audit NAME` would never reach a mechanism or a publisher behind a method of the same name."""
    assert set(TRAINED).isdisjoint({*publish.METHODS, *CASES})
    assert set(synthesis.METHODS).isdisjoint(classify.METHODS)


def naming(source):
    """The strings and imports of a source text that name a method, or look into its folder."""
    found = []
    for node in ast.walk(ast.parse(source)) if LIKELY.search(source) else ():
        if isinstance(node, ast.Constant) and node.value in NAMES:
            found.append(node.value)
        if isinstance(node, ast.ImportFrom) and ROOMS.match(node.module or ""):
            found.append(node.module)
    return found


def test_nothing_outside_of_a_method_switches_on_its_name_or_class():
    package = Path(idpgan.__file__).parent
    outside = [
        path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("synthesis", "classify")
    ]
    assert len(outside) > 50
    found = {path.relative_to(package).as_posix() for path in outside if naming(path.read_text())}
    assert found == {"methods.py"}  # their table
    assert naming("if name == 'dp-gan': ...") == ["dp-gan"]
    assert naming("if name == 'dp-sgd': ...") == ["dp-sgd"]
    assert naming("def f():\n    from idpgan.synthesis.dp_gan import DpGan") == ["idpgan.synthesis.dp_gan"]


# A method that is nowhere but here ------------------------------------------------------------------------------------


ToyConfig = settings("toy")


class ToyPlan(RunPlan):
    """The plan of toy."""

    events = (Event("laplace", *ADJACENCY, noise_multiplier=1.0),)


def toy_case(epsilon, claimed=None, less=1.0):
    """One number with Laplace noise; `less` of it than what is charged."""
    mechanism = Laplace(1.0, 1 / epsilon, *ADJACENCY)
    zero = torch.zeros(1, dtype=torch.float64)
    asked, proven = guarantees(Request(epsilon, 0.0), mechanism.event)
    return AuditCase(
        "toy", Pair(neighbors.BLACK, zero, zero + 1), claimed or asked, proven,
        lambda values, noise: values + less * (mechanism(values, noise) - values), (likelihood_ratio(mechanism),),
        events=(mechanism.event,),
    )  # fmt: skip


def toy(**more):
    module = ModuleType("toy")
    module.INFO = MethodInfo(
        "toy",
        "generator",
        "synthesis.toy:Toy",
        ("image",),
        "replace-one",
        True,
        "privacy.epsilon",
        "privacy.epsilon",
        "one noisy number",
    )
    module.Toy = type("Toy", (), {"Settings": ToyConfig, "Plan": ToyPlan})
    module.AUDIT = Entry(lambda request: toy_case(request.epsilon), (Unit.IMAGE,), (Relation.REPLACE_ONE,), **more)
    return module


@pytest.fixture
def registered(monkeypatch):
    def register(module):
        monkeypatch.setitem(sys.modules, "idpgan.synthesis.toy", module)
        monkeypatch.setitem(METHODS, module.INFO.name, module.INFO)

    return register


def test_a_new_method_is_audited_by_its_registry_row_alone(registered, tmp_path):
    seen = []

    def of_run(config, facts):
        seen.append((config, facts))
        return toy_case(1.0, facts.claimed)

    registered(toy(of_run=of_run))
    by_name = method_case("toy", Request(1.0)).run(20_000, seed=1)
    assert 0.8 < by_name.result.epsilon_lower <= by_name.case.proven.epsilon == 1.0
    config = ToyConfig.model_validate(config_of("wgan-gp").model_dump(exclude={"method"}))
    run = RunFolder.create(tmp_path / "run", dump_toml(config))
    of_its_run = run_case(run.path).run(20_000, seed=1)
    assert of_its_run.result.epsilon_lower == by_name.result.epsilon_lower
    (read, facts), shape = seen[0], known_shape(config.data)
    assert isinstance(read, ToyConfig)
    assert (facts.image_shape, facts.num_private, facts.claimed) == (shape.image_shape, shape.num_private, None)
    assert facts.delta == plan_run(config, shape).delta
    with pytest.raises(InputError, match="has released nothing yet"):
        facts.prepared_shape("sums")
    with pytest.raises(InputError, match="no unit person"):
        method_case("toy", Request(1.0, unit=Unit.PERSON))


def test_half_the_noise_in_a_new_method_is_a_violation(registered):
    module = toy()
    module.AUDIT = Entry(lambda request: toy_case(request.epsilon, less=0.5), (Unit.IMAGE,), (Relation.REPLACE_ONE,))
    registered(module)
    assert method_case("toy", Request(1.0)).run(20_000, seed=1).violation


def test_a_run_whose_method_knows_no_runs_is_refused_in_one_line(registered, tmp_path):
    registered(toy())
    config = ToyConfig.model_validate(config_of("wgan-gp").model_dump(exclude={"method"}))
    run = RunFolder.create(tmp_path / "run", dump_toml(config))
    with pytest.raises(InputError, match="runs of 'toy' cannot be audited"):
        run_case(run.path)


def test_a_method_that_is_registered_with_a_guarantee_must_bring_an_entry(registered):
    module = toy()
    del module.AUDIT
    registered(module)
    with pytest.raises(AttributeError, match="AUDIT"):
        audit_entry("toy")
