"""How large and how tangled the package is: code lines, functions, and circles of imports.

    python tools/size.py [DIR] [--json]

Blank lines, comment lines and docstring lines are no code lines; templates in strings are. A
function is every def (methods and nested ones too) and every lambda that is assigned to a name. Its code lines are
those from its decorator to its end. Imports inside functions count as imports; so do those for type checkers, except
in an ``__init__.py``, where they only repeat what is loaded lazily.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LONG = 50  # functions with more code lines are listed
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Graph = Mapping[str, set[str]]


class Function(NamedTuple):
    """A function and its code lines."""

    name: str
    lines: int


class Source(NamedTuple):
    """A file: its name below the package, its code lines, its functions, and the modules that it imports."""

    name: str
    lines: int
    functions: list[Function]
    lambdas: int
    imports: set[str]

    @property
    def room(self) -> str:
        """The first part of the name: a folder at the top, or a file there."""
        return self.name.split("/")[0]


def read(package: Path) -> list[Source]:
    """Return every Python file of a package."""
    return [read_file(path, package) for path in sorted(package.rglob("*.py"))]


def read_file(path: Path, package: Path) -> Source:
    """Return the counts of one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    hidden = docstring_lines(tree)
    code = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in hidden
    }
    functions = [
        Function(node.name, len(code.intersection(range(first_line(node), last_line(node) + 1))))
        for node in statements(tree)
        if isinstance(node, DEFINITIONS)
    ]
    lambdas = sum(
        isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda) for node in statements(tree)
    )
    imports = set(imported(tree, package.name, type_checking=path.name != "__init__.py"))
    return Source(path.relative_to(package).as_posix(), len(code), functions, lambdas, imports)


def children(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what lies directly in a statement and is no expression: statements lie in nothing else."""
    return (node for node in ast.iter_child_nodes(tree) if not isinstance(node, ast.expr))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a file."""
    for node in children(tree):
        yield node
        yield from statements(node)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of all lines that docstrings take."""
    lines: set[int] = set()
    for node in (tree, *statements(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | DEFINITIONS[0] | DEFINITIONS[1]):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, last_line(first) + 1))
    return lines


def first_line(node: Any) -> int:
    """Return the first line of a function, with its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def last_line(node: Any) -> int:
    """Return the last line of a node that was read from a file."""
    return int(node.end_lineno)


def imported(tree: ast.AST, package: str, type_checking: bool) -> Iterator[str]:
    """Yield the package's modules that a file imports; an imported name may or may not be a module."""
    for node in children(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not type_checking:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] == package)
        yield from imported(node, package, type_checking)


# Circles ----------------------------------------------------------------------------------------------------------


def file_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Return which file imports which: the longest part of an imported name that is a file, or a folder's own file."""
    known = {source.name for source in sources}

    def file_of(module: str) -> str | None:
        parts = module.split(".")[1:]
        for length in range(len(parts), -1, -1):
            stem = "/".join(parts[:length])
            for name in (f"{stem}.py", f"{stem}/__init__.py".lstrip("/")):
                if name in known:
                    return name
        return None

    graph = {}
    for source in sources:
        found = {name for name in map(file_of, source.imports) if name is not None}
        graph[source.name] = found - {source.name}
    return graph


def folder_graphs(files: Graph) -> Iterator[dict[str, set[str]]]:
    """Yield for every folder which of its folders and files imports which other of them."""
    folders = {""} | {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)}
    for folder in sorted(folders):
        graph: dict[str, set[str]] = {}
        for name, others in files.items():
            one = child(folder, name)
            if one is not None:
                graph.setdefault(one, set()).update(
                    two for two in (child(folder, other) for other in others) if two is not None and two != one
                )
        yield graph


def child(folder: str, name: str) -> str | None:
    """Return the direct child of a folder in which a file lies, with a slash where it is a folder itself."""
    start = f"{folder}/" if folder else ""
    if not name.startswith(start):
        return None
    first, slash, _ = name[len(start) :].partition("/")
    return f"{start}{first}{slash}"


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of at least two nodes."""
    reach = {node: reachable(graph, node) for node in graph}
    found = {frozenset(other for other in reach[node] if node in reach[other]) for node in graph}
    return sorted(sorted(group) for group in found if len(group) > 1)


def reachable(graph: Graph, start: str) -> set[str]:
    """Return every node that can be reached from one, by at least one step."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def file_circles(package: Path) -> list[list[str]]:
    """Return the circles of files."""
    return circles(file_graph(read(package)))


def folder_circles(package: Path) -> list[list[str]]:
    """Return the circles of neighboring folders and files in which there is at least one folder."""
    found = [circle for graph in folder_graphs(file_graph(read(package))) for circle in circles(graph)]
    return [circle for circle in found if any(name.endswith("/") for name in circle)]


# What is said -----------------------------------------------------------------------------------------------------


def measure(package: Path) -> dict[str, Any]:
    """Return all figures of a package."""
    sources = read(package)
    lines = sum(source.lines for source in sources)
    functions = sum(len(source.functions) + source.lambdas for source in sources)
    rooms: dict[str, Counter[str]] = {}
    for source in sources:
        count = len(source.functions) + source.lambdas
        rooms.setdefault(source.room, Counter()).update(lines=source.lines, files=1, functions=count)
    lengths = sorted(function.lines for source in sources for function in source.functions)
    return {
        "code_lines": lines,
        "files": len(sources),
        "functions": functions,
        "assigned_lambdas": sum(source.lambdas for source in sources),
        "functions_per_1000_code_lines": round(1000 * functions / max(lines, 1), 1),
        "median_function_code_lines": lengths[len(lengths) // 2] if lengths else 0,
        "long_functions": sorted(
            ([function.lines, f"{source.name}:{function.name}"] for source in sources for function in source.functions
             if function.lines > LONG),
            reverse=True,
        ),
        "longest_files": sorted(([source.lines, source.name] for source in sources), reverse=True)[:10],
        "file_circles": file_circles(package),
        "folder_circles": folder_circles(package),
        "rooms": {name: dict(rooms[name]) for name in sorted(rooms, key=lambda name: -rooms[name]["lines"])},
    }  # fmt: skip


def show(found: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    rows = [
        f"{found['code_lines']:,} code lines in {found['files']} files",
        f"{found['functions']:,} functions ({found['assigned_lambdas']} of them assigned lambdas): "
        f"{found['functions_per_1000_code_lines']:.1f} per 1,000 code lines, "
        f"median {found['median_function_code_lines']} code lines",
        f"\n{len(found['long_functions'])} functions above {LONG} code lines",
        *(f"{lines:6d}  {name}" for lines, name in found["long_functions"]),
        "\nLongest files",
        *(f"{lines:6d}  {name}" for lines, name in found["longest_files"]),
    ]
    for kind in ("file", "folder"):
        rows.append(f"\n{len(found[f'{kind}_circles'])} circles of {kind}s")
        rows += [f"        {', '.join(circle)}" for circle in found[f"{kind}_circles"]]
    rows.append("\n lines  files  functions  per 1,000  room")
    for name, room in found["rooms"].items():
        share = 1000 * room["functions"] / max(room["lines"], 1)
        rows.append(f"{room['lines']:6d} {room['files']:6d} {room['functions']:10d} {share:10.0f}  {name}")
    return "\n".join(rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path(__file__).parents[1] / "idpgan"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="the package; default: idpgan/")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    if not any(given.folder.rglob("*.py")):
        sys.exit(f"size: {given.folder} holds no Python file.")
    found = measure(given.folder.resolve())
    print(json.dumps(found, indent=2) if given.json else show(found))


if __name__ == "__main__":
    main()
