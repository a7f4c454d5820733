"""API pages for the documentation: signatures and docstrings of what each face of the package lists in `__all__`."""
import html
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType

from docs_run import PACKAGE

WIDTH = 88


def faces() -> dict[str, ModuleType]:
    "Packages that list public names, and modules that such a list names."
    top = importlib.import_module(PACKAGE)
    names = [PACKAGE, *(m.name for m in pkgutil.walk_packages(top.__path__, f"{PACKAGE}.") if m.ispkg)]
    found = {name: importlib.import_module(name) for name in names}
    found = {name: module for name, module in found.items() if public(module)}
    inner = [value for module in found.values() for _, value in members(module) if inspect.ismodule(value)]
    return found | {m.__name__: m for m in inner if public(m)}


def public(module: ModuleType) -> list[str]:
    "The names that a module lists, without those of the form `__x__`."
    return [n for n in getattr(module, "__all__", ()) if not n.startswith("__")]


def members(module: ModuleType) -> Iterator[tuple[str, object]]:
    "Public names and their values; lazily exported ones are loaded."
    return ((name, getattr(module, name)) for name in public(module))


def signature(name: str, value: object) -> str:
    "A call as it is written, one parameter a line where it is long; the bare name where nothing is known."
    try: found = inspect.signature(value)
    except (TypeError, ValueError): return name
    parts = [re.sub(r" at 0x[0-9a-f]+", "", p) for p in parameters(found)]
    end = "" if found.return_annotation is found.empty else f" -> {inspect.formatannotation(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){end}"
    return line if len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){end}"


def parameters(found: inspect.Signature) -> list[str]:
    "Parameters with the markers `/` and `*` of a signature."
    parts, star = [], False
    for p in found.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star: parts.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        parts.append(str(p))
    return parts


def prose(text: str | None) -> str:
    "A docstring as markdown: signs that HTML or markdown would take are kept as written, code spans untouched."
    spans = re.split(r"(`[^`]*`)", inspect.cleandoc(text or ""))
    return "".join(s if s.startswith("`") else html.escape(s, quote=False).replace("*", r"\*") for s in spans)


def first_line(value: object) -> str:
    "The first line of a docstring."
    return prose(inspect.getdoc(value)).partition("\n")[0]


def own_doc(value: object) -> str:
    "A class's or function's own docstring; not the one that dataclasses write, nor one that was inherited."
    text = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    return "" if text and text.startswith(f"{getattr(value, '__name__', '')}(") else prose(text)


def methods(cls: type) -> str:
    "Public methods and properties of a class, a line each."
    lines = []
    for name, value in vars(cls).items():
        if name.startswith("_"): continue
        wrapped = next((a for a in ("__func__", "func", "fget") if hasattr(value, a)), None)
        inner = getattr(value, wrapped) if wrapped else value
        if not callable(inner): continue
        line = name if wrapped in ("func", "fget") else one_line(signature(name, inner))
        doc = first_line(inner)
        lines.append(f"- `{line}`" + (f"  \n  {doc}" if doc else ""))
    return "\n".join(lines)


def entry(face: str, name: str, value: object, here: PurePosixPath, homes: dict[str, PurePosixPath]) -> str:
    "One public name: heading, signature, docstring, methods, and the page that explains it."
    kind = "class " if inspect.isclass(value) else ""
    parts = [f"## {name} {{ #{face}.{name} }}"]
    if callable(value):
        parts += [f"```python\n{kind}{signature(name, value)}\n```", own_doc(value)]
        if kind: parts.append(methods(value))
    elif inspect.ismodule(value): parts.append(first_line(value))
    else: parts.append(constant(value))
    module = str(getattr(value, "__module__", "") or getattr(value, "__name__", ""))
    home = homes.get(module.removeprefix(f"{PACKAGE}."))
    if home: parts.append(f"[explained in its notebook]({os.path.relpath(home, here.parent)}){{ .explained }}")
    return "\n\n".join(p for p in parts if p)


def one_line(call: str) -> str:
    "A method's signature on one line, without `self`."
    flat = re.sub(r"\s*\n\s*", " ", call).replace(", )", ")").replace("( ", "(")
    return re.sub(r"\((?:self|cls)(?:, )?", "(", flat, count=1)


def constant(value: object) -> str:
    "What kind of value a name holds, and the keys of a table."
    keys = f" with the keys {', '.join(f'`{k}`' for k in list(value)[:24])}" if isinstance(value, dict) else ""
    return f"A `{type(value).__name__}`{keys}{' …' if isinstance(value, dict) and len(value) > 24 else ''}."


def write(folder: Path, homes: dict[str, PurePosixPath]) -> list:
    "Write a page for each face below `folder`/api; what they add to the navigation."
    entries = []
    for face, module in sorted(faces().items()):
        here = PurePosixPath("api", f"{face}.md")
        text = [f"# {face}", prose(module.__doc__), *(entry(face, n, v, here, homes) for n, v in members(module))]
        (folder / here).parent.mkdir(parents=True, exist_ok=True)
        (folder / here).write_text("\n\n".join(text) + "\n")
        entries.append({face: str(here)})
    return [{"API": entries}] if entries else []
