r"""FairGNN, from Dai and Wang, "Say No to the Discrimination" (WSDM 2021).

A GNN classifies nodes; a second one estimates the sensitive attribute where it is unknown. An
adversary predicts the (known or estimated) attribute from the node embeddings h, and the covariance
between attribute and prediction is penalised:

.. math::
    \min_{\theta} \max_{\theta_A} \; L_C + \alpha L_R - \beta L_A, \qquad
    L_R = \big| \mathrm{E}[(\hat s - \mathrm{E}\hat s)(\hat y - \mathrm{E}\hat y)] \big|,

with the cross-entropy :math:`L_C` of the label and :math:`L_A` of the adversary. The binary case.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, relu
from torch_geometric.data import Data

from experiments.rivals.convolution import Convolution, graph_layer
from experiments.rivals.selection import SmallestGap, as_probabilities, labelled


class FairGNN:
    """FairGNN with a one-layer GCN, as in the authors' experiments.

    Args:
        alpha: weight of the covariance penalty.
        beta: weight of the adversary.
        hidden: units of classifier and estimator.
        epochs: of joint training; the estimator is trained as long before.
        lr, weight_decay, dropout: of Adam and of the layers.
        max_loss: of validation accuracy, of an epoch that may be chosen for its small gap.
    """

    def __init__(
        self,
        alpha: float = 4.0,
        beta: float = 0.01,
        hidden: int = 128,
        epochs: int = 500,
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        dropout: float = 0.5,
        max_loss: float = 0.02,
    ) -> None:
        self.alpha, self.beta, self.hidden, self.epochs = alpha, beta, hidden, epochs
        self.lr, self.weight_decay, self.dropout, self.max_loss = (
            lr,
            weight_decay,
            dropout,
            max_loss,
        )

    def fit(self, data: Data) -> FairGNN:
        """Train the estimator, then classifier and adversary in turns."""
        self.network = _Network(data.num_features, self.hidden, self.dropout).to(data.x.device)
        train, averaged, y = labelled(data, data.train_mask), _averaged(data), data.y.float()
        s, is_fair = data.sens.clamp_min(0).float(), bool(self.alpha or self.beta)
        if is_fair:
            known = (data.sens >= 0) & ~data.test_mask
            self._fit_estimator(averaged[known], s[known])
            s = torch.where(known, s, self._estimated(averaged))
        main = [*self.network.body.parameters(), *self.network.head.parameters()]
        optimiser = torch.optim.Adam(main, self.lr, weight_decay=self.weight_decay)
        adversary = torch.optim.Adam(
            self.network.adversary.parameters(), self.lr, weight_decay=self.weight_decay
        )
        best = SmallestGap(self.network, data, self.max_loss if is_fair else 0.0)
        validation = averaged[best.val]
        if not is_fair:  # the other nodes are in no term of the loss
            averaged, y, train = averaged[train], y[train], torch.arange(len(train))
        for _ in range(self.epochs):
            self.network.train()
            h, z = self.network(averaged)
            loss = binary_cross_entropy_with_logits(z[train], y[train])
            if is_fair:
                loss = loss + self._fairness(h, z, s)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if self.beta:
                guessed = self.network.adversary(h.detach()).squeeze(1)
                adversary.zero_grad()
                binary_cross_entropy_with_logits(guessed, s).backward()
                adversary.step()
            self.network.eval()
            with torch.no_grad():
                best.add(self.network(validation)[1])
        best.restore()
        return self

    def predict_proba(self, data: Data) -> Tensor:
        """Probabilities of both classes for all nodes."""
        self.network.eval()
        with torch.no_grad():
            return as_probabilities(self.network(_averaged(data))[1])

    def _fairness(self, h: Tensor, z: Tensor, s: Tensor) -> Tensor:
        p = z.sigmoid()
        covariance = ((s - s.mean()) * (p - p.mean())).mean().abs()
        guessed = self.network.adversary(h).squeeze(1)
        adversary_loss = binary_cross_entropy_with_logits(guessed, s)
        return self.alpha * covariance - self.beta * adversary_loss

    def _estimated(self, averaged: Tensor) -> Tensor:
        """Probabilities of group 1."""
        self.network.eval()
        with torch.no_grad():
            return self.network.estimate(averaged).sigmoid()

    def _fit_estimator(self, averaged: Tensor, s: Tensor) -> None:
        layers = [*self.network.estimator.parameters(), *self.network.estimator_head.parameters()]
        optimiser = torch.optim.Adam(layers, self.lr, weight_decay=self.weight_decay)
        self.network.train()
        for _ in range(self.epochs):
            loss = binary_cross_entropy_with_logits(self.network.estimate(averaged), s)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


class FairGNNBackbone(FairGNN):
    """The classifier of FairGNN without covariance penalty and adversary."""

    def __init__(self, **settings: float) -> None:
        super().__init__(alpha=0.0, beta=0.0, **settings)  # type: ignore[arg-type]


class _Network(nn.Module):
    """The classifier (body and head), the estimator of the attribute, and the adversary."""

    def __init__(self, features: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.body, self.head = graph_layer(features, hidden), nn.Linear(hidden, 1)
        self.estimator, self.estimator_head = graph_layer(features, hidden), nn.Linear(hidden, 1)
        self.adversary = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, averaged: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and logits of class 1, from features averaged over neighbours."""
        h = self.dropout(relu(self.body(averaged)))
        return h, self.head(h).squeeze(1)

    def estimate(self, averaged: Tensor) -> Tensor:
        """Logits of group 1."""
        h = self.dropout(relu(self.estimator(averaged)))
        logits: Tensor = self.estimator_head(h).squeeze(1)
        return logits


def _averaged(data: Data) -> Tensor:
    """Features averaged over neighbours, which is all that one convolution needs of the graph."""
    convolution = Convolution(data.edge_index, data.x.size(0))
    return convolution(convolution.all_edges, data.x)
