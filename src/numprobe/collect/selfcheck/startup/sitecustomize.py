"""Python runs this first in every process of a script that is watched: it lies on PYTHONPATH, so that children have it too.

Nothing happens in a process that never imports torch.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


class _WhenTorchIsThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                load(module)
                try:
                    from numprobe.collect.selfcheck.observe import install
                except ImportError as error:
                    print(f"numprobe: this process is not watched: {error}", file=sys.stderr)
                else:
                    install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_the_one_behind() -> None:
    """Another sitecustomize, which this one hides."""
    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "NUMPROBE_CHECK" in os.environ:
    sys.meta_path.insert(0, _WhenTorchIsThere())
_run_the_one_behind()
