"""The dependency direction of the package, and the cost of importing it."""

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "relu_nmt"
METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)
BASE = {"errors", "config", "io"}
CORE = {"attention", "modules", "data", "tokenization", "training", "translation", "evaluation"}
MAY_IMPORT = {
    "errors": set(),
    "io": {"errors"},
    "config": {"errors"},
    # The core, for readers of the papers.
    "attention": BASE,
    "modules": BASE | {"attention"},
    "data": BASE,
    "drawing": BASE | {"data"},
    "tokenization": BASE | {"data"},
    "training": BASE | {"modules"},
    "translation": BASE | {"attention", "modules", "data", "tokenization", "training"},
    "evaluation": BASE | {"tokenization", "translation", "training", "data"},
    "vision": BASE | {"attention", "modules", "data", "training", "drawing"},
    # The engine: fast decoding on CPUs.
    "engine": BASE | {"attention", "modules", "translation"},
    "translator": BASE | CORE | {"engine", "drawing"},
    # The applications: programs built on both.
    "applications": BASE | CORE | {"drawing", "vision", "translator"},
    "jobs": BASE | CORE | {"drawing", "vision", "engine", "translator", "applications"},
    "cli": BASE | {"applications", "jobs"},
    "__init__": {"translator", "vision"},
}


def imported_modules(path):
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "relu_nmt":
            modules |= {f"relu_nmt.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def imported_parts(path):
    modules = imported_modules(path)
    return {module.split(".")[1] for module in modules if module.startswith("relu_nmt.")}


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_a_part_imports_only_what_stands_left_of_it(part):
    folder = PACKAGE / part
    files = folder.rglob("*.py") if folder.is_dir() else [PACKAGE / f"{part}.py"]
    for file in files:
        wrong = set(imported_parts(file)) - MAY_IMPORT[part] - {part}
        assert not wrong, f"{file.relative_to(PACKAGE)} imports {sorted(wrong)}"


def test_the_files_of_training_import_each_other_without_a_circle():
    files = {f"relu_nmt.training.{path.stem}": path for path in (PACKAGE / "training").glob("*.py")}
    imports = {name: imported_modules(path) & files.keys() for name, path in files.items()}
    # Take away the files whose imports are gone already, until none is left.
    while True:
        free = [name for name, modules in imports.items() if not modules & imports.keys()]
        if not free:
            break
        for name in free:
            del imports[name]
    assert not imports


def test_every_part_has_a_rule():
    files = PACKAGE.rglob("*.py")
    parts = {file.relative_to(PACKAGE).with_suffix("").parts[0] for file in files}
    assert parts == MAY_IMPORT.keys()


def test_commands_and_settings_start_without_importing_torch():
    files = [*(PACKAGE / "cli").glob("*.py"), *(PACKAGE / "jobs").glob("*/settings.py")]
    names = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files]
    modules = ["relu_nmt", *(f"relu_nmt.{name}" for name in names)]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    if 'torch' in sys.modules:\n        sys.exit(name)"
    subprocess.run([sys.executable, "-c", code, *modules], check=True)


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda p: p.stem)
def test_a_command_is_a_description_and_a_job(path):
    """Work is done in jobs, which are imported by name when the flags are read and right."""
    tree = ast.parse(path.read_text("utf-8"))
    if path.stem != "command":  # which all commands share
        assert not {ast.ClassDef, ast.FunctionDef} & set(map(type, tree.body))


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "jobs").glob("*/settings.py")), ids=lambda p: p.parent.name
)
def test_the_settings_of_a_job_are_classes_of_options(path):
    tree = ast.parse(path.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in classes:
        assert list(map(ast.unparse, node.decorator_list)) == ["settings"]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            assert ast.ImportFrom not in set(map(type, ast.walk(function)))


def test_every_public_method_has_or_inherits_a_docstring():
    classes = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def is_documented(class_name, method):
        for node in classes.get(class_name, []):
            for member in node.body:
                is_it = isinstance(member, METHODS) and member.name == method
                if is_it and ast.get_docstring(member):
                    return True
            for base in node.bases:
                base_name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
                if base_name != class_name and is_documented(base_name, method):
                    return True
        return False

    without = []
    for class_name, nodes in classes.items():
        for member in itertools.chain.from_iterable(node.body for node in nodes):
            is_public = isinstance(member, METHODS) and not member.name.startswith("_")
            if is_public and class_name[0] != "_" and not is_documented(class_name, member.name):
                without.append(f"{class_name}.{member.name}")
    assert without == []
