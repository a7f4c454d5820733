"""The house: rooms and their order, numbers, sizes, names.

Every rule is read from the checkout, none from a list of files."""
import ast
import builtins
import importlib
import json
import re
import symtable
import sys
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from notebooks import module_of

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import number  # noqa: E402
from statements import statements  # noqa: E402

ROOT = Path(__file__).parents[2]
NBS, LIB = ROOT / "nbs", ROOT / "kernel_lab"
PAGES = sorted(p for p in NBS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MOST_PAGES, MOST_LINES = 15, 400


def exported(page):
    "The module that a notebook exports (`kernel_lab.…`), or None."
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return module_of([{**cell, "source": "".join(cell["source"])} for cell in cells])


HOME = {module: page for page in PAGES if (module := exported(page))}


def path_of(module):
    "The file of a module."
    path = ROOT / (module.replace(".", "/") + ".py")
    return path if path.exists() else ROOT / module.replace(".", "/") / "__init__.py"


@cache
def tree_of(module):
    "The syntax tree of a module."
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


@cache
def imports(module):
    "(module, name or None) of everything that a module imports from the package, wherever in the file."
    return list(_imports(module))


def _imports(module):
    path = path_of(module)
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in statements(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.startswith("kernel_lab"))
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            if full.split(".")[0] != "kernel_lab": continue
            for a in node.names: yield (f"{full}.{a.name}", None) if f"{full}.{a.name}" in HOME else (full, a.name)


@cache
def place(module):
    "Where a module stands: its room, or the module itself where it stands in the hall of a package that has rooms."
    folder = HOME[module].parent
    if any(d.is_dir() for d in folder.iterdir() if d.name[0].isdigit()): return module
    return folder.relative_to(NBS).as_posix()


def arrows():
    "Place → the places that its modules import."
    found = defaultdict(set)
    for module in HOME:
        for target, _ in imports(module):
            if target in HOME and place(target) != place(module): found[place(module)].add(place(target))
    return found


def digits(module):
    "The digits of the folders above a module's page: floor first."
    return [int(part[0]) for part in HOME[module].parent.relative_to(NBS).parts]


def test_no_circle_between_places_and_none_between_modules():
    modules = {m: {t for t, _ in imports(m) if t in HOME and t != m} for m in HOME}
    for graph in (arrows(), {m: t - {'kernel_lab.nki'} for m, t in modules.items()}):
        try: tuple(TopologicalSorter(graph).static_order())
        except CycleError as e: pytest.fail(" → ".join(e.args[1]))


def test_a_room_imports_only_from_rooms_with_a_lower_digit():
    wrong = []
    for module in HOME:
        for target, _ in imports(module):
            if target not in HOME or place(target) == place(module): continue
            ours, theirs = digits(module), digits(target)
            low = next(((a, b) for a, b in zip(ours, theirs) if a != b), None)
            if HOME[module].parts[:-1] == HOME[target].parts[:-1]: continue
            same_floor = low is None and HOME[module].parent.relative_to(
                NBS).parts[:1] != HOME[target].parent.relative_to(NBS).parts[:1]
            if same_floor or (low and low[0] < low[1]): wrong.append(f"{module} imports {target}")
    assert not wrong, wrong


def test_pages_lead_to_their_neighbours():
    order = number.reading_order()
    pages = {p: number.cells(p) for p in order}
    titles = {p: number.title(page) for p, page in pages.items()}
    wrong = [p.relative_to(NBS).as_posix() for k, p in enumerate(order)
             if number.neighbours(k, order, titles) not in "".join(number.head(pages[p])["source"]).splitlines()]
    assert len(order) > 400 and not wrong, f"`make number` links them: {wrong}"


def test_pages_are_numbered_and_named_after_their_modules():
    for folder in {p.parent for p in PAGES if p.parent.name[0].isdigit()}:      # lessons have the numbers of the ladder
        found = sorted(p.name for p in folder.glob("*.ipynb"))
        assert [n[:3] for n in found] == [f"{i:02d}_" for i in range(len(found))
                                          ], f"{folder.name}: `make number` numbers them"
    wrong = [
        p.name
        for m, p in HOME.items()
        if p.parent != NBS and p.stem[3:] != ('init' if path_of(m).name == '__init__.py' else m.split('.')[-1])]
    assert not wrong, wrong


def test_folders_mirror_the_package():
    bare = lambda folder: tuple(re.sub(r"^\d_", "", part) for part in folder.relative_to(NBS).parts)
    wrong = [
        m for m, p in HOME.items()
        if ("kernel_lab",
            *bare(p.parent)) != tuple(m.split(".")[:-1] if path_of(m).name != "__init__.py" else m.split("."))]
    assert not wrong, wrong


def test_rooms_and_pages_are_not_too_large():
    large = {d.name: n for d in NBS.rglob("*") if d.is_dir() and (n := len(list(d.glob("[0-9]*.ipynb")))) > MOST_PAGES}
    assert not large, large
    long = {
        m: n
        for m in HOME
        if (n := len([line for line in path_of(m).read_text(encoding="utf-8").splitlines()
                      if line.strip()])) > MOST_LINES}
    assert not long, long


def test_every_module_has_one_page():
    modules = [m for page in PAGES if (m := exported(page))]
    assert len(modules) == len(set(modules))


def test_no_face_has_a_name_that_is_a_module_beside_it():
    "`from kernel_lab.a import b` would give the module as soon as something has imported it."
    hidden = []
    for folder in {f.parent for f in LIB.rglob("__init__.py")}:
        face = import_module(".".join(("kernel_lab", *folder.relative_to(LIB).parts)))
        hidden += [
            f"{face.__name__}.{name}" for name in getattr(face, "__all__", ())
            if (folder / f"{name}.py").exists() or (folder / name).is_dir()]
    assert not hidden, hidden


# --- names ---

def trees():
    "(module, syntax tree) of every exported module."
    for module in HOME: yield module, tree_of(module)


def test_one_class_name_is_one_class():
    homes = defaultdict(list)
    for module, tree in trees():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef): homes[node.name].append(module)
    doubled = {name: found for name, found in homes.items() if len(found) > 1}
    assert not doubled, doubled


def test_no_private_name_is_imported_from_another_module():
    wrong = [f"{module} imports {name} from {target}" for module in HOME for target, name in imports(module)
             if name and name.startswith("_") and not name.startswith("__") and target != module]
    assert not wrong, wrong


SAY_NOTHING = {"MOST", "KINDS", "ROOM", "FIRST", "ALL", "LIMIT", "NAMES", "TABLE"}


def test_constants_are_named_by_what_they_bound():
    wrong = [f"{module}: {name.id}" for module, tree in trees() for node in tree.body if isinstance(node, ast.Assign)
             for name in node.targets if isinstance(name, ast.Name) and name.id in SAY_NOTHING]
    assert not wrong, wrong


def test_methods_stand_in_their_class():
    wrong = []
    for module, tree in trees():
        classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        names = {
            a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names
            if (a.asname or a.name)[:1].isupper()}
        for node in tree.body:
            targets = [t for a in ([node] if isinstance(node, ast.Assign) else []) for part in a.targets
                       for t in (part.elts if isinstance(part, ast.Tuple) else [part])]
            wrong += [
                f"{module}: {ast.unparse(t)} = …" for t in targets
                if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id in classes |
                names and not t.value.id.isupper()]
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "patch" for d in node.decorator_list):
                owner = ast.unparse(node.args.args[0].annotation)
                wrong += [f"{module}: {owner}.{node.name} is there only where this is imported"] * (owner not in classes)
    assert not wrong, wrong


def test_no_module_is_hidden_by_a_name_of_its_package():
    wrong = []
    for init in LIB.rglob("__init__.py"):
        package = ".".join(init.parent.relative_to(ROOT).parts)
        inside = {p.stem for p in init.parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
        public = getattr(importlib.import_module(package), "__all__", ())
        wrong += [f"{package}.{name}" for name in public if name in inside]
    assert not wrong, wrong


def test_names_of_modules_in_strings_exist():
    known = {*HOME, *(".".join(p.parent.relative_to(ROOT).parts) for p in LIB.rglob("__init__.py"))}
    wrong = []
    for module, tree in trees():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)): continue
            for dotted in re.findall(r"(?<![\w.])kernel_lab(?:\.[a-z_0-9]+)+", node.value):
                parts = dotted.split(".")
                if not any(".".join(parts[:i]) in known and i > 1 for i in (len(parts), len(parts) - 1)):
                    wrong.append(f"{module}: {dotted}")
    assert not wrong, wrong


def test_no_two_test_files_share_a_name():
    "pytest imports them by name, and collects only the first."
    count = Counter(p.name for p in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, n in count.items() if n > 1] == []


def test_links_between_pages_exist():
    broken = []
    for page in PAGES:
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "markdown": continue
            links = re.findall(r"\]\((?!\w+:)([^)\s#]+\.\w+)", "".join(cell["source"]))
            broken += [f"{page.relative_to(NBS)}: {link}" for link in links if not (page.parent / link).exists()]
    assert not broken, broken


def _names_of(cells, are):
    "The names of a page's cells, at any depth, that `are` is true of."
    tables = [symtable.symtable(cell, "cell", "exec") for cell in cells]
    for table in tables:
        yield from (s.get_name() for s in table.get_symbols() if are(s, table))
        tables += table.get_children()


def hidden_names(code, examples):
    "Names of a page's exported code, or of Python, that the page's examples give another meaning: it runs differently there."
    read = set(_names_of(code, lambda s, table: table.get_type() != "module" and s.is_global() and s.is_referenced()))
    made, given = (set(_names_of(cells, lambda s, table: table.get_type() == "module" and is_bound(s)))
                   for cells, is_bound in ((code, lambda s: s.is_assigned() or s.is_imported() or s.is_namespace()),
                                           (examples, lambda s: s.is_assigned() or s.is_namespace())))
    return read & given & (made | set(dir(builtins)))


def test_no_example_of_a_page_hides_a_name_that_its_code_uses():
    "`make test` runs a page's examples over its module, the site in one namespace: both must mean the same."
    wrong = {}
    for page in PAGES:
        cells = ["".join(c["source"]) for c in json.loads(page.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        code = [c for c in cells if re.search(r"^#\|\s*export", c, re.M)]
        examples = [c for c in cells if c not in code and not c.lstrip().startswith("%")]
        # a constant in capitals may be shortened for the page: meant, and harmless
        wrong[page.name] = {n for n in hidden_names(code, examples) if not n.isupper()}
    assert not {page: names for page, names in wrong.items() if names}
    assert hidden_names(["from a import apart\ndef f(): return apart(1)"], ["apart = 1, 2"]) == {"apart"}
