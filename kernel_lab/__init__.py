"""A notebook lab for accelerator kernels: write, compile, verify, profile and optimise, on a laptop."""

__version__ = "0.1.0"

from .core.moved import install as _install
_install()
del _install
