"""Modules whose compiler or builder is not installed are not looked at for examples."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [
    f"src/fairmp/kernels/{kind}/*.py"
    for kind, compiler in (("cuda", "triton"), ("cpu", "numba"))
    if find_spec(compiler) is None
]
if find_spec("mkdocstrings") is None:
    collect_ignore_glob.append("docs/assets/*.py")
