r"""NIFTY, from Agarwal, Lakkaraju and Zitnik (UAI 2021).

"Towards a Unified Framework for Fair and Stable Graph Representation Learning". Two views of each
node are encoded: one with perturbed features and dropped edges, one with the
sensitive attribute flipped. The encoder's weights are divided by their spectral norm (a Lipschitz
layer), and a predictor t brings the views together,

.. math::
    L = (1-\lambda) L_C + \lambda \, \tfrac12 \big[ D(t(z_1), \mathrm{sg}(z_2)) + D(t(z_2),
    \mathrm{sg}(z_1)) \big], \qquad D(a, b) = 1 - \cos(a, b),

where sg stops the gradient. The attribute is flipped in a feature column that equals it, if the
features have one; without one the view differs by perturbations alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, relu
from torch_geometric.data import Data

from experiments.rivals.convolution import Convolution, graph_layer
from experiments.rivals.selection import LowestLoss, as_probabilities, labelled


class NIFTY:
    """NIFTY with a one-layer GCN encoder, as in the authors' experiments.

    Args:
        similarity: weight λ of the similarity of views; 0 leaves the encoder.
        hidden: units of the encoder.
        epochs: of training.
        lr, weight_decay: of Adam.
        drop_edges, drop_features: probabilities of perturbations.
    """

    def __init__(
        self,
        similarity: float = 0.6,
        hidden: int = 16,
        epochs: int = 1000,
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        drop_edges: float = 0.001,
        drop_features: float = 0.1,
    ) -> None:
        self.similarity, self.hidden, self.epochs = similarity, hidden, epochs
        self.lr, self.weight_decay = lr, weight_decay
        self.drop_edges, self.drop_features = drop_edges, drop_features

    def fit(self, data: Data) -> NIFTY:
        """Train encoder, classifier and predictor together."""
        lipschitz = self.similarity > 0
        self.network = _Network(data.num_features, self.hidden, lipschitz=lipschitz)
        self.network.to(data.x.device)
        optimiser = torch.optim.Adam(
            self.network.parameters(), self.lr, weight_decay=self.weight_decay
        )
        train = labelled(data, data.train_mask)
        column = sensitive_column(data)
        best = LowestLoss(self.network, data)
        graph = Convolution(data.edge_index, data.x.size(0))
        averaged = graph(graph.all_edges, data.x)
        validation, averaged = averaged[best.val], averaged[train]
        for _ in range(self.epochs):
            self.network.train()
            z = relu(self.network.encoder(averaged))
            logits = self.network.head(z).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, data.y[train].float())
            if self.similarity:
                views = [self._view(data.x, graph, flipped) for flipped in (None, column)]
                distance = self.network.distance(*views)
                loss = (1 - self.similarity) * loss + self.similarity * distance
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            best.add(self._logits(validation))
        best.restore()
        return self

    def predict_proba(self, data: Data) -> Tensor:
        """Probabilities of both classes for all nodes."""
        graph = Convolution(data.edge_index, data.x.size(0))
        return as_probabilities(self._logits(graph(graph.all_edges, data.x)))

    def _logits(self, averaged: Tensor) -> Tensor:
        self.network.eval()
        with torch.no_grad():
            logits: Tensor = self.network.head(relu(self.network.encoder(averaged)))
            return logits.squeeze(1)

    def _view(self, x: Tensor, graph: Convolution, flipped: int | None) -> Tensor:
        """Encode a perturbed view, or one with the sensitive column flipped."""
        x = x.clone()
        if flipped is not None:
            x[:, flipped] = x[:, flipped].max() + x[:, flipped].min() - x[:, flipped]
        else:
            columns = torch.rand(x.size(1), device=x.device) < self.drop_features
            x[:, columns] += torch.randn(x.size(0), int(columns.sum()), device=x.device)
        return self.network.encode(x, graph, graph.weights(self.drop_edges))


class NIFTYBackbone(NIFTY):
    """The encoder and classifier of NIFTY without similarity and Lipschitz layers."""

    def __init__(self, **settings: float) -> None:
        super().__init__(similarity=0.0, **settings)  # type: ignore[arg-type]


def sensitive_column(data: Data) -> int | None:
    """The column of the features that tells the group, if one does."""
    known = data.sens >= 0
    x, s = data.x[known], data.sens[known]
    for column in range(x.size(1)):
        values = x[:, column]
        if values.unique().numel() == 2 and bool(((values == values.max()) == (s == 1)).all()):
            return column
        if values.unique().numel() == 2 and bool(((values == values.max()) == (s == 0)).all()):
            return column
    return None


class _Network(nn.Module):
    """Encoder, classifier and predictor."""

    def __init__(self, features: int, hidden: int, *, lipschitz: bool) -> None:
        super().__init__()
        self.encoder = graph_layer(features, hidden)
        self.head = nn.Linear(hidden, 1)
        if lipschitz:
            for layer in (self.encoder, self.head):
                nn.utils.parametrizations.spectral_norm(layer)
        self.predictor = nn.Sequential(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU())

    def encode(self, x: Tensor, graph: Convolution, weights: Tensor) -> Tensor:
        """Embeddings of all nodes, over edges of these weights."""
        return relu(graph.layer(self.encoder, x, weights))

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Symmetric cosine distance of two views, each to the other's prediction."""
        halves = [
            1 - cosine_similarity(self.predictor(a), b.detach()).mean()
            for a, b in ((first, second), (second, first))
        ]
        return (halves[0] + halves[1]) / 2
