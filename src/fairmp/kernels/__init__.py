"""Primitives that pass over every node or edge: in torch, in numba (CPU) and in Triton (CUDA).

All implementations of the :class:`Kernels` protocol are deterministic, and tests compare the
compiled ones with ``reference``.
"""

from fairmp.kernels import reference
from fairmp.kernels.ops import gather, segment_sum, softmax, spmm
from fairmp.kernels.protocol import Kernels, implementation, not_compiled, use

__all__ = [
    "Kernels",
    "gather",
    "implementation",
    "not_compiled",
    "reference",
    "segment_sum",
    "softmax",
    "spmm",
    "use",
]
