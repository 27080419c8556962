"""A small problem for models that see a node in different ways."""

import torch

from fairmp.graph import Graph


def problem(classes, seed=0, n=300):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    x[:, 0] = (x[:, 0] > 0).float()  # thresholds between repeated values
    y = (x[:, 0] + x[:, 1] + 0.5 * torch.randn(n, generator=generator)).argsort().argsort()
    y = y * classes // n
    train = torch.rand(n, generator=generator) < 0.6
    edges = torch.randint(n, (2, 4 * n), generator=generator)
    return x, y, train, Graph(torch.cat([edges, edges.flip(0)], 1), n)
