"""Any PyG data set as fairmp reads graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, ToSparseTensor, ToUndirected

from fairmp import FMP, Debiaser, FairClassifier, audit, debias, evaluate
from fairmp.datasets import SensitiveColumn, social_network
from fairmp.datasets.transforms import as_read
from fairmp.errors import InputError

SIGNS = "-1 and 1 are taken for two groups"


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=300, average_degree=6, seed=0)


def with_signs(data: Data) -> Data:
    """The same graph with groups −1 and 1, as the paper writes them."""
    signed = Data(**data.to_dict())
    signed.sens = 2 * data.sens - 1
    signed.group_names = None
    return signed


def test_sensitive_column_of_any_data_set() -> None:
    x = torch.tensor([[0.5, -1.0, 3.0], [0.1, 1.0, 2.0], [0.2, 1.0, 5.0]])
    graph = Data(x=x, edge_index=torch.tensor([[0, 1], [1, 2]]), feature_names=["a", "sex", "b"])
    by_name = Compose([ToUndirected(), SensitiveColumn("sex")])(graph)
    assert by_name.sens.tolist() == [0, 1, 1]
    assert (by_name.group_names, by_name.feature_names) == (["-1", "1"], ["a", "b"])
    assert by_name.x.tolist() == x[:, [0, 2]].tolist()
    assert graph.x is x
    assert "sens" not in graph
    kept = SensitiveColumn(-2, keep=True)(graph)
    assert (kept.x is x, kept.sens.tolist()) == (True, [0, 1, 1])
    sparse = SensitiveColumn(1)(Data(x=x.to_sparse_coo()))
    assert torch.equal(sparse.x, by_name.x)
    for column, message in {3: "3 of 3 columns", "sexx": "did you mean 'sex'"}.items():
        with pytest.raises(InputError, match=message):
            SensitiveColumn(column)(graph)
    with pytest.raises(InputError, match="has 1 different values"):
        SensitiveColumn(0)(Data(x=torch.ones(3, 2)))


def test_adj_t_stands_for_edge_index(data: Data) -> None:
    graph = Data(**data.to_dict())
    sparse = ToSparseTensor(layout=torch.sparse_csr, remove_edge_index=True)(graph)
    assert "edge_index" not in sparse
    read = as_read(sparse)
    assert {*map(tuple, read.edge_index.T.tolist())} == {*map(tuple, data.edge_index.T.tolist())}
    assert "edge_weight" not in read
    assert audit(sparse).to_dict() == audit(Data(**data.to_dict())).to_dict()
    weighted = Data(x=torch.ones(2, 1), adj_t=torch.tensor([[0.0, 0.5], [0.0, 0.0]]).to_sparse())
    assert as_read(weighted).edge_index.tolist() == [[1], [0]]  # from column to row
    assert as_read(weighted).edge_weight.tolist() == [0.5]
    model = FairClassifier(FMP(2), backbone="mlp", epochs=2, folds=1).fit(sparse, bootstrap=0)
    expected = FairClassifier(FMP(2), backbone="mlp", epochs=2, folds=1).fit(data, bootstrap=0)
    torch.testing.assert_close(model.predict_proba(sparse), expected.predict_proba(data))


def test_groups_minus_one_and_one_are_two_groups(data: Data) -> None:
    signed = with_signs(data)
    expected = FairClassifier(FMP(2), backbone="mlp", epochs=2, folds=1).fit(data, bootstrap=0)
    with pytest.warns(UserWarning, match=SIGNS):
        model = FairClassifier(FMP(2), backbone="mlp", epochs=2, folds=1).fit(signed, bootstrap=0)
    assert model.groups_ == ["-1", "1"]
    proba = model.predict_proba(signed)  # of which the model knows by now
    torch.testing.assert_close(proba, expected.predict_proba(data))
    # Per node, a part without one of the groups gets the same correction.
    part = signed.sens == -1
    alone = model.predict_proba(signed, mode="per-node", nodes=part)
    torch.testing.assert_close(
        alone, expected.predict_proba(data, mode="per-node", nodes=data.sens == 0)
    )


def test_layer_and_corrections_read_minus_one_and_one(data: Data) -> None:
    signed, generator = 2 * data.sens - 1, torch.Generator().manual_seed(0)
    logits = torch.randn(data.num_nodes, 2, generator=generator) + data.sens.unsqueeze(1)
    layer = FMP(2).eval()
    expected = layer(logits, data.edge_index, data.sens)
    with pytest.warns(UserWarning, match=SIGNS):
        torch.testing.assert_close(layer(logits, data.edge_index, signed), expected)
    with pytest.warns(UserWarning, match=SIGNS):
        corrected = debias(logits, signed)
    torch.testing.assert_close(corrected, debias(logits, data.sens))
    with pytest.warns(UserWarning, match=SIGNS):
        corrector = Debiaser().fit(logits, sensitive_features=signed)
    assert corrector.groups_[0][1] == ("-1", "1")
    one = corrector.transform(logits[:1], sensitive_features=signed[:1])
    plain = Debiaser().fit(logits, sensitive_features=data.sens)
    torch.testing.assert_close(one, plain.transform(logits[:1], sensitive_features=data.sens[:1]))
    with pytest.warns(UserWarning, match=SIGNS):
        measured = evaluate(data.y, logits, sensitive_features=signed, bootstrap=0)
    assert measured.dp == evaluate(data.y, logits, sensitive_features=data.sens, bootstrap=0).dp
    # With a third value, −1 is unknown.
    assert np.isfinite(debias(logits.numpy(), np.where(np.arange(300) < 9, -1, data.sens))).all()
