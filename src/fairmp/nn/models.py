"""Networks: a transform of the node features by the name of its backbone, and a propagation."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn

from fairmp.errors import InputError, check_choice, check_integer
from fairmp.graph import Graph
from fairmp.groups import GroupOperator
from fairmp.nn.fmp import FMP, PPR

Backbone = Literal["mlp", "gcn", "gat", "sgc", "appnp"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)
ESTIMATORS = ("logistic", "trees", "forest")  # of scikit-learn: fairmp.training.estimators
GAT_HEADS = 4


class Network(nn.Module):
    """A transform followed by a propagation.

    Args:
        transform: features to logits: a PyG ``MLP``; a module with an attribute ``takes_graph``,
            called with features and, if it is true, a :class:`~fairmp.graph.Graph`; or another
            module, called as PyG's are: ``module(x, edge_index)``, and with ``edge_weight`` if it
            takes it.
        propagation: :class:`~fairmp.nn.fmp.FMP`, :class:`~fairmp.nn.fmp.PPR`, a module called as
            ``module(x, edge_index)`` with logits, and with ``sens``, ``population`` and
            ``edge_weight`` if it takes them, or ``None``.

    Example:
        >>> import torch
        >>> from torch_geometric.nn import MLP
        >>> graph = Graph(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> network = Network(MLP([2, 2], norm=None), FMP())
        >>> network(torch.eye(2), graph, sens=torch.tensor([0, 1])).shape
        torch.Size([2, 2])
    """

    def __init__(self, transform: nn.Module, propagation: nn.Module | None = None) -> None:
        super().__init__()
        self.transform = transform
        self.propagation = propagation
        self.calibration: Tensor | None
        self.register_buffer("calibration", None)  # slope and biases (1+C), once fitted

    def logits(self, x: Tensor, graph: Graph) -> Tensor:
        """Logits of the transform, calibrated if a calibration was fitted (n×C)."""
        return self.calibrated(call_transform(self.transform, x, graph))

    def calibrated(self, logits: Tensor) -> Tensor:
        """Calibrate logits of the transform, if a calibration was fitted."""
        if self.calibration is None:
            return logits
        return self.calibration[0] * logits + self.calibration[1:]

    def forward(
        self,
        x: Tensor,
        graph: Graph,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        *,
        decisions: bool = False,
    ) -> Tensor:
        """Return logits (n×C); see :class:`~fairmp.nn.fmp.FMP` for the arguments."""
        logits = self.logits(x, graph)
        return self.propagate(logits, graph, sens, population, decisions=decisions)

    def propagate(
        self,
        logits: Tensor,
        graph: Graph,
        sens: Tensor | GroupOperator | None,
        population: Tensor | None = None,
        *,
        decisions: bool = False,
        softmax_only: bool = False,
    ) -> Tensor:
        """Propagate logits of the transform; see :class:`~fairmp.nn.fmp.FMP` for the arguments."""
        if self.propagation is None:
            return logits
        if not isinstance(self.propagation, PPR):
            keywords = {"sens": sens, "population": population}
            return call_module(self.propagation, logits, graph, "propagation", keywords)
        extra: dict[str, Any] = {"softmax_only": softmax_only}
        if isinstance(self.propagation, FMP):
            extra["decisions"] = decisions
        adjacency = graph.adjacency(logits.dtype)
        propagated: Tensor = self.propagation(logits, adjacency, sens, population, **extra)
        return propagated


def check_backbone(backbone: Any) -> None:
    """Raise if a backbone is none of the kinds that a classifier takes."""
    if isinstance(backbone, str):
        check_choice("backbone", backbone, ("auto", *BACKBONES, *ESTIMATORS))
    elif isinstance(backbone, type) or not (
        isinstance(backbone, nn.Module)
        or hasattr(backbone, "predict_proba")
        or hasattr(backbone, "decision_function")
    ):
        value = f"{backbone!r} is neither a name, a module nor a scikit-learn classifier"
        raise InputError("backbone", value, "give 'auto', 'mlp', 'trees', …, or an object")


def name_of(backbone: Any) -> str:
    """Return the name of a backbone, that of its class if it is an object."""
    return backbone if isinstance(backbone, str) else type(backbone).__name__


def call_transform(transform: nn.Module, x: Tensor, graph: Graph) -> Tensor:
    """Call a transform as its kind is called; see :class:`Network`."""
    logits: Tensor
    if not reads_graph(transform):
        logits = transform(x)
        return logits
    if getattr(transform, "takes_graph", False):
        logits = transform(x, graph)
        return logits
    return call_module(transform, x.to_dense(), graph, "backbone", {})


def reads_graph(transform: nn.Module) -> bool:
    """Whether a transform reads the edges; see :class:`Network`."""
    takes_graph = getattr(transform, "takes_graph", None)
    # PyG's MLP by name: PyG is slow to import, and without it there is no MLP of PyG's.
    names = ((kind.__module__, kind.__name__) for kind in type(transform).__mro__)
    is_mlp = ("torch_geometric.nn.models.mlp", "MLP") in names
    return bool(takes_graph) if takes_graph is not None else not is_mlp


def call_module(
    module: nn.Module, x: Tensor, graph: Graph, argument: str, optional: Mapping[str, object]
) -> Tensor:
    """Call a module as ``module(x, edge_index)``, with those further arguments that it takes.

    ``optional`` has them by name, beside ``edge_weight``. A weighted graph and a module that takes
    no weights are a warning.
    """
    signature = inspect.signature(module.forward)
    further = {**optional, "edge_weight": graph.edge_weight}
    taken = {
        name: value
        for name, value in further.items()
        if name in signature.parameters and value is not None
    }
    if graph.edge_weight is not None and "edge_weight" not in taken:
        name = type(module).__name__
        warnings.warn(f"{argument}: {name} takes no edge_weight, so edges weigh 1", stacklevel=2)
    try:
        signature.bind(x, graph.edge_index, **taken)
    except TypeError as error:
        hint = "give a module called as module(x, edge_index)"
        raise InputError(argument, f"{type(module).__name__}: {error}", hint) from None
    result: Tensor = module(x, graph.edge_index, **taken)
    return result


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

    check_choice("backbone", backbone, BACKBONES)
    check_integer("hidden", hidden, "give a whole number, 1 or more")
    check_integer("num_layers", num_layers, "give a whole number, 1 or more")
    if not 0 <= dropout < 1:
        raise InputError("dropout", f"{dropout} is outside [0, 1)", "give a fraction, such as 0.5")
    try:
        _ = norm and normalization_resolver(norm, 1)
    except ValueError:
        hint = "give 'batch_norm', 'layer_norm' or None"
        raise InputError("norm", f"{norm!r} is unknown", hint) from None
    if backbone == "gat" and hidden % GAT_HEADS:
        hint = f"give a multiple of the number of heads, {GAT_HEADS}"
        raise InputError("hidden", f"{hidden} with the backbone 'gat'", hint)
    shape: dict[str, Any] = {"in_channels": in_channels, "hidden_channels": hidden}
    shape |= {"num_layers": num_layers, "out_channels": out_channels, "norm": norm}
    shape["dropout"] = float(dropout)  # PyG takes an int for a list
    transform: nn.Module
    match backbone:
        case "mlp":
            transform = _mlp(shape)
        case "gcn":
            transform = backbones.GCNTransform(**shape)
        case "gat":
            transform = backbones.GATTransform(**shape, heads=GAT_HEADS)
        case "sgc":
            transform = backbones.SGCTransform(in_channels, out_channels, K=num_layers)
        case "appnp":
            transform = backbones.APPNPTransform(_mlp(shape))
    return Network(transform, propagation)


def _mlp(shape: dict[str, Any]) -> nn.Module:
    """PyG's ``MLP``, or where it has nothing between its layers a faster one."""
    from torch_geometric.nn import MLP

    from fairmp.nn.dense import Dense

    if shape["norm"] is not None or shape["dropout"] > 0:
        mlp: nn.Module = MLP(**shape)
        return mlp
    hidden = (shape["num_layers"] - 1) * [shape["hidden_channels"]]
    return Dense([shape["in_channels"], *hidden, shape["out_channels"]])
