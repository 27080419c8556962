r"""One graph convolution, as a linear layer between products with the normalised adjacency.

With :math:`\hat A = D^{-1/2} (A+I) D^{-1/2}`, :math:`\hat A X W = (\hat A X) W`: where the edges
stay, :math:`\hat A X` is computed once, and where some are dropped in every epoch, only their
weights change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import add_remaining_self_loops


class Convolution:
    """Products with the normalised adjacency of a graph, or of a random part of its edges.

    Args:
        edge_index: edges, from and to (2×E).
        num_nodes: number of nodes.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        edges, _ = add_remaining_self_loops(edge_index, num_nodes=num_nodes)
        source, target = edges
        by_target = torch.argsort(target * num_nodes + source)
        self.source, self.target = source[by_target], target[by_target]
        self.by_source = torch.argsort(self.source * num_nodes + self.target)
        self.num_nodes = num_nodes
        self.forward = _rows(self.target, self.source, num_nodes)
        self.backward = _rows(self.source[self.by_source], self.target[self.by_source], num_nodes)
        self.all_edges = self.weights(0.0)

    def weights(self, drop_edges: float) -> Tensor:
        """Entries of the matrix, with each edge but the self-loops dropped at random."""
        drawn = torch.rand(len(self.source), device=self.source.device)
        kept = ((drawn >= drop_edges) | (self.source == self.target)).float()
        degree = torch.zeros(self.num_nodes, device=kept.device).index_add_(0, self.target, kept)
        scale = degree.rsqrt()
        return kept * scale[self.source] * scale[self.target]

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """The matrix with these entries times x, with the gradient of x."""
        product: Tensor = _Product.apply(x, weights, self)
        return product

    def layer(self, layer: nn.Linear, x: Tensor, weights: Tensor) -> Tensor:
        """The layer of the averaged features, multiplied in the cheaper order."""
        if x.size(1) <= layer.out_features:
            output: Tensor = layer(self(weights, x))
            return output
        return self(weights, x @ layer.weight.T) + layer.bias


def graph_layer(features: int, hidden: int) -> nn.Linear:
    """A linear layer with the initial values of PyG's ``GCNConv``."""
    layer = nn.Linear(features, hidden)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _rows(rows: Tensor, columns: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Offsets and columns of a compressed matrix whose rows are sorted."""
    counts = torch.bincount(rows, minlength=num_nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns


def _multiply(rows: tuple[Tensor, Tensor], values: Tensor, x: Tensor) -> Tensor:
    size = (len(rows[0]) - 1, x.size(0))
    return torch.sparse_csr_tensor(*rows, values, size, check_invariants=False) @ x


class _Product(torch.autograd.Function):
    """A sparse product whose backward pass multiplies by the transposed matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, convolution: Convolution) -> Tensor:
        ctx.convolution, ctx.weights = convolution, weights
        return _multiply(convolution.forward, weights, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        convolution: Convolution = ctx.convolution
        values = ctx.weights[convolution.by_source]
        return _multiply(convolution.backward, values, grad.contiguous()), None, None
