"""Networks by the name of their backbone."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import nn

from fairmp.errors import InputError, check_choice, check_integer
from fairmp.nn.network import Graph, GraphTransform, Network

Backbone = Literal["mlp", "gcn", "gat", "sgc", "appnp"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)

__all__ = ["BACKBONES", "GAT_HEADS", "Backbone", "Graph", "GraphTransform", "Network", "build"]

GAT_HEADS = 4


def build(
    backbone: Backbone = "mlp",
    *,
    in_channels: int,
    out_channels: int,
    hidden: int = 64,
    num_layers: int = 2,
    dropout: float = 0.0,
    norm: str | None = None,
    propagation: nn.Module | None = None,
) -> Network:
    """Build a network, with the paper's setting (2 layers, 64 hidden) by default.

    The backbones are PyG's:

    - ``"mlp"``: ``MLP``, which ignores the graph.
    - ``"gcn"``: ``GCN``.
    - ``"gat"``: ``GAT`` with 4 heads. ``hidden`` is their total width, 16 per head for 64; the
      last layer averages its heads. It reads the edges and not their weights.
    - ``"sgc"``: ``SGConv`` with ``K = num_layers`` steps. It is linear and has no hidden layer, so
      ``hidden``, ``dropout`` and ``norm`` do not apply.
    - ``"appnp"``: the ``MLP`` followed by ``APPNP(K=10, alpha=0.1)``, its paper's usual setting.

    Any of them may be followed by a propagation.

    Args:
        backbone: ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` or ``"appnp"``.
        in_channels: number of features.
        out_channels: number of classes.
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: fraction of hidden units dropped in training.
        norm: normalization between layers, by PyG's name (``"batch_norm"``, ``"layer_norm"``, …).
        propagation: module that follows the backbone.

    Example:
        >>> network = build("mlp", in_channels=3, out_channels=2)
        >>> sum(parameter.numel() for parameter in network.parameters())
        386
    """
    from torch_geometric.nn.resolver import normalization_resolver

    from fairmp.nn import backbones
    from fairmp.nn.dense import Dense

    check_choice("backbone", backbone, BACKBONES)
    check_integer("hidden", hidden, "give a whole number, 1 or more")
    check_integer("num_layers", num_layers, "give a whole number, 1 or more")
    if not 0 <= dropout < 1:
        raise InputError(
            "dropout", f"{dropout} is outside [0, 1)", "give the fraction to drop, such as 0.5"
        )
    if norm is not None:
        try:
            normalization_resolver(norm, 1)
        except ValueError:
            raise InputError(
                "norm",
                f"{norm!r} is not a normalization layer of PyG",
                "give 'batch_norm', 'layer_norm' or None",
            ) from None
    if backbone == "gat" and hidden % GAT_HEADS:
        raise InputError(
            "hidden",
            f"{hidden} is not divisible by the {GAT_HEADS} heads of 'gat'",
            f"give a multiple of {GAT_HEADS}",
        )
    shape: dict[str, Any] = {
        "in_channels": in_channels,
        "hidden_channels": hidden,
        "num_layers": num_layers,
        "out_channels": out_channels,
        "dropout": dropout,
        "norm": norm,
    }
    transform: nn.Module
    match backbone:
        case "mlp":
            transform = Dense(**shape)
        case "gcn":
            transform = backbones.GCNTransform(**shape)
        case "gat":
            transform = backbones.GATTransform(**shape, heads=GAT_HEADS, add_self_loops=False)
        case "sgc":
            transform = backbones.SGCTransform(in_channels, out_channels, K=num_layers)
        case "appnp":
            transform = backbones.APPNPTransform(Dense(**shape))
    return Network(transform, propagation)
