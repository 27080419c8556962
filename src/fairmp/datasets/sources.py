"""Descriptions of the benchmark graphs: raw files, checksums, public homes and columns."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote

from fairmp.errors import InputError

_GITHUB = "https://raw.githubusercontent.com"
FAIRGNN = f"{_GITHUB}/EnyanDai/FairGNN/main/dataset"
NIFTY = f"{_GITHUB}/chirag126/nifty/main/dataset"
FACEBOOK = f"{_GITHUB}/CUAI/Non-Homophily-Large-Scale/master/data/facebook100"

SHA256 = dict(
    line.split()
    for line in """
nba.csv fe295195cff01f20b785fe9de1e24062123cb146bdae080ce8b3ea8315d45b80
nba_relationship.txt 14c73245e5d6b6457cce7504e2bb0ded6b81155e25bf0e7d23793df7c01b4873
region_job.csv 62f299e6
region_job_2.csv 2b236a69
banskobystricky_processed.csv 18087139c5df3ba436e38289c480dc20607afd9b76927dbf93bc94296f9b62f6
banskobystricky.txt b357d9d79040ef12e916038f9d40c4cc44aa84020c55dde038534c43859b0bcd
pokec-n_node_attribute.csv d2e6bb80f043ba38c2677c77c66000dd275f4bffcaf8807e7803c8713924126b
pokec-n_node_label.csv f964d0868a45c19a37b6c3ed0d3b1b3d3494cf2889426bf31e504643fb7d2d1f
edges.npz 33a45dfa02dc4f0881e07b4e016f7fe33e4b906f1983264a74ad6d70186e9098
labels.npy 70cfb36200604f592f824106593a3430005803ead8cf87718c5c3c6e048cc481
sens.npy 5b7c88c54db3113f874b9a882d6a0b36a8ef0e9f7c208f334a205b2fc73d6cb1
german.csv 49cc549b1ca3f1650e3bdcd8cfce62313c763abfbcbf785d32b07fb76ae078ca
german_edges.txt 404d107384e05a14ce9befe04a710d7df0a7492095569dc35ffb5d47742ee300
credit.csv 5d7a93f25a09dd1648c78b5e0c6a883ca832ee88259d89dfe1062e8c848bfe5d
graph_credit.edgelist 8a3a37e781d17ae1a489f3ef95e7552667294d151cc4e1990ebd704a8a9e4501
bail.csv 11a7c62be2b7aed7cb069624789755d5f57acc8b69580564e2401b084e2d5faf
bail_edges.txt c43049fb5d9a0a994fcf4931fb34838716e4bf40e4ae30b9e504d9f4362ca0fe
Cornell5.mat d9ff76ae34e855cb77b0779a3a320f7f73f848901cb13352e2734c17804c4aec
""".strip().splitlines()
)
"""SHA-256 by file name; only the first digits are known for the node tables of Pokec."""

Checksum = Literal["known", "partial", "unknown"]


@dataclass(frozen=True)
class RawFile:
    """One raw file; a gzipped copy with ``.gz`` after its name is accepted as well."""

    name: str
    sha256: str = ""  # of the uncompressed file; its first digits, or empty, if not all is known
    url: str = ""  # of the file or a zip archive with it; empty if no public home is known

    @property
    def checksum(self) -> Checksum:
        """Whether the SHA-256 is known in full, in part, or not at all."""
        if not self.sha256:
            return "unknown"
        return "known" if len(self.sha256) == 64 else "partial"


@dataclass(frozen=True)
class Source:
    """Everything needed to find and read one benchmark graph."""

    key: str  # name on the command line
    title: str  # name in tables and reports
    class_name: str  # class in fairmp.datasets
    folders: tuple[str, ...]  # subfolders of a data folder its files may be in
    files: Mapping[str, tuple[RawFile, ...]]  # candidates per role, in order of preference
    label: str = ""
    sensitive: str = ""
    id_column: str | None = None  # rows are numbered from 0 without one
    layout: Literal["tables", "numpy", "matlab"] = "tables"
    drop: tuple[str, ...] = ()  # columns that are not features
    label_values: Mapping[int, int] = field(default_factory=dict)  # class of each label value
    group_values: Mapping[str, int] = field(default_factory=dict)  # group of each sensitive value


def _files(home: str = "", **names: str) -> dict[str, tuple[RawFile, ...]]:
    """Describe one file per role, of the public folder ``home`` if there is one."""
    return {
        role: (RawFile(name, SHA256.get(name, ""), f"{home}/{quote(name)}" if home else ""),)
        for role, name in names.items()
    }


_POKEC_COLUMNS = ("I_am_working_in_field", "region", "user_id")
_NBA_FILES = _files(f"{FAIRGNN}/NBA", nodes="nba.csv", edges="nba_relationship.txt")
_POKEC_Z_FILES = _files(
    f"{FAIRGNN}/pokec", nodes="region_job.csv", edges="region_job_relationship.txt"
)
_POKEC_N_FILES = _files(
    f"{FAIRGNN}/pokec", nodes="region_job_2.csv", edges="region_job_2_relationship.txt"
)
_PROVINCE_FILES = _files(nodes="banskobystricky_processed.csv", edges="banskobystricky.txt")
_POKEC_N_GRAPH_FILES = _files(
    attributes="pokec-n_node_attribute.csv",
    public="pokec-n_node_label.csv",
    edges="edges.npz",
    labels="labels.npy",
    sens="sens.npy",
)
_GERMAN_FILES = _files(f"{NIFTY}/german", nodes="german.csv", edges="german_edges.txt")
_CREDIT_FILES = _files(f"{NIFTY}/credit", nodes="credit.csv")
_CREDIT_FILES["edges"] = (
    *_files(edges="graph_credit.edgelist")["edges"],
    RawFile("credit_edges.txt", url=f"{NIFTY}/credit/credit_edges.txt.zip"),
)
_BAIL_FILES = _files(f"{NIFTY}/bail", nodes="bail.csv", edges="bail_edges.txt")

NBA = Source("nba", "NBA", "NBA", ("nba", "NBA"), _NBA_FILES, "SALARY", "country", "user_id")
POKEC_Z = Source(
    "pokec-z", "Pokec-z", "PokecZ", ("pokec_z", "pokec"), _POKEC_Z_FILES, *_POKEC_COLUMNS
)
POKEC_N = Source(
    "pokec-n", "Pokec-n", "PokecN", ("pokec_n", "pokec"), _POKEC_N_FILES, *_POKEC_COLUMNS
)
POKEC_PROVINCE = Source(
    "pokec-province",
    "Pokec province",
    "PokecProvince",
    ("pokec_bb", "pokec_province"),
    _PROVINCE_FILES,
    *_POKEC_COLUMNS,
)
POKEC_N_GRAPH = Source(
    "pokec-n-graph",
    "Pokec-n, 3 features",
    "PokecNGraph",
    ("pokec_n_graph", "pokec_n_attributes"),
    _POKEC_N_GRAPH_FILES,
    *_POKEC_COLUMNS,
    layout="numpy",
)
GERMAN = replace(
    Source("german", "German", "German", ("german",), _GERMAN_FILES, "GoodCustomer", "Gender"),
    drop=("OtherLoansAtStore", "PurposeOfLoan"),
    label_values={-1: 0, 1: 1},
    group_values={"Male": 0, "Female": 1},
)
CREDIT = replace(
    Source("credit", "Credit", "Credit", ("credit",), _CREDIT_FILES, "NoDefaultNextMonth", "Age"),
    drop=("Single",),
)
BAIL = Source("bail", "Bail", "Bail", ("bail",), _BAIL_FILES, "RECID", "WHITE")


def facebook100(name: str, label: str, sensitive: str) -> Source:
    """Describe the Facebook network of one school."""
    title, files = f"Facebook100 {name}", _files(FACEBOOK, graph=f"{name}.mat")
    names = ("facebook100", title, "Facebook100", ("facebook100",))
    return Source(*names, files, label, sensitive, layout="matlab")


FACEBOOK100 = facebook100("Cornell5", "gender", "year>=2007")
SOURCES = (NBA, POKEC_Z, POKEC_N, POKEC_PROVINCE, POKEC_N_GRAPH, GERMAN, CREDIT, BAIL, FACEBOOK100)


def source_named(name: str, others: Sequence[str] = ()) -> Source:
    """Return the source with this key, title or class name; suggest it or one of ``others``."""
    wanted = name.casefold().replace("_", "-")
    for source in SOURCES:
        if wanted in (n.casefold() for n in (source.key, source.title, source.class_name)):
            return source
    keys = [*others, *(source.key for source in SOURCES)]
    close = difflib.get_close_matches(wanted, keys, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise InputError("data set", f"there is no {name!r}{hint}", f"there are {', '.join(keys)}")
