"""Primitives that pass over every node or edge: in torch, in numba (CPU) and in Triton (CUDA).

All implementations of the :class:`Kernels` protocol are deterministic, and tests compare the
compiled ones with ``reference``.
"""

from fairmp.kernels import reference
from fairmp.kernels.ops import gather, segment_sum, softmax, spmm
from fairmp.kernels.protocol import Kernels, implementation, use

__all__ = [
    "Kernels",
    "gather",
    "implementation",
    "reference",
    "segment_sum",
    "softmax",
    "spmm",
    "use",
]
