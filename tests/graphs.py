"""Small graphs made by hypothesis: isolated nodes, self-loops, repeated edges, separate pieces."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def edge_indices(draw: st.DrawFn, *, nodes: int, undirected: bool = True) -> Tensor:
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=4 * nodes
        )
    )
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return torch.cat([index, index.flip(0)], 1) if undirected else index


@st.composite
def problems(
    draw: st.DrawFn, *, classes: int | None = None, groups: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (float64), edges and groups, every group there at least once, some unknown."""
    groups = groups or draw(st.integers(2, 4))
    classes = classes or draw(st.integers(2, 4))
    nodes = draw(st.integers(groups + 1, 14))
    scale = draw(st.sampled_from([0.1, 1.0, 10.0]))
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(nodes, classes, dtype=torch.float64, generator=generator)
    sens = torch.randint(-1, groups, (nodes,), generator=generator)
    sens[torch.randperm(nodes, generator=generator)[:groups]] = torch.arange(groups)
    return x, draw(edge_indices(nodes=nodes)), sens
