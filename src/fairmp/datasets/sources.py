"""Descriptions of the benchmark graphs: raw files, checksums, public sources and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Literal
from urllib.parse import quote

from fairmp.errors import InputError

_GITHUB = "https://raw.githubusercontent.com"
FAIRGNN = f"{_GITHUB}/EnyanDai/FairGNN/main/dataset"
NIFTY = f"{_GITHUB}/chirag126/nifty/main/dataset"
FACEBOOK = f"{_GITHUB}/CUAI/Non-Homophily-Large-Scale/master/data/facebook100"

_REGISTRY = files("fairmp.datasets").joinpath("registry.txt").read_text(encoding="utf-8")
SHA256 = dict(line.split() for line in _REGISTRY.splitlines())
"""SHA-256 by file name; only the first digits are known for the node tables of Pokec."""


@dataclass(frozen=True)
class RawFile:
    """One raw file; a gzipped copy with ``.gz`` after its name is accepted as well."""

    name: str
    sha256: str = ""  # of the uncompressed file; its first digits, or empty, if not all is known
    url: str = ""  # of the file or a zip archive with it; empty if no public home is known

    @property
    def checksum(self) -> Literal["known", "partial", "unknown"]:
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
    similarity: float | None = None  # build the edges from the features, with this threshold
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
BAIL_WITHOUT_TIME = replace(
    BAIL,
    key="bail-without-time",
    title="Bail without TIME",
    class_name="BailWithoutTime",
    files={"nodes": _BAIL_FILES["nodes"]},
    drop=("TIME",),
    similarity=0.6,
)


def facebook100(name: str, label: str, sensitive: str) -> Source:
    """Describe the Facebook network of one school."""
    title, files = f"Facebook100 {name}", _files(FACEBOOK, graph=f"{name}.mat")
    names = ("facebook100", title, "Facebook100", ("facebook100",))
    return Source(*names, files, label, sensitive, layout="matlab")


FACEBOOK100 = facebook100("Cornell5", "gender", "year>=2007")
SOURCES = (
    *(NBA, POKEC_Z, POKEC_N, POKEC_PROVINCE, POKEC_N_GRAPH),
    *(GERMAN, CREDIT, BAIL, BAIL_WITHOUT_TIME, FACEBOOK100),
)


def source_named(name: str, others: Sequence[str] = (), *, argument: str = "name") -> Source:
    """Return the source with this key, title or class name; suggest it or one of ``others``.

    Args:
        name: key, title or class name.
        others: further names that may be meant.
        argument: the caller's argument with the name, for the error.
    """
    wanted = name.casefold().replace("_", "-")
    for source in SOURCES:
        if wanted in (n.casefold() for n in (source.key, source.title, source.class_name)):
            return source
    from fairmp.datasets.values import closest

    keys = [*others, *(source.key for source in SOURCES)]
    close = closest(wanted, keys)
    hint = f", did you mean {close!r}?" if close else ""
    raise InputError(
        argument, f"there is no data set {name!r}{hint}", f"there are {', '.join(keys)}"
    )
