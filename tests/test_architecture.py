"""The shape of the code: who may import whom, how long a module may be, what each must say."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import apood

ROOMS = [
    "support", "tokens", "pooling", "fitting", "decisions", "detectors", "data", "encoders", "backbones", "pipeline",
    "evaluation", "explain", "report",
    "serving", "scale", "experiments", "cli",
]  # fmt: skip
PACKAGE = Path(apood.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
LONGEST = 500


def imported(tree: ast.Module) -> Iterator[str]:
    """The full names of all that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def parsed(module: Path) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def exported(tree: ast.Module) -> bool:
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_every_folder_is_a_room():
    assert {module.parts[0] for module in MODULES if len(module.parts) > 1} <= set(ROOMS)


@pytest.mark.parametrize("module", [m for m in MODULES if len(m.parts) > 1], ids=str)
def test_a_room_imports_only_from_itself_and_the_rooms_above(module):
    allowed = ROOMS[: ROOMS.index(module.parts[0]) + 1]
    for name in imported(parsed(module)):
        package, *rest = name.split(".")
        assert package, f"{module} imports {name}: imports are absolute"
        if package == "apood":
            # the names of the package itself stand for modules of every room; only its version is nobody's
            assert rest and (rest[0] in allowed or rest == ["__version__"]), f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_is_short(module):
    assert len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_says_what_it_is_for_and_what_it_offers(module):
    tree = parsed(module)
    assert ast.get_docstring(tree), "no docstring"
    # a package that holds nothing but its docstring offers nothing
    assert exported(tree) or (module.name == "__init__.py" and len(tree.body) == 1), "no __all__"
