"""Every refusal that the text of some modules can raise, found in their syntax trees."""
import ast
from pathlib import Path

import kernel_lab.nki


def template(node):
    "A message as text, with {} for what is filled in; None where it is no text."
    if isinstance(node, ast.Constant) and isinstance(node.value, str): return node.value
    if isinstance(node, ast.JoinedStr):
        return ''.join(x.value if isinstance(x, ast.Constant) else '{}' for x in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return ''.join(template(x) or '{}' for x in (node.left, node.right))
    return None


def name_of(call): return getattr(call.func, 'id', getattr(call.func, 'attr', ''))


def handed_on(tree):
    "{function: place of the argument} of those that make one of their arguments the message of a KernelError."
    found = {}
    for f in ast.walk(tree):
        if not isinstance(f, ast.FunctionDef): continue
        names = [a.arg for a in f.args.args]
        for c in ast.walk(f):
            if isinstance(c, ast.Call) and name_of(c) == 'KernelError' and c.args and isinstance(c.args[0], ast.Name):
                if c.args[0].id in names: found[f.name] = names.index(c.args[0].id)
    return found


def refusals(*rooms):
    "{(module, message)} of all modules in these rooms of kernel_lab.nki."
    found = set()
    for room in rooms:
        for path in sorted((Path(kernel_lab.nki.__file__).parent / room).glob('*.py')):
            tree = ast.parse(path.read_text('utf-8'))
            makers = {**dict.fromkeys(_kinds(tree), 0), **handed_on(tree)}
            for c in ast.walk(tree):
                if not isinstance(c, ast.Call) or name_of(c) not in makers: continue
                message = c.args[makers[name_of(c)]]
                if name_of(c) == 'KernelError' and isinstance(message, ast.Name) and message.id in _arguments(tree): continue
                found.add((path.stem, template(message) or ast.unparse(message)))
    return found


def _kinds(tree):
    "KernelError and the classes that a module derives from it."
    return {'KernelError', *(c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef)
                             and any(getattr(b, 'id', '') == 'KernelError' for b in c.bases))}


def _arguments(tree):
    "Names of the arguments that functions make their messages: the texts are where those are called."
    makers = handed_on(tree)
    return {f.args.args[makers[f.name]].arg for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name in makers}
