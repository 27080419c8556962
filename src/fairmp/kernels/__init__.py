"""Primitives that pass over every node or edge: in torch, in numba (CPU) and in Triton (CUDA).

All implementations of the :class:`Kernels` protocol are deterministic, and tests compare the
compiled ones with ``reference``.
"""

from fairmp.kernels import reference as reference
from fairmp.kernels.functional import gather as gather
from fairmp.kernels.functional import relative_to_largest as relative_to_largest
from fairmp.kernels.functional import segment_sum as segment_sum
from fairmp.kernels.functional import shift as shift
from fairmp.kernels.functional import softmax as softmax
from fairmp.kernels.functional import spmm as spmm
from fairmp.kernels.protocol import Kernels as Kernels
from fairmp.kernels.protocol import apply as apply
from fairmp.kernels.protocol import implementation as implementation
from fairmp.kernels.protocol import not_compiled as not_compiled
from fairmp.kernels.protocol import use as use
