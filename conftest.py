"""Modules whose compiler is not installed are not looked at for examples."""

from __future__ import annotations

from importlib.util import find_spec

_CUDA = ("", "_launch", "_sparse", "_edges", "_nodes", "_binary", "_coupling", "_coupled")
_CPU = ("", "_cells", "_edges", "_softmax", "_threads", "_coupling", "_walk", "_dense")
collect_ignore_glob = [
    f"src/fairmp/kernels/{kind}{part}.py"
    for kind, compiler, parts in (("cuda", "triton", _CUDA), ("cpu", "numba", _CPU))
    for part in parts
    if find_spec(compiler) is None
]
