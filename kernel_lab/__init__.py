"""A notebook lab for accelerator kernels: write, compile, verify, profile and optimise, on a laptop."""

__version__ = "0.1.0"

from .core.modules import install_moved_paths, install_packages_first, lazy_face

install_packages_first()
install_moved_paths()
__getattr__, __dir__, __all__ = lazy_face("kernel_lab", {
    "nki": "profile simulate trace",
    "tasks": "get_task task_from",
    "evaluate": "Store evaluate_many",
    "panels": "Lab"})
del install_moved_paths, install_packages_first, lazy_face
