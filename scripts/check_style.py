"""The size gate: short files, short functions, few imports, and a docstring on every module.

Limits, for the Python files under src/, scripts/ and tests/ together:
    files      median <= 130 lines; a warning above 300; below 500 each, and models/ and kernels/ may reach 500
    functions  90th percentile <= 35 lines, 80 each (kernels/ exempt), from `def` to the last line, docstring included
    imports    <= 20 statements a file
Formatting, types and layers are other tools' work.
"""

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TREES = ("src", "scripts", "tests")
FILE_MEDIAN, FILE_SOFT, FILE_HARD = 130, 300, 500
FUNCTION_P90, FUNCTION_HARD = 35, 80
IMPORTS_HARD = 20
MAY_REACH_FILE_HARD = frozenset({"models", "kernels"})


@dataclass(frozen=True, slots=True)
class Module:
    """The sizes of one file. functions: (name, lines) of each `def`, nested ones too."""

    path: Path
    lines: int
    imports: int
    documented: bool
    functions: tuple[tuple[str, int], ...]

    @property
    def folders(self) -> frozenset[str]:
        return frozenset(self.path.parts[:-1])


def measure(path: Path, root: Path) -> Module:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, filename=str(path))
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Module(
        path=path.relative_to(root),
        lines=len(source.splitlines()),
        imports=sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes),
        documented=not tree.body or ast.get_docstring(tree) is not None,
        functions=tuple((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions),
    )


def module_failures(module: Module) -> Iterator[str]:
    """The limits that one file breaks by itself."""
    limit = FILE_HARD if module.folders & MAY_REACH_FILE_HARD else FILE_HARD - 1
    if module.lines > limit:
        yield f"{module.path}: {module.lines} lines, at most {limit}"
    if module.imports > IMPORTS_HARD:
        yield f"{module.path}: {module.imports} imports, at most {IMPORTS_HARD}"
    if not module.documented:
        yield f"{module.path}: no module docstring"
    if "kernels" not in module.folders:
        yield from (f"{module.path}: {name} has {n} lines, at most {FUNCTION_HARD}" for name, n in module.functions if n > FUNCTION_HARD)


def tree_failures(modules: list[Module]) -> Iterator[str]:
    """The limits that the tree breaks as a whole."""
    median = statistics.median(module.lines for module in modules)
    if median > FILE_MEDIAN:
        yield f"median file has {median:g} lines, at most {FILE_MEDIAN}"
    sizes = sorted(lines for module in modules if "kernels" not in module.folders for _, lines in module.functions)
    p90 = sizes[int(0.9 * (len(sizes) - 1))] if sizes else 0
    if p90 > FUNCTION_P90:
        yield f"90th percentile of functions is {p90} lines, at most {FUNCTION_P90}"


def main(root: Path) -> int:
    """Print warnings and failures of the tree at `root`. Returns 1 if there is a failure or nothing to measure, else 0."""
    modules = [measure(path, root) for tree in TREES for path in sorted((root / tree).rglob("*.py"))]
    if not modules:
        print(f"no Python files under {root}")
        return 1
    for module in modules:
        if module.lines > FILE_SOFT:
            print(f"warning: {module.path}: {module.lines} lines, aim for {FILE_SOFT}")
    failures = [*tree_failures(modules), *(line for module in modules for line in module_failures(module))]
    print("\n".join(failures) or f"style: {len(modules)} files within limits")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
