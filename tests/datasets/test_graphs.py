from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sparse
import torch
from scipy.io import savemat
from torch_geometric.utils import homophily

from fairmp.datasets import (
    NBA,
    Bail,
    BailWithoutTime,
    Credit,
    Facebook100,
    German,
    PokecN,
    PokecNGraph,
    PokecProvince,
    PokecZ,
    formats,
    load,
)
from fairmp.datasets.statistics import PAPER, of_dataset, statistics
from fairmp.errors import InputError

COUNT = 24
RNG = np.random.default_rng(0)


def ring(ids) -> list[tuple[int, int]]:
    ids = list(ids)
    return list(zip(ids, [*ids[1:], ids[0]], strict=True))


def write_edges(path: Path, rows, form: str = "{}\t{}\n") -> None:
    text = "".join(form.format(a, b) for a, b in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def social(label: str, sens: str, features: int = 5) -> pd.DataFrame:
    columns = {
        "user_id": [10**18 + 3 * k for k in range(COUNT)],
        "public": RNG.integers(0, 2, COUNT),
        sens: np.arange(COUNT) % 2,
        "AGE": RNG.integers(0, 60, COUNT).astype(float),
        label: np.arange(COUNT) // 2 % 4 - 1,
    }
    for k in range(features):
        columns[f"hobby {k}"] = RNG.integers(0, 2, COUNT)
    return pd.DataFrame(columns)


@pytest.fixture
def folder(tmp_path: Path, no_data) -> Path:
    """A data folder with tiny files in every format."""
    nba = social("SALARY", "country")
    (tmp_path / "nba").mkdir()
    nba.to_csv(tmp_path / "nba" / "nba.csv", index=False)
    write_edges(tmp_path / "nba" / "nba_relationship.txt", ring(nba["user_id"]))
    for stem in ("region_job", "region_job_2"):
        frame = social("I_am_working_in_field", "region", 40)
        frame.to_csv(tmp_path / f"{stem}.csv", index=False)
        write_edges(tmp_path / f"{stem}_relationship.txt", ring(frame["user_id"]))
    (tmp_path / "pokec_bb").mkdir()
    frame.to_csv(tmp_path / "pokec_bb" / "banskobystricky_processed.csv", index=False)
    write_edges(tmp_path / "pokec_bb" / "banskobystricky.txt", ring(frame["user_id"]))

    german = pd.DataFrame(
        {
            "GoodCustomer": [1, -1] * 12,
            "Gender": ["Male", "Male", "Female"] * 8,
            "Age": RNG.integers(19, 75, COUNT),
            "PurposeOfLoan": ["Electronics", "Car"] * 12,
            "OtherLoansAtStore": 0,
            "LoanAmount": RNG.integers(250, 18_000, COUNT),
        }
    )
    german.to_csv(tmp_path / "german.csv", index=False, lineterminator="\r\n")
    write_edges(tmp_path / "german_edges.txt", ring(range(COUNT)), "{:.18e} {:.18e}\n")
    credit = pd.DataFrame(
        {
            "NoDefaultNextMonth": [1, 0] * 12,
            "Single": 1,
            "Age": [0, 0, 1] * 8,
            "MaxBill": RNG.integers(0, 2000, COUNT),
        }
    )
    credit.to_csv(tmp_path / "credit.csv", index=False)
    both = [*ring(range(COUNT)), *((b, a) for a, b in ring(range(COUNT))), (3, 3)]
    write_edges(tmp_path / "graph_credit.edgelist", both, "{},{}\n")
    bail = pd.DataFrame(
        {"WHITE": [0, 1, 1] * 8, "AGE": range(COUNT), "RECID": [0, 1] * 12, "TIME": 0}
    )
    bail.to_csv(tmp_path / "bail.csv", index=False)
    write_edges(tmp_path / "bail_edges.txt.gz", ring(range(COUNT)), "{:.18e} {:.18e}\n")

    graph = tmp_path / "pokec_n_graph"
    graph.mkdir()
    one, other = np.array(both).T
    matrix = sparse.csr_matrix((np.ones(len(both)), (one, other)), shape=(COUNT, COUNT))
    sparse.save_npz(graph / "edges.npz", matrix)
    np.save(graph / "labels.npy", np.array([[k, k % 4] for k in range(0, COUNT, 2)], np.int32))
    np.save(graph / "sens.npy", (np.arange(COUNT) // 2 % 2)[:, None])
    facebook = tmp_path / "facebook100"
    facebook.mkdir()
    codes = np.arange(COUNT)
    info = [
        codes % 3,
        codes % 3,
        7 + 0 * codes,
        codes,
        codes % 2,
        2005 + codes % 4,
        5 * (codes % 2),
    ]
    loopless = sparse.csc_matrix(matrix - sparse.diags(matrix.diagonal()))
    savemat(facebook / "Cornell5.mat", {"A": loopless, "local_info": np.stack(info, 1) * 1.0})
    region = {"region": np.arange(COUNT) // 2 % 2}
    attributes = tmp_path / "pokec_n_attributes"
    attributes.mkdir()
    pd.DataFrame({"gender": 1.0, **region, "AGE": np.arange(COUNT) * 1.0}).to_csv(
        attributes / "pokec-n_node_attribute.csv", index=False
    )
    pd.DataFrame({"Label": np.arange(COUNT) % 2}).to_csv(
        attributes / "pokec-n_node_label.csv", index=False
    )
    return tmp_path


FEATURES = {
    NBA: ["public", "AGE", *(f"hobby {k}" for k in range(5))],
    PokecZ: ["public", "AGE", *(f"hobby {k}" for k in range(40))],
    PokecN: ["public", "AGE", *(f"hobby {k}" for k in range(40))],
    PokecProvince: ["public", "AGE", *(f"hobby {k}" for k in range(40))],
    PokecNGraph: ["gender", "AGE", "public"],
    German: ["Age", "LoanAmount"],
    Credit: ["MaxBill"],
    Bail: ["AGE", "TIME"],
    Facebook100: ["major=7", "dorm=1", "high_school=5"],
}


@pytest.mark.parametrize("cls", FEATURES)
def test_graphs_have_the_same_attributes(folder, cls):
    dataset = cls(folder, verify=False)
    data = dataset[0]
    data.validate(raise_on_error=True)
    assert len(dataset) == 1
    assert dataset.num_features == len(FEATURES[cls])
    assert data.feature_names == FEATURES[cls]
    assert data.x.dtype == torch.float32
    assert data.edge_index.dtype == data.y.dtype == data.sens.dtype == torch.int64
    expected = sorted(edge for a, b in ring(range(COUNT)) for edge in ((a, b), (b, a)))
    assert data.edge_index.T.tolist() == [list(edge) for edge in expected]
    assert set(data.y.tolist()) <= {-1, 0, 1}
    assert set(data.sens.tolist()) == {0, 1}
    assert len(data.class_names) == len(data.group_names) == 2
    assert data.name == cls.source.title
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(0).tolist() == ((data.y >= 0) & (data.sens >= 0)).long().tolist()
    assert data.report.nodes == data.report.edges == COUNT


def test_multiclass_keeps_labels_above_one(folder):
    binary, several = (PokecZ(folder, verify=False, multiclass=m)[0] for m in (False, True))
    assert several.y.unique().tolist() == [-1, 0, 1, 2]
    assert several.class_names == ["0", "1", "2"]
    assert binary.y.tolist() == several.y.clamp(max=1).tolist()
    assert binary.class_names == ["0", "1 or more"]
    assert binary.report.unknown_labels == int((several.y < 0).sum())


def test_german_labels_and_groups(folder):
    data = German(folder, verify=False)[0]
    assert data.y.tolist() == [1, 0] * 12
    assert data.sens.tolist() == [0, 0, 1] * 8
    assert data.group_names == ["Male", "Female"]


def test_sens_in_features_adds_a_column(folder):
    data = Bail(folder, verify=False, sens_in_features=True)[0]
    assert data.feature_names == ["AGE", "TIME", "WHITE"]
    assert data.x[:, 2].tolist() == data.sens.tolist()


def test_scale_none_minmax_and_standard(folder):
    raw = pd.read_csv(folder / "nba" / "nba.csv")
    ages = raw["AGE"].to_numpy()
    none, minmax, standard = (
        NBA(folder, verify=False, scale=scale)[0] for scale in ("none", "minmax", "standard")
    )
    assert none.x[:, 1].tolist() == ages.tolist()
    assert (minmax.x[:, 1].min(), minmax.x[:, 1].max()) == (0, 1)
    np.testing.assert_allclose(standard.x[:, 1], (ages - ages.mean()) / ages.std(), rtol=1e-5)
    assert standard.x[:, 0].tolist() == raw["public"].tolist()
    with pytest.raises(InputError, match="scale: 'x'"):
        NBA(folder, scale="x")


def test_transform_and_seed(folder):
    data = NBA(folder, verify=False, transform=lambda graph: graph.update({"seen": True}))[0]
    assert data.seen
    other = NBA(folder, verify=False, seed=5)[0]
    assert not torch.equal(data.train_mask, other.train_mask)


def test_pokec_n_graph_has_its_own_name(folder):
    data = PokecNGraph(folder, verify=False, scale="none")[0]
    assert data.name == "Pokec-n, 3 features"
    assert data.y.tolist()[:8] == [0, -1, 1, -1, 0, -1, 1, -1]
    assert data.x[:, 1].tolist() == list(range(COUNT))
    assert data.x[:, 2].tolist() == [0, 1] * 12
    np.save(folder / "pokec_n_graph" / "sens.npy", np.zeros(3))
    with pytest.raises(InputError, match="do not belong together"):
        PokecNGraph(folder, verify=False)


def test_facebook_columns_as_label_and_groups(folder):
    data = Facebook100(folder, verify=False)[0]
    assert data.y.tolist() == [-1, 0, 1] * 8
    assert data.sens.tolist() == [0, 0, 1, 1] * 6
    assert data.class_names == ["gender = 1", "gender = 2"]
    assert data.group_names == ["year < 2007", "year ≥ 2007"]
    assert data.x.tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]] * 12
    data = Facebook100(folder, verify=False, label="year >= 2006", sensitive="minor")[0]
    assert data.y.tolist() == [0, 1, 1, 1] * 6
    assert data.group_names == [f"minor = {k}" for k in range(1, 6)]
    assert data.sens.tolist() == [-1, *range(5), *[-1] * 18]
    assert data.report.unknown_groups == 19
    assert any("minor: the 5 most frequent of 23 values" in note for note in data.report.notes)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"label": "sex"}, "label"),
        ({"sensitive": "year>2007"}, "sensitive"),
        ({"sensitive": "gender"}, "sensitive"),
        ({"sensitive": "year>=3000"}, "sensitive"),
        ({"label": "major"}, "label"),
    ],
)
def test_facebook_refuses_wrong_columns(folder, options, argument):
    with pytest.raises(InputError) as caught:
        Facebook100(folder, verify=False, **options)
    assert caught.value.argument == argument


def test_facebook_refuses_a_broken_file(folder):
    for content in (b"not Matlab" * 99, b""):
        (folder / "facebook100" / "Cornell5.mat").write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read Cornell5\.mat"):
            Facebook100(folder, verify=False)


def test_real_facebook_graph(real_data):
    data = Facebook100(real_data)[0]
    assert (data.num_nodes, data.num_edges, data.num_features) == (18_660, 2 * 790_777, 574)
    assert not any(name.startswith(("gender", "year")) for name in data.feature_names)
    row = statistics(data)
    shares = (row.sens_homophily, row.label_homophily_labelled)
    assert [f"{100 * share:.1f}" for share in shares] == ["80.6", "54.6"]
    years = Facebook100(real_data, sensitive="year")[0]
    assert years.group_names == [f"year = {year}" for year in range(2005, 2010)]
    assert load("facebook100", real_data).name == "Facebook100 Cornell5"


def test_load_by_name(folder):
    assert load("Pokec-Z", folder, verify=False).name == "Pokec-z"
    assert of_dataset("nba", folder, verify=False).classes == {"0": 6, "1": 6, "2": 6}


def test_verify_refuses_other_files(folder):
    with pytest.raises(InputError, match=r"NBA: .*nba\.csv is not the published file.*fe295195"):
        NBA(folder)


def test_verify_notes_unknown_checksums(folder, monkeypatch):
    monkeypatch.setattr("fairmp.datasets.raw.sha256_of", lambda _: "62f299e6" + 56 * "0")
    notes = PokecZ(folder)[0].report.notes
    assert "region_job.csv: only the first 8 digits of its SHA-256 are known; they agree" in notes
    assert "region_job_relationship.txt: its SHA-256 is unknown and was not checked" in notes


@pytest.mark.parametrize("name", ["region_job.csv", "region_job_relationship.txt"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_partial_takes_a_file_cut_short(folder, name, cut):
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    broken = lines[-1].split(b"\t" if name.endswith("txt") else b",")
    half = {1: broken[0], 2: broken[0] + lines[-1][len(broken[0]) :][:1], 3: b""}[cut]
    if cut == 3 and name.endswith("txt"):
        half = b"1000000000000000099\t1000000000000000000\n"
    path.write_bytes(b"".join(lines[:-1]) + half)
    line = f"line {len(lines):,} " if cut < 3 else "edge rows name an id"
    with pytest.raises(InputError, match=line):
        PokecZ(folder, verify=False)
    data = PokecZ(folder, partial=True)[0]
    num_nodes = COUNT - (name == "region_job.csv")
    assert data.num_nodes == num_nodes
    assert data.report.edges < COUNT


def test_other_columns_are_refused(folder):
    (folder / "bail.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"Bail: bail\.csv has no column 'RECID'"):
        Bail(folder, verify=False)
    german = (folder / "german.csv").read_text()
    (folder / "german.csv").write_text(german.replace("Female", "Woman"))
    with pytest.raises(InputError, match="German: 'Woman' is not one of Male, Female"):
        German(folder, verify=False)
    (folder / "graph_credit.edgelist").write_text("0,a\n")
    with pytest.raises(InputError, match=r"Credit: .*not integers"):
        Credit(folder, verify=False)
    (folder / "credit.csv").write_text("NoDefaultNextMonth,Single,Age,Bill\n1,1,1,much\n")
    (folder / "graph_credit.edgelist").write_text("0,0\n")
    with pytest.raises(InputError, match="Credit: column 'Bill' has text"):
        Credit(folder, verify=False)


def test_second_load_comes_from_the_cache(folder, own_cache, monkeypatch):
    first = PokecZ(folder, verify=False)[0]
    cached = list((own_cache / "processed").iterdir())
    assert len(cached) == 1

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the raw file was read again")

    with monkeypatch.context() as patch:
        patch.setattr(formats, "read_raw", never)
        second = PokecZ(folder, verify=False)[0]
        other = PokecZ(folder, verify=False, multiclass=True, scale="none")[0]
    for key in ("x", "edge_index", "y", "sens", "train_mask"):
        assert torch.equal(first[key], second[key])
    assert second.feature_names == first.feature_names
    assert second.report == first.report
    assert int(other.y.max()) == 2
    assert list((own_cache / "processed").iterdir()) == cached


def test_changed_file_replaces_the_cache(folder, own_cache):
    before = NBA(folder, verify=False)[0]
    path = folder / "nba" / "nba_relationship.txt"
    rows = path.read_text().splitlines(keepends=True)
    stat = path.stat()
    path.write_text("".join(rows[:-1]) + rows[0])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = NBA(folder, verify=False)[0]
    assert after.num_edges == before.num_edges - 2
    assert after.report.repeated == 1
    assert len(list((own_cache / "processed").iterdir())) == 1


def test_damaged_cache_is_built_again(folder, own_cache):
    first = NBA(folder, verify=False)[0]
    (cached,) = (own_cache / "processed").iterdir()
    good = bytearray(cached.read_bytes())
    good[-3] ^= 0xFF
    for content in (bytes(good), bytes(good[:50]), b"", b"no cache at all"):
        cached.write_bytes(content)
        again = NBA(folder, verify=False)[0]
        assert torch.equal(again.x, first.x)
        assert torch.equal(again.edge_index, first.edge_index)


def test_cache_false_writes_nothing(folder, own_cache):
    NBA(folder, verify=False, cache=False)
    assert not own_cache.exists()


def test_verified_load_does_not_take_an_unverified_cache(folder):
    NBA(folder, verify=False)
    with pytest.raises(InputError, match="not the published file"):
        NBA(folder)


def test_statistics_agree_with_pyg(folder):
    data = PokecZ(folder, verify=False, multiclass=True)[0]
    ours = statistics(data)
    assert ours.sens_homophily == pytest.approx(homophily(data.edge_index, data.sens))
    assert ours.label_homophily == pytest.approx(homophily(data.edge_index, data.y))
    labelled = data.subgraph(data.y >= 0)
    assert ours.label_homophily_labelled == pytest.approx(
        homophily(labelled.edge_index, labelled.y)
    )
    assert sum(ours.classes.values()) == ours.labelled == int((data.y >= 0).sum())
    assert ours.groups == {"region = 0": 12, "region = 1": 12}


@pytest.mark.parametrize(
    ("cls", "nodes", "edges", "features"),
    [
        (PokecProvince, 7_949, 16_004, 240),
        (German, 1_000, 21_742, 26),
        (Credit, 30_000, 137_377, 12),
        (Bail, 18_876, 311_870, 17),
    ],
)
def test_real_graphs_have_the_known_sizes(real_data, cls, nodes, edges, features):
    data = cls(real_data)[0]
    assert (data.num_nodes, data.num_edges, data.num_features) == (nodes, 2 * edges, features)
    assert data.report.dangling == 0


@pytest.mark.parametrize(
    ("cls", "head", "features"), [(PokecZ, "pokec_z_head", 276), (PokecN, "pokec_n_head", 265)]
)
def test_heads_of_the_real_pokec_files(real_data, cls, head, features):
    with pytest.raises(InputError, match="is not the published file"):
        cls(real_data / head)
    message = r"line 3,\d\d\d .* has \d+ cells where 2\d\d were expected"
    with pytest.raises(InputError, match=message):
        cls(real_data / head, verify=False)
    data = cls(real_data / head, partial=True)[0]
    assert data.num_features == features == PAPER[cls.source.key].features
    raw = pd.read_csv(real_data / head / cls.source.files["nodes"][0].name).iloc[:-1]
    assert data.num_nodes == len(raw)
    assert data.sens.tolist() == raw["region"].tolist()
    assert data.y.tolist() == raw["I_am_working_in_field"].clip(upper=1).tolist()
    unscaled = cls(real_data / head, partial=True, scale="none")[0]
    np.testing.assert_array_equal(unscaled.x, raw[data.feature_names].to_numpy(np.float32))
    assert data.report.dangling > 0


def test_real_pokec_n_graph_loads_from_the_cache(real_data):
    PokecNGraph(real_data)
    start = time.perf_counter()
    PokecNGraph(real_data)
    assert time.perf_counter() - start < 2


def test_bail_without_time_has_no_trace_of_it(folder):
    data = BailWithoutTime(folder, verify=False)[0]
    assert data.feature_names == ["AGE"]
    # The same, by the definition, of AGE and WHITE alone.
    table = pd.read_csv(folder / "bail.csv")
    x = table[["AGE", "WHITE"]].to_numpy(float)
    similarity = 1 / (1 + np.linalg.norm(x[:, None] - x[None], axis=2))
    np.fill_diagonal(similarity, 0)
    near = similarity > 0.6 * similarity.max(1, keepdims=True)
    expected = np.argwhere(near | near.T)
    assert data.edge_index.T.tolist() == expected.tolist()


def test_similar_nodes_are_the_edges_of_bail(real_data):
    table = pd.read_csv(real_data / "bail" / "bail.csv")
    pairs = formats.similar_nodes(table.drop(columns="RECID").to_numpy(float), 0.6)
    edge_index = Bail(real_data)[0].edge_index
    assert pairs.T.tolist() == edge_index[:, edge_index[0] < edge_index[1]].T.tolist()
    data = BailWithoutTime(real_data)[0]
    assert (data.num_nodes, data.num_edges, data.num_features) == (18_876, 2 * 336_215, 16)
