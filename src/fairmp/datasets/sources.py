"""What the benchmark graphs are made of: their raw files, SHA-256 sums and public homes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fairmp.errors import InputError

FAIRGNN = "https://raw.githubusercontent.com/EnyanDai/FairGNN/main/dataset"
NIFTY = "https://raw.githubusercontent.com/chirag126/nifty/main/dataset"

SumKnown = Literal["known", "partial", "unknown"]


@dataclass(frozen=True)
class RawFile:
    """One raw file as it lies on disk.

    Attributes:
        name: Its name; ``name + ".gz"`` is found as well.
        sha256: Its sum; the first digits where no more is known; empty where nothing is.
        url: Its public home, or an archive's that holds it; empty where none is known.
    """

    name: str
    sha256: str = ""
    url: str = ""

    @property
    def sum_known(self) -> SumKnown:
        """Whether the SHA-256 is known in full, by its first digits only, or not at all."""
        if not self.sha256:
            return "unknown"
        return "known" if len(self.sha256) == 64 else "partial"


@dataclass(frozen=True)
class Source:
    """The raw files of one data set.

    Attributes:
        key: The name typed on the command line.
        title: The name shown to people.
        class_name: Its class in :mod:`fairmp.datasets`.
        folders: The folders its files may lie in, under a data folder; the files may also lie
            directly in the data folder.
        files: For each role the files that can play it, the preferred one first.
    """

    key: str
    title: str
    class_name: str
    folders: tuple[str, ...]
    files: dict[str, tuple[RawFile, ...]]


NBA = Source(
    key="nba",
    title="NBA",
    class_name="NBA",
    folders=("nba", "NBA"),
    files={
        "nodes": (
            RawFile(
                "nba.csv",
                "fe295195cff01f20b785fe9de1e24062123cb146bdae080ce8b3ea8315d45b80",
                f"{FAIRGNN}/NBA/nba.csv",
            ),
        ),
        "edges": (
            RawFile(
                "nba_relationship.txt",
                "14c73245e5d6b6457cce7504e2bb0ded6b81155e25bf0e7d23793df7c01b4873",
                f"{FAIRGNN}/NBA/nba_relationship.txt",
            ),
        ),
    },
)


def _pokec(key: str, title: str, class_name: str, stem: str, prefix: str) -> Source:
    return Source(
        key=key,
        title=title,
        class_name=class_name,
        folders=(key.replace("-", "_"), "pokec"),
        files={
            "nodes": (RawFile(f"{stem}.csv", prefix, f"{FAIRGNN}/pokec/{stem}.csv"),),
            "edges": (
                RawFile(
                    f"{stem}_relationship.txt",
                    url=f"{FAIRGNN}/pokec/{stem}_relationship.txt",
                ),
            ),
        },
    )


POKEC_Z = _pokec("pokec-z", "Pokec-z", "PokecZ", "region_job", "62f299e6")
POKEC_N = _pokec("pokec-n", "Pokec-n", "PokecN", "region_job_2", "2b236a69")

POKEC_PROVINCE = Source(
    key="pokec-province",
    title="Pokec province",
    class_name="PokecProvince",
    folders=("pokec_bb", "pokec_province"),
    files={
        "nodes": (
            RawFile(
                "banskobystricky_processed.csv",
                "18087139c5df3ba436e38289c480dc20607afd9b76927dbf93bc94296f9b62f6",
            ),
        ),
        "edges": (
            RawFile(
                "banskobystricky.txt",
                "b357d9d79040ef12e916038f9d40c4cc44aa84020c55dde038534c43859b0bcd",
            ),
        ),
    },
)

POKEC_N_GRAPH = Source(
    key="pokec-n-graph",
    title="Pokec-n, 3 features",
    class_name="PokecNGraph",
    folders=("pokec_n_graph", "pokec_n_attributes"),
    files={
        "attributes": (
            RawFile(
                "pokec-n_node_attribute.csv",
                "d2e6bb80f043ba38c2677c77c66000dd275f4bffcaf8807e7803c8713924126b",
            ),
        ),
        "public": (
            RawFile(
                "pokec-n_node_label.csv",
                "f964d0868a45c19a37b6c3ed0d3b1b3d3494cf2889426bf31e504643fb7d2d1f",
            ),
        ),
        "edges": (
            RawFile(
                "edges.npz",
                "33a45dfa02dc4f0881e07b4e016f7fe33e4b906f1983264a74ad6d70186e9098",
            ),
        ),
        "labels": (
            RawFile(
                "labels.npy",
                "70cfb36200604f592f824106593a3430005803ead8cf87718c5c3c6e048cc481",
            ),
        ),
        "sens": (
            RawFile(
                "sens.npy",
                "5b7c88c54db3113f874b9a882d6a0b36a8ef0e9f7c208f334a205b2fc73d6cb1",
            ),
        ),
    },
)

GERMAN = Source(
    key="german",
    title="German",
    class_name="German",
    folders=("german",),
    files={
        "nodes": (
            RawFile(
                "german.csv",
                "49cc549b1ca3f1650e3bdcd8cfce62313c763abfbcbf785d32b07fb76ae078ca",
                f"{NIFTY}/german/german.csv",
            ),
        ),
        "edges": (
            RawFile(
                "german_edges.txt",
                "404d107384e05a14ce9befe04a710d7df0a7492095569dc35ffb5d47742ee300",
                f"{NIFTY}/german/german_edges.txt",
            ),
        ),
    },
)

CREDIT = Source(
    key="credit",
    title="Credit",
    class_name="Credit",
    folders=("credit",),
    files={
        "nodes": (
            RawFile(
                "credit.csv",
                "5d7a93f25a09dd1648c78b5e0c6a883ca832ee88259d89dfe1062e8c848bfe5d",
                f"{NIFTY}/credit/credit.csv",
            ),
        ),
        "edges": (
            RawFile(
                "graph_credit.edgelist",
                "8a3a37e781d17ae1a489f3ef95e7552667294d151cc4e1990ebd704a8a9e4501",
            ),
            RawFile("credit_edges.txt", url=f"{NIFTY}/credit/credit_edges.txt.zip"),
        ),
    },
)

BAIL = Source(
    key="bail",
    title="Bail",
    class_name="Bail",
    folders=("bail",),
    files={
        "nodes": (
            RawFile(
                "bail.csv",
                "11a7c62be2b7aed7cb069624789755d5f57acc8b69580564e2401b084e2d5faf",
                f"{NIFTY}/bail/bail.csv",
            ),
        ),
        "edges": (
            RawFile(
                "bail_edges.txt",
                "c43049fb5d9a0a994fcf4931fb34838716e4bf40e4ae30b9e504d9f4362ca0fe",
                f"{NIFTY}/bail/bail_edges.txt",
            ),
        ),
    },
)

SOURCES = (NBA, POKEC_Z, POKEC_N, POKEC_PROVINCE, POKEC_N_GRAPH, GERMAN, CREDIT, BAIL)


def source_named(name: str, beside: Sequence[str] = ()) -> Source:
    """Return the source with this key, title or class name, whatever its case.

    Args:
        name: What a person typed.
        beside: Names that are no source's and could have been typed too, to be told with the keys.

    Example:
        >>> source_named("PokecZ").key, source_named("nba").title
        ('pokec-z', 'NBA')
        >>> source_named("nbs")
        Traceback (most recent call last):
        fairmp.errors.InputError: data set: there is no 'nbs', did you mean 'nba'?; there ...
    """
    wanted = name.casefold().replace("_", "-")
    for source in SOURCES:
        names = (source.key, source.title, source.class_name)
        if wanted in (n.casefold() for n in names):
            return source
    keys = [*beside, *(source.key for source in SOURCES)]
    close = difflib.get_close_matches(wanted, keys, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise InputError("data set", f"there is no {name!r}{hint}", f"there are {', '.join(keys)}")
