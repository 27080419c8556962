"""The benchmark graphs as PyTorch Geometric data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar, get_args

import numpy as np
from torch_geometric.data import Data, InMemoryDataset

from fairmp.datasets import cache as disk
from fairmp.datasets import sources
from fairmp.datasets.columns import Scale, rescale
from fairmp.datasets.formats import ParsedGraph, RawGraph, parse
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.raw import FoundFile, PathLike, cache_folder, fetch
from fairmp.datasets.sources import Source, source_named
from fairmp.datasets.splits import with_split
from fairmp.datasets.tables import assemble
from fairmp.errors import InputError, check_choice


class FairGraph(InMemoryDataset):
    """One graph with labels, sensitive groups and a split; base class of the benchmark graphs.

    ``dataset[0]`` has ``x`` (float32), ``edge_index`` (both directions of every edge, sorted, no
    self-loops), ``y`` and ``sens`` (−1: unknown), ``train_mask``, ``val_mask``, ``test_mask``,
    ``feature_names``, ``class_names``, ``group_names``, ``name``, and a ``report`` on what was
    read. Id, label and sensitive column are not features.

    Args:
        root: Folder with the raw files, or to download them to; by default the folder in the
            environment variable ``FAIRMP_DATA``, then the user's cache.
        multiclass: Keep label values above 1 as separate classes; they count as 1 otherwise.
        sens_in_features: Add the sensitive column as the last feature.
        scale: ``"standard"`` (mean 0, variance 1), ``"minmax"`` or ``"none"``; columns of 0 and 1
            are left unchanged.
        seed: Seed of the split.
        transform: Applied to the graph at every access.
        partial: Drop broken last rows and edges with missing nodes; implies ``verify=False``.
        verify: Refuse a file whose SHA-256 differs from the published one, as far as it is known.
        cache: Keep the parsed graph in the user's cache folder.
        mirror: Address of a copy of a data folder to download from instead of the public homes.

    Example:
        >>> from fairmp.datasets import German
        >>> data = German(scale="minmax")[0]  # doctest: +SKIP
        >>> data.class_names, data.group_names, data.feature_names[:3]  # doctest: +SKIP
        (['0', '1'], ['Male', 'Female'], ['ForeignWorker', 'Single', 'Age'])
    """

    source: ClassVar[Source]

    def __init__(  # noqa: PLR0913
        self,
        root: PathLike | None = None,
        *,
        multiclass: bool = False,
        sens_in_features: bool = False,
        scale: Scale = "standard",
        seed: int = 0,
        transform: Callable[[Data], Data] | None = None,
        partial: bool = False,
        verify: bool = True,
        cache: bool = True,
        mirror: str | None = None,
    ) -> None:
        check_choice("scale", scale, get_args(Scale))
        super().__init__(None, transform)
        files = fetch(self.source, root, mirror=mirror)
        graph, report = _load(
            self.source, files, partial=partial, verify=verify and not partial, cache=cache
        )
        x, y, sens = graph.x, graph.y, graph.sens
        feature_names, class_names = graph.feature_names, graph.class_names
        if sens_in_features:
            filled = np.where(sens < 0, sens[sens >= 0].mean(), sens)
            x = np.concatenate([x, filled[:, None].astype(np.float32)], axis=1)
            feature_names = [*feature_names, self.source.sensitive]
        if not multiclass and len(class_names) > 2:
            y, class_names = np.minimum(y, 1), ["0", "1 or more"]
        report.unknown_labels = int((y < 0).sum())
        report.unknown_groups = int((sens < 0).sum())
        data = assemble(rescale(x, scale), graph.edge_index, y, sens, report)
        data.feature_names, data.class_names = feature_names, class_names
        data.group_names, data.name = graph.group_names, self.source.title
        self.data = with_split(data, seed=seed)


def _load(
    source: Source, files: tuple[FoundFile, ...], *, partial: bool, verify: bool, cache: bool
) -> tuple[ParsedGraph, LoadReport]:
    """Read the parsed graph from the cache, or parse the raw files and cache the result."""
    paths = {file.role: file.path for file in files if file.path}
    options = [source.key, source.label, source.sensitive, partial]
    text = "\n".join(map(str, [*(path.resolve() for path in paths.values()), *options]))
    place = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    cached = cache_folder() / "processed" / f"{source.key}-{place}.npz"
    key = disk.fingerprint(list(paths.values()), {"options": options, "verify": verify})
    if cache and (stored := disk.load(cached, key)):
        names, counts = stored.metadata
        content: dict[str, Any] = {**stored.arrays, **names}
        return ParsedGraph(**content), LoadReport(**counts)
    report = LoadReport()
    for file in files if verify else ():
        _verify(source.title, file, report)
    graph = parse(RawGraph(source, paths, partial, report))
    if report.dangling and not partial:
        problem = f"{report.dangling:,} of {report.edge_rows:,} edge rows name an id without a node"
        hint = "a file is cut off; {partial=True} drops those rows"
        raise InputError(source.title, problem, hint)
    if cache:
        fields = vars(graph)
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        names = {name: value for name, value in fields.items() if name not in arrays}
        disk.save(cached, key, arrays, [names, asdict(report)])
    return graph, report


def _verify(title: str, file: FoundFile, report: LoadReport) -> None:
    """Refuse a file that differs from the published one, and note what cannot be checked."""
    state, digits, path = file.check(), file.file.sha256, file.path
    if state == "differs":
        problem = f"{path} is not the published file, whose SHA-256 starts with {digits[:8]}"
        raise InputError(title, problem, "fetch it again, or set {verify=False}")
    if path and state != "ok":
        partial = f"only the first {len(digits)} digits of its SHA-256 are known; they agree"
        unknown = "its SHA-256 is unknown and was not checked"
        report.notes.append(f"{path.name}: {partial if digits else unknown}")


class NBA(FairGraph):
    """NBA players of the 2016–17 season and who follows whom on Twitter.

    The label is a salary above the median (``SALARY``; unknown for 90 of 403 players), the
    sensitive group whether a player is from the United States (``country``).

    Example:
        >>> data = NBA()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (403, 95, 21242)
    """

    source = sources.NBA


class PokecProvince(FairGraph):
    """One Slovak province of the social network Pokec.

    The label is the field of work (``I_am_working_in_field``; unknown for 3,320 of 7,949 users),
    the sensitive group the region. No public home of these files is known.

    Example:
        >>> data = PokecProvince()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (7949, 240, 32008)
    """

    source = sources.POKEC_PROVINCE


class PokecZ(FairGraph):
    """Pokec-z: two regions of the social network Pokec (``region_job.csv``).

    The label is the field of work (``I_am_working_in_field``), the sensitive group the region.
    Only the first digits of the node table's SHA-256 are known and none of the edge table's.

    Example:
        >>> data = PokecZ()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (67796, 276, 1235916)
    """

    source = sources.POKEC_Z


class PokecN(FairGraph):
    """Pokec-n: two other regions of Pokec (``region_job_2.csv``), otherwise as :class:`PokecZ`.

    Example:
        >>> data = PokecN()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (66569, 265, 1034094)
    """

    source = sources.POKEC_N


class PokecNGraph(FairGraph):
    """Pokec-n with 3 of its 265 features: ``gender``, ``AGE`` and ``public``.

    Results on it are not results on Pokec-n. No public home of these files is known.

    Example:
        >>> data = PokecNGraph()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (66569, 3, 1034094)
    """

    source = sources.POKEC_N_GRAPH


class German(FairGraph):
    """German credit: clients of a bank, connected if their accounts are similar.

    The label is whether a client is a good customer (``GoodCustomer``: 1, and −1 for the other
    class), the sensitive group ``Gender`` (Male 0, Female 1). As is usual, ``OtherLoansAtStore``
    and ``PurposeOfLoan`` are dropped.

    Example:
        >>> data = German()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (1000, 26, 43484)
    """

    source = sources.GERMAN


class Credit(FairGraph):
    """Credit default: clients connected if their spending and payments are similar.

    The label is whether a client pays next month (``NoDefaultNextMonth``), the sensitive group
    ``Age`` as coded in the file. As is usual, ``Single`` is dropped. ``graph_credit.edgelist`` with
    137,377 edges is preferred to the far denser ``credit_edges.txt`` of the public home.

    Example:
        >>> data = Credit()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (30000, 12, 274754)
    """

    source = sources.CREDIT


class Bail(FairGraph):
    """Bail: defendants released on bail, connected if their records are similar.

    The label is recidivism (``RECID``), the sensitive group ``WHITE``. ``TIME > 0`` equals the
    label for 99.4 % of the nodes: the usual features leak it.

    Example:
        >>> data = Bail()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (18876, 17, 623740)
    """

    source = sources.BAIL


class BailWithoutTime(FairGraph):
    """Bail without ``TIME``, the column that leaks its label, as a feature and in the edges.

    The edges are built again as those of :class:`Bail` were, of all columns but label and ``TIME``:
    two nodes are connected if their similarity 1/(1+d), d the Euclidean distance, is above 0.6
    times that of one of them and its nearest node.

    Example:
        >>> data = BailWithoutTime()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (18876, 16, 672430)
    """

    source = sources.BAIL_WITHOUT_TIME


class Facebook100(FairGraph):
    """Facebook friendships at one American university in September 2005.

    The columns are ``status``, ``gender``, ``major``, ``minor`` (or second major), ``dorm``,
    ``year`` (of graduation) and ``high_school``, with integer codes. Those that are neither label
    nor sensitive are one-hot features: one per category of at least 10 nodes, all zero if unknown.

    Args:
        root: Folder with the raw files; see :class:`FairGraph`.
        name: School, as in the name of its file. The SHA-256 is known for ``"Cornell5"`` only;
            Amherst41, Johns Hopkins55 and Reed98 have the same public home.
        label: Label column. Its five most frequent values are the classes and all others unknown;
            ``"year>=2007"`` has two classes.
        sensitive: Sensitive column, in the same way.
        options: Other arguments of :class:`FairGraph`; ``multiclass`` is True by default.

    Example:
        >>> data = Facebook100()[0]  # doctest: +SKIP
        >>> data.num_nodes, data.num_features, data.num_edges  # doctest: +SKIP
        (18660, 574, 1581554)
    """

    source = sources.FACEBOOK100

    def __init__(
        self,
        root: PathLike | None = None,
        *,
        name: str = "Cornell5",
        label: str = "gender",
        sensitive: str = "year>=2007",
        **options: Any,
    ) -> None:
        self.source = sources.facebook100(name, label, sensitive)  # type: ignore[misc]
        super().__init__(root, **{"multiclass": True, **options})


def load(name: str, root: PathLike | None = None, **options: Any) -> Data:
    """Load a benchmark graph by key (``"pokec-z"``), title or class name; see :class:`FairGraph`.

    Example:
        >>> load("nba").num_nodes  # doctest: +SKIP
        403
    """
    chosen: type[FairGraph] = globals()[source_named(name).class_name]
    return chosen(root, **options)[0]
