"""The shape of the code: which package may import which, how long a module may be, what each module must say."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import apood

PACKAGES = [
    "support", "tokens", "pooling", "fitting", "decisions", "detectors", "data", "encoders", "backbones", "explain",
    "pipeline", "evaluation", "report", "serving", "scale", "experiments", "cli",
]  # fmt: skip
PACKAGE = Path(apood.__file__).parent
TREES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
LINES = {module: len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) for module in TREES}
LONGEST, MEDIAN = 500, 200
OPTIONAL = {
    "datasets", "fastapi", "httpx2", "jinja2", "matplotlib", "prometheus_client", "pyarrow", "sacrebleu",
    "ray", "sentencepiece", "soundfile", "starlette", "uvicorn",
}  # fmt: skip


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of everything that a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def imported_packages(module: Path) -> Iterator[tuple[str, str]]:
    """Yield each import from apood as its full name and its package."""
    for name in imported_names(TREES[module]):
        root, *rest = name.split(".")
        assert root, f"{module} imports {name}: imports must be absolute"
        # The names of apood itself stand for modules of every package. Only its version belongs to none.
        if root == "apood" and rest != ["__version__"]:
            yield name, rest[0]


def test_packages_are_the_folders_of_apood():
    assert {module.parts[0] for module in TREES if len(module.parts) > 1} == set(PACKAGES)


def test_packages_import_only_from_themselves_and_those_above():
    for module in TREES:
        if len(module.parts) > 1:
            allowed = PACKAGES[: PACKAGES.index(module.parts[0]) + 1]
            wrong = [name for name, package in imported_packages(module) if package not in allowed]
            assert not wrong, f"{module} imports {wrong}"


def test_inputs_and_encoders_do_not_know_detectors():
    for module in TREES:
        if module.parts[0] in ("data", "encoders", "backbones"):
            wrong = [name for name, package in imported_packages(module) if package == "detectors"]
            assert not wrong, f"{module} imports {wrong}"


def test_no_package_imports_a_module_of_its_parent():
    """A module in detectors/ap_ood may import detectors/shared, a sibling, but not detectors/knn.py."""
    for module in TREES:
        for depth in range(1, len(module.parts) - 1):
            parent = module.parts[:depth]
            own_modules = {path.with_suffix("") for path in TREES if path.parts[:-1] == parent}
            for name, _ in imported_packages(module):
                parts = name.split(".")[1:]
                assert Path(*parts[: depth + 1]) not in own_modules, f"{module} imports {name}, of its parent"


def test_modules_are_short():
    assert not {module: lines for module, lines in LINES.items() if lines > LONGEST}
    assert statistics.median(LINES.values()) < MEDIAN


def test_every_module_says_what_it_is_for_and_what_it_offers():
    for module, tree in TREES.items():
        assert ast.get_docstring(tree), f"{module} has no docstring"
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        exports = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
        # A package that holds nothing but its docstring offers nothing.
        assert exports or (module.name == "__init__.py" and len(tree.body) == 1), f"{module} has no __all__"


def test_optional_packages_are_imported_only_where_they_are_used():
    """So `import apood`, the commands and `pytest -m gpu` work without them."""
    tests = {path: ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.rglob("*.py")}
    for module, tree in {**TREES, **tests}.items():
        at_the_top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        packages = {name.partition(".")[0] for name in imported_names(at_the_top)}
        assert not packages & OPTIONAL, f"{module} imports {packages & OPTIONAL} at its top"
