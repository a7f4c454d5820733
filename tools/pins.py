"""Write constraints.txt: the exact version of every package that pyproject.toml's dependencies and extras bring, from
this environment."""
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
HEAD = """\
# Exact versions of everything the lab needs, for `make env`. Made by `make pins` from the ranges in pyproject.toml.
# torch is pinned without a local part, so that a CPU wheel (2.13.0+cpu) and the public one both satisfy it.
"""


def asked():
    "What pyproject.toml asks for, all extras included."
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        "setuptools", *project["dependencies"], *(r for extra in project["optional-dependencies"].values()
                                                  for r in extra)]


def only_on_linux():
    "Canonical names of what is asked for on Linux alone."
    return {canonicalize_name(r.name) for r in map(Requirement, asked()) if 'sys_platform == "linux"' in str(r.marker)}


def closure(requirements):
    "Canonical name → (name, version) of every installed distribution that `requirements` reach."
    found, todo = {}, [(Requirement(r), {""}) for r in requirements]
    seen = set()
    while todo:
        req, extras = todo.pop()
        if req.marker and not any(req.marker.evaluate({"extra": e}) for e in extras): continue
        key = (canonicalize_name(req.name), frozenset(req.extras))
        if key in seen: continue
        seen.add(key)
        dist = distribution(req.name)
        found[key[0]] = (dist.metadata["Name"], dist.version.split("+")[0])
        todo += [(Requirement(r), {"", *req.extras}) for r in dist.requires or ()]
    return found


if __name__ == "__main__":
    linux = only_on_linux()
    pins = [f"{name}=={version}" + ("; sys_platform == 'linux'" if key in linux else "")
            for key, (name, version) in sorted(closure(asked()).items())]
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(pins) + "\n")
    print(f"constraints.txt: {len(pins)} packages")
