"Statements of a module, those inside functions and classes too, without a walk over its expressions."
import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    "Every statement below a node."
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list): waiting += inner
        if isinstance(node, ast.stmt): yield node
