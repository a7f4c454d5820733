"""The page of the documentation with every instruction of both dialects: engines, chips, calls, meaning in numpy, cost,
limits, an example and a refusal. All of it is read from the instruction table, the rules and limits of the checker, and
the conformance cases that the pages of the languages hold against numpy."""
import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import docs_api

from kernel_lab.nki.checks import rules_elementwise as elementwise
from kernel_lab.nki.checks.limits import LIMITS
from kernel_lab.nki.ir.instructions import INSTRUCTIONS, NOT_MODELLED, InstructionSpec
from kernel_lab.nki.lang import collectives, isa, legacy_isa, legacy_language

HERE = PurePosixPath("api", "instructions.md")
DIALECTS = {"nki": ("nki.isa", isa), "collectives": ("nki.collectives", collectives),
            "earlier": ("neuronxcc.nki.isa", legacy_isa),
            "earlier language": ("neuronxcc.nki.language", legacy_language)}
OTHER_NAMES = {"activation": ("activation_reduce",), "accumulate": ("loop_reduce",), "select": ("where",),
               "tensor_copy": ("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst")}
# the instructions that a limit is about; what is left out here holds for all
_MATMUL = "nc_matmul"
LIMITED = {
    "C3": _MATMUL, "C4": _MATMUL, "C5": _MATMUL, "C17": _MATMUL, "C33": _MATMUL, "C32": "nc_matmul nc_matmul_mx",
    "C10": "nc_stream_shuffle", "C11": "max8 nc_find_index8 nc_match_replace8", "C12": "bn_stats bn_aggr",
    "C13": "tensor_reduce", "C14": "nc_transpose", "C21": "select_reduce tensor_copy_predicated",
    "C20": "tensor_tensor scalar_tensor_tensor tensor_tensor_scan select_reduce tensor_copy_predicated",
    "C22": "local_gather", "C23": "sequence_bounds", "C24": "nonzero_with_count", "C25": "topk", "C26": "nc_matmul_mx",
    "C27": "quantize_mx", "C28": "dma_transpose", "C29": "dma_transpose", "C30": "dma_compute", "C31": "sendrecv",
    "C36": "register_load register_move register_store"}
SLOTS = ("row", "inputs", "use", "answer", "misuse", "says", "chips")


# --- the conformance cases of the pages ---

@dataclass(frozen=True)
class Shown:
    "A conformance case as text: a use, its answer in numpy, a misuse, and a part of what is said of that."
    use: str
    answer: str
    misuse: str = ""
    says: str = ""


def code_cells(path: Path) -> Iterator[ast.Module]:
    "The syntax trees of a notebook's code cells; a cell that is no Python is left out."
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code": continue
        try: yield ast.parse("".join(cell["source"]))
        except SyntaxError: continue


def text_of(node: ast.expr | None, named: dict[str, ast.AST]) -> str:
    "A function as its body, one that a page names as its definition."
    if isinstance(node, ast.Name): node = named.get(node.id, node)
    if isinstance(node, ast.Lambda): return ast.unparse(node.body)
    return ast.unparse(node) if node else ""


def cases_of(nbs: Path) -> dict[str, list[Shown]]:
    "The cases of every instruction, in the order of the pages."
    found = {}
    for path in sorted((nbs / "2_nki" / "4_lang").glob("*.ipynb")):
        named = {}
        for tree in code_cells(path):
            named |= {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
            named |= {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign)
                      and isinstance(n.targets[0], ast.Name) and isinstance(n.value, ast.Lambda)}
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
                if getattr(call.func, "id", "") != "ConformanceCase": continue
                given = dict(zip(SLOTS, call.args)) | {k.arg: k.value for k in call.keywords}
                says = given.get("says")
                found.setdefault(call.args[0].value, []).append(Shown(
                    text_of(given["use"], named), text_of(given["answer"], named), text_of(given.get("misuse"), named),
                    says.value if isinstance(says, ast.Constant) else ""))
    return found


# --- what the table and the rules say ---

def source(fn: Callable | None) -> str:
    "The text of a function of the package, a lambda as its body; '' where there is none."
    fn = fn.func if isinstance(fn, partial) else fn
    if fn is None: return ""
    if fn.__name__ != "<lambda>": return textwrap.dedent(inspect.getsource(fn)).rstrip()
    tree = ast.parse(inspect.getsource(inspect.getmodule(fn)))
    line, start = next((p[0], p[2]) for p in fn.__code__.co_positions() if p[2])
    inside = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno <= line <= n.end_lineno]
    return ast.unparse(min(inside, key=lambda n: (not n.col_offset <= start, abs(n.body.col_offset - start))).body)


def own_limits(name: str) -> Iterator[str]:
    "The limits of one instruction, a sentence each: on which chips it is, what its operands and operations may be."
    for limit in LIMITS:
        if name in LIMITED.get(limit.id, "").split(): yield f"{limit.says} ({limit.id}; {limit.chips})"
    rules = elementwise
    for table, verb in ((rules.FORMATS, "is"), (rules.DTYPES, "is"), (rules.REFUSED_DTYPES, "is not")):
        for operand, kinds in table.get(name, {}).items(): yield f"`{operand}` {verb} {' or '.join(kinds)}."
    for operation, names in elementwise.OPERATIONS.get(name, {}).items():
        yield f"`{operation}`: {', '.join(names)}."


def chips_with(name: str) -> str:
    "The chips that have an instruction."
    return elementwise.SINCE_CHIP.get(elementwise.FIRST_GENERATION.get(name, 0), "all chips")


def call_of(name: str, fn: Callable) -> str:
    "A call with the kinds of its arguments, by their last names."
    return re.sub(r"\b(?:kernel_lab|collections)(?:\.\w+)+\.(\w+)", r"\1", docs_api.signature(name, fn))


def calls(name: str) -> Iterator[str]:
    "How an instruction is called in each dialect: where it is, its signature, its docstring."
    for place, module in DIALECTS.values():
        for known in (name, *OTHER_NAMES.get(name, ())):
            fn = vars(module).get(known)
            if fn and inspect.isfunction(inspect.unwrap(fn)):
                yield f"`{place}`\n\n{fenced(call_of(known, fn))}\n\n{docs_api.own_doc(fn)}"


# --- the page ---

def fenced(text: str) -> str: return f"```python\n{text}\n```"


def entry(spec: InstructionSpec, cases: list[Shown]) -> Iterator[str]:
    "The parts of the page on one instruction."
    yield f"## {spec.name} {{ #{spec.name} }}"
    operands = f"`{', '.join(spec.outs) or '–'}` ← `{', '.join(spec.ins) or '–'}`"
    yield f"{docs_api.prose(spec.doc)}\n{{ .meaning }}"
    yield f"**Engines**: {', '.join(spec.engines)} · **Chips**: {chips_with(spec.name)} · **Operands**: {operands}"
    yield from calls(spec.name)
    if meaning := source(spec.meaning): yield f"**Meaning**, of the operands and the attributes:\n\n{fenced(meaning)}"
    if spec.cost:
        says = docs_api.first_line(spec.cost)
        yield f"**Cost**, in cycles of the engine{f': {says}' * bool(says)}\n\n{fenced(source(spec.cost))}"
    else: yield "**Cost**: that of a copy by DMA or of a collective over the links, which depends on runs and bytes."
    if limits := list(own_limits(spec.name)):
        yield "**Limits**, beside those of all instructions:\n\n" + "\n".join(f"- {docs_api.prose(l)}" for l in limits)
    if cases: yield f"**Example**, and what it gives in numpy:\n\n{fenced(cases[0].use)}\n\n{fenced(cases[0].answer)}"
    refused = next((c for c in cases if c.misuse), None)
    if refused: yield f"**Refused**: *… {docs_api.prose(refused.says)} …*\n\n{fenced(refused.misuse)}"


def page(nbs: Path) -> str:
    "The page as Markdown."
    cases = cases_of(nbs)
    general = [f"- {docs_api.prose(l.says)} ({l.id}; {l.chips})" for l in LIMITS if l.id not in LIMITED]
    left = [f"- `{name}`: {docs_api.prose(why)}" for name, why in NOT_MODELLED.items()]
    parts = ["# Instructions of both dialects",
             f"{len(INSTRUCTIONS)} instructions, from the table that the simulator executes and times by. Where the "
             "earlier dialect has one of the same name, it returns a new tile instead of writing `dst`. Examples and "
             "refusals are conformance cases: they are held against numpy, and refused, in every run of the tests. In "
             "a cost, `w` is the instruction: it has `w.n` elements a partition, and `w.chip` the figures of the chip.",
             "## Limits of all instructions { #limits }", "\n".join(general)]
    for spec in INSTRUCTIONS.values(): parts += entry(spec, cases.get(spec.name, []))
    return "\n\n".join([*parts, "## Not modelled { #not-modelled }", "\n".join(left)]) + "\n"


def write(folder: Path, nbs: Path) -> list:
    "Write the page below `folder`; what it adds to the navigation. Nothing without the pages of the languages."
    if not (nbs / "2_nki" / "4_lang").is_dir(): return []
    (folder / HERE).parent.mkdir(parents=True, exist_ok=True)
    (folder / HERE).write_text(page(nbs), encoding="utf-8")
    return [{"Instructions": str(HERE)}]
