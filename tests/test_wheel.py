"""The package as pip installs it: what it depends on, what a wheel holds, and a run in an empty environment."""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from idpgan.config import config_names

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {  # by other names
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}


def imported(folder):
    """All modules that a folder's files import, with every parent."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                parts = name.split(".")
                found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return found


def test_everything_that_is_imported_is_declared_and_nothing_else():
    extras = (PROJECT["optional-dependencies"][name] for name in ("dicom", "faces"))
    others = ("datasets", "diffusers", "fairlearn", "transformers")  # of idpgan[datasets], [diffusers], [fairness]
    needed = (*PROJECT["dependencies"], *itertools.chain(*extras), *others, "triton")  # which torch for CUDA brings
    declared = {re.match(r"[\w-]+", text)[0] for text in needed}
    modules = {MODULES.get(name, name.replace("-", "_")): name for name in declared}
    used = imported(ROOT / "idpgan")
    assert sorted(set(modules) - used) == [], "declared, but imported by nothing"
    outside = {name for name in used if "." not in name} - set(sys.stdlib_module_names) - {"idpgan", "pydantic_core"}
    assert sorted(outside - set(modules)) == [], "imported, but not declared"


def test_the_license_is_named_and_lies_there():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "license: Apache-2.0" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def clone(folder):
    """Copy what is built into a new folder, so that the checkout stays clean."""
    assert pytest.importorskip("setuptools", minversion="77")
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "idpgan", folder / "idpgan", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel; nothing is downloaded."""
    source, out = clone(tmp_path_factory.mktemp("source") / "idpgan"), tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(out)]
    subprocess.run(build, check=True)
    (path,) = out.glob("idpgan-*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment with the wheel; its dependencies are those of the running one, which come behind."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    behind = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "behind.pth").write_text("\n".join(behind) + "\n")
    return folder


def said(environment, command, cwd):
    """Run a command of the environment, without a trace of the checkout."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    parts = [str(environment / "bin" / command[0]), *command[1:]]
    done = subprocess.run(parts, cwd=cwd, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.wheel
def test_a_wheel_has_all_that_the_package_reads(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = [path for path in (ROOT / "idpgan").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert {path.relative_to(ROOT).as_posix() for path in data} <= names
    assert "idpgan/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if name.startswith(("tests/", "benchmarks/", "configs/"))] == []


@pytest.mark.wheel
def test_an_installed_package_trains_and_has_every_config(environment, tmp_path):
    where = said(environment, ["python", "-c", "import idpgan; print(idpgan.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(environment)  # and not the checkout
    names = said(environment, ["python", "-c", "from idpgan.config import config_names as c; print(*c())"], tmp_path)
    assert names.split() == config_names() == sorted(path.stem for path in (ROOT / "configs").glob("*.toml"))
    said(environment, ["idpgan", "train", "--out", "run", "training.steps=10", "training.tick_steps=5"], tmp_path)
    assert "consistent" in said(environment, ["idpgan", "verify", "run"], tmp_path)
    said(environment, ["idpgan", "train", "digits-gaussian", "--out", "second"], tmp_path)
    said(environment, ["idpgan", "sample", "second", "--num", "20", "--out", "images"], tmp_path)
    assert len(list((tmp_path / "images").glob("*/*.png"))) == 20
    assert "mnist" in said(environment, ["idpgan", "init", "mnist-dp-gan"], tmp_path)


@pytest.mark.wheel
def test_an_editable_install_is_found_from_the_folder_beside_the_clone(tmp_path):
    """There a clone of this name is an empty namespace, which only a package on the path itself precedes."""
    source, built = clone(tmp_path / "idpgan"), tmp_path / "built"
    code = f"from setuptools.build_meta import build_editable; build_editable({str(built)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    venv.create(tmp_path / "env", with_pip=False)
    (packages,) = tmp_path.glob("env/lib/python*/site-packages")
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(packages)
    where = said(tmp_path / "env", ["python", "-c", "import idpgan; print(idpgan.__file__)"], tmp_path).strip()
    assert Path(where) == source / "idpgan" / "__init__.py"
