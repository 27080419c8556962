"""The benchmark graphs of the field as PyTorch Geometric data sets, all in one shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch_geometric.data import Data

from fairmp.datasets import sources
from fairmp.datasets.base import Arrays, FairGraph, matrix, read_raw
from fairmp.datasets.edges import LoadReport, undirected
from fairmp.datasets.raw import PathLike
from fairmp.datasets.sources import source_named
from fairmp.errors import InputError


class NBA(FairGraph):
    """NBA players of the season 2016–17 and their ties on Twitter.

    The label says whether a player earns more than the median (``SALARY``; 90 of 403 are unknown),
    the sensitive group whether he is from the United States or not (``country``). The file has 98
    columns; without ``user_id``, ``SALARY`` and ``country`` 95 features are left, as in the paper.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    Example:
        >>> NBA()[0]  # doctest: +SKIP
        Data(x=[403, 95], edge_index=[2, 21242], y=[403], sens=[403], ...)

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 403
          - 95
          - 21,242
          - 39.22 %
          - 53.63 %
          - 72.37 %
    """

    source = sources.NBA
    label_column = "SALARY"
    sens_column = "country"


class PokecProvince(FairGraph):
    """One whole Slovak province of the social network Pokec, in the files' own format.

    The label is the field of work (``I_am_working_in_field``; −1 is unknown, for 3,320 of 7,949
    users), the sensitive group the region in the province (``region``). The file has 243 columns;
    without ``user_id``, label and region 240 features are left. No public home of these files is
    known, so that they are never downloaded.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 7,949
          - 240
          - 32,008
          - 46.24 %
          - 69.84 %
          - 96.93 %

    Label homophily is that of the labels in the file (``multiclass=True``).
    """

    source = sources.POKEC_PROVINCE
    label_column = "I_am_working_in_field"
    sens_column = "region"


class PokecZ(PokecProvince):
    """Pokec-z: two major regions of the social network Pokec (``region_job.csv``).

    The label is the field of work (``I_am_working_in_field``; −1 is unknown), the sensitive group
    the region. The file has 279 columns; without ``user_id``, label and region 276 features are
    left, as in the paper. Of the SHA-256 only the first digits are known for the node table and
    nothing for the edge table; ``data.report`` says so.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 67,796
          - 276
          - 1,235,916
          - 71.16 %
          -
          - 95.06 %

    These are the paper's numbers; its label homophily counts unlabelled as a class.
    """

    source = sources.POKEC_Z


class PokecN(PokecProvince):
    """Pokec-n: two other regions of the social network Pokec (``region_job_2.csv``).

    As :class:`PokecZ`. The file has 268 columns; without ``user_id``, label and region 265 features
    are left, as in the paper.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 66,569
          - 265
          - 1,034,094
          - 73.23 %
          - 49.71 %
          - 95.30 %

    Label homophily is that of the labels in the file (``multiclass=True``), as in the paper; with
    values above 1 counted as 1 it is 73.51 %, and 59.07 % among labelled.
    """

    source = sources.POKEC_N


class PokecNGraph(FairGraph):
    """Pokec-n, 3 features: the real topology, labels and regions, and 3 of the 265 features.

    Nodes, edges, labels and groups are those of :class:`PokecN`; the features are ``gender``,
    ``AGE`` and ``public``. Results on it are not results on Pokec-n, hence its name. No public home
    of these files is known, so that they are never downloaded.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 66,569
          - 3
          - 1,034,094
          - 73.23 %
          - 49.71 %
          - 95.30 %

    Label homophily is that of the labels in the file (``multiclass=True``), as in the paper; with
    values above 1 counted as 1 it is 73.51 %, and 59.07 % among labelled.
    """

    source = sources.POKEC_N_GRAPH
    label_column = "I_am_working_in_field"
    sens_column = "region"

    def _parse(
        self, paths: dict[str, Path], partial: bool, report: LoadReport
    ) -> tuple[Arrays, list[str]]:
        title = self.source.title
        table = read_raw(paths["attributes"], title, None, partial, report)
        public = read_raw(paths["public"], title, None, partial, report)
        try:
            with np.load(paths["edges"], allow_pickle=False) as file:
                starts, columns = file["indptr"], file["indices"]
            labels = np.load(paths["labels"], allow_pickle=False)
            sens = np.load(paths["sens"], allow_pickle=False).reshape(-1).astype(np.int64)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(title, f"cannot read the NumPy files ({error})") from None
        count = len(starts) - 1
        last = int(labels[:, 0].max(initial=0))
        if not count == len(sens) == table.num_rows == public.num_rows > last:
            raise InputError(
                title,
                f"the files tell of {count:,}, {len(sens):,}, {table.num_rows:,} and "
                f"{public.num_rows:,} nodes",
                "they do not belong together",
            )
        y = np.full(count, -1, dtype=np.int64)
        y[labels[:, 0]] = labels[:, 1]
        rows = np.repeat(np.arange(count), np.diff(starts))
        edge_index = undirected(rows, columns, count, report)
        report.nodes = count
        x = np.concatenate(
            [matrix(table.select(["gender", "AGE"]), title), matrix(public, title)], axis=1
        )
        return {"x": x, "edge_index": edge_index, "y": y, "sens": sens}, ["gender", "AGE", "public"]


class German(FairGraph):
    """German credit: clients of a bank, joined where their accounts are alike.

    The label says whether a client is a good customer (``GoodCustomer``: 1, and −1, which is the
    other class here and not unknown), the group is ``Gender`` (Male 0, Female 1). As is usual,
    ``OtherLoansAtStore`` and ``PurposeOfLoan`` are dropped: of 30 columns 26 features are left.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 1,000
          - 26
          - 43,484
          - 58.70 %
          - 58.70 %
          - 80.48 %
    """

    source = sources.GERMAN
    id_column = None
    label_column = "GoodCustomer"
    label_values: ClassVar[dict[int, int]] = {-1: 0, 1: 1}
    sens_column = "Gender"
    sens_values: ClassVar[dict[str, int]] = {"Male": 0, "Female": 1}
    group_names: ClassVar[list[str]] = ["Male", "Female"]
    drop_columns = ("OtherLoansAtStore", "PurposeOfLoan")


class Credit(FairGraph):
    """Credit default: clients joined where their spending and payments are alike.

    The label says whether a client pays the next month (``NoDefaultNextMonth``), the group is
    ``Age`` as the file codes it (1 for 2,685 of 30,000). As is usual, ``Single`` is dropped: of 15
    columns 12 features are left. Two edge lists go by this name: ``graph_credit.edgelist`` with
    137,377 edges, described below and used where it is found, and the far denser one of the public
    home, ``credit_edges.txt``, whose SHA-256 is not known.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 30,000
          - 12
          - 274,754
          - 64.17 %
          - 64.17 %
          - 87.90 %
    """

    source = sources.CREDIT
    id_column = None
    label_column = "NoDefaultNextMonth"
    sens_column = "Age"
    drop_columns = ("Single",)


class Bail(FairGraph):
    """Bail: defendants released on bail, joined where their records are alike.

    The label is recidivism (``RECID``), the group ``WHITE``. Of 19 columns 17 features are left.

    Arguments and the shape of the graph are those of :class:`~fairmp.datasets.base.FairGraph`.

    .. list-table::
        :header-rows: 1

        * - nodes
          - features
          - directed edges
          - label homophily
          - among labelled
          - sensitive homophily
        * - 18,876
          - 17
          - 623,740
          - 77.52 %
          - 77.52 %
          - 52.21 %
    """

    source = sources.BAIL
    id_column = None
    label_column = "RECID"
    sens_column = "WHITE"


def load(name: str, root: PathLike | None = None, **options: Any) -> Data:
    """Load a benchmark graph by the name people type.

    Args:
        name: Its key (``"pokec-z"``), title or class name, whatever the case.
        root: The folder with the raw files; see :class:`~fairmp.datasets.base.FairGraph`.
        options: The other arguments of its class.

    Example:
        >>> load("nba").num_nodes  # doctest: +SKIP
        403
    """
    chosen: type[FairGraph] = globals()[source_named(name).class_name]
    return chosen(root, **options)[0]
