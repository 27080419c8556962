"""The few operations that touch every node or edge, as torch operators.

Each is registered with ``torch.library``, so that autograd and ``torch.compile`` treat it as one
opaque step and an implementation for another device can take its place.
"""

from fairmp.kernels.dual import project_dual
from fairmp.kernels.rows import softmax
from fairmp.kernels.sparse import spmm

__all__ = ["project_dual", "softmax", "spmm"]
