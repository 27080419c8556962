"""Do promises about new people hold? Coverage by resampling, and on nodes that join later.

    python -m benchmarks.promises                      # all graphs
    python -m benchmarks.promises --graph nba --draws 200

The scores and group estimates of one split, out of fold, are taken as a population. As many people
as it has are drawn from it, with replacement, 1,000 times; a rule is certified on each draw, and
its gap in the whole population is compared with what was promised. So the promise is tested as it
is made: for people drawn from one population. Where the target of 0.05 takes more people than there
are, the smallest one of a list that most draws can promise is taken.

Nodes that join later are not drawn from that population. The tenth of the nodes with the fewest
neighbours is taken out of the graph, scores are fitted and rules certified without them, and their
gap is measured when they have joined with their edges.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch_geometric.utils import degree, subgraph

from benchmarks import typed_command
from benchmarks.group_free import NEIGHBOURS, RESULTS, fit_scores, one_code
from experiments.committed import TITLES
from experiments.provenance import code_hash
from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import load
from fairmp.datasets.splits import with_split
from fairmp.metrics.intervals import sampling_floor
from fairmp.nn.decisions import DecisionRule, equal_rates
from fairmp.parallel import WorkerPool
from fairmp.postprocessing.blind import BlindRule, find_blind_rule
from fairmp.postprocessing.blind_confidence import certify_blind_rule
from fairmp.postprocessing.confidence import certify_thresholds
from fairmp.training.nodes import graph_of
from fairmp.training.run import versions

CONFIDENCE = 0.95
TARGETS = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
CRITERIA = ("demographic_parity", "equal_opportunity")
PILOT = 20  # draws that choose the target
COMPARED = 200  # draws on which the rule of target 0 is found as well
SPLIT = 20
JOINING = 0.1  # share of the nodes that join later

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class People:
    """Scores of some people, out of fold, and what they are."""

    p: Floats  # n×2
    a: Floats  # n×2, estimates of the group
    group: Integers
    y: Integers
    margin: Floats  # log-odds of class 1

    def rows(self, rows: Any) -> People:
        """Some of them."""
        return People(**{name: values[rows] for name, values in vars(self).items()})

    def compared(self, criterion: str) -> NDArray[np.bool_]:
        """Those whose decisions a criterion is about."""
        return np.asarray((self.group >= 0) & ((criterion == CRITERIA[0]) | (self.y == 1)))


Decided = Floats  # probability that a person is decided class 1; below 1 at ties only


@dataclass(frozen=True)
class Method:
    """How a rule is certified, how it is found for target 0, and how it decides."""

    certify: Callable[[People, str, float, int], Any]
    find: Callable[[People, str], Any]
    decide: Callable[[Any, People], Decided]


def certify_aware(people: People, criterion: str, target: float, seed: int) -> DecisionRule:
    certified = certify_thresholds(
        people.margin,
        people.group,
        people.y,
        target=target,
        confidence=CONFIDENCE,
        criterion=criterion,
        seed=seed,
    )
    return certified.rule


def find_aware(people: People, criterion: str) -> DecisionRule:
    compared = people.rows(people.compared(criterion))
    return equal_rates(compared.margin, compared.group, target=0.0)


def decide_aware(rule: DecisionRule, people: People) -> Decided:
    margin, threshold = people.margin, rule.thresholds[people.group]
    return np.where(margin == threshold, rule.tie_rates[people.group], 1.0 * (margin > threshold))


def certify_blind(people: People, criterion: str, target: float, seed: int) -> BlindRule:
    certified = certify_blind_rule(
        people.p,
        people.a,
        people.group,
        people.y,
        target=target,
        confidence=CONFIDENCE,
        criterion=criterion,
        seed=seed,
    )
    return certified.rule


def find_blind(people: People, criterion: str) -> BlindRule:
    p, a, group, y = people.p, people.a, people.group, people.y
    return find_blind_rule(p, a, group, y, criterion=criterion, target=0.0).rule


def decide_blind(rule: BlindRule, people: People) -> Decided:
    return 1.0 * rule.predict(people.p, people.a)


METHODS = {
    "group-aware": Method(certify_aware, find_aware, decide_aware),
    "blind": Method(certify_blind, find_blind, decide_blind),
}


def gap_of(decided: Decided, people: People, criterion: str) -> float:
    """Between the two groups farthest apart."""
    rows = people.compared(criterion)
    weight, group = decided[rows], people.group[rows]
    return float(np.ptp(np.bincount(group, weight) / np.bincount(group)))


def accuracy_of(decided: Decided, people: People) -> float:
    """Expected, where ties are drawn."""
    return float(np.where(people.y == 1, decided, 1 - decided).mean())


def draw(people: People, seed: int) -> People:
    """As many people as there are, with replacement."""
    n = len(people.y)
    return people.rows(np.random.default_rng([SPLIT, seed]).integers(0, n, n))


def choose_target(method: Method, people: People, criterion: str) -> float | None:
    """The smallest target that four of five draws can promise, if there is one."""
    for target in TARGETS:
        promised = 0
        for seed in range(PILOT):
            try:
                method.certify(draw(people, 10**6 + seed), criterion, target, seed)
            except InputError:
                continue
            promised += 1
        if promised >= 0.8 * PILOT:
            return target
    return None


def coverage(method: Method, people: People, criterion: str, draws: int) -> dict[str, Any]:
    """Certify a rule on many draws, and compare its gap in the population with the target."""
    target = choose_target(method, people, criterion)
    if target is None:
        return {"target": None}
    gaps, costs = [], []
    for seed in range(draws):
        sample = draw(people, seed)
        try:
            rule = method.certify(sample, criterion, target, seed)
        except InputError:
            continue
        decided = method.decide(rule, people)
        gaps.append(gap_of(decided, people, criterion))
        if seed < COMPARED:
            exact = method.decide(method.find(sample, criterion), people)
            costs.append(accuracy_of(exact, people) - accuracy_of(decided, people))
    broken = float((np.array(gaps) > target + 1e-9).sum())
    risk = 1 - CONFIDENCE
    return {
        "target": target,
        "draws": draws,
        "promised": len(gaps),
        "broken": broken / draws,
        "broken_of_promised": broken / len(gaps),
        "allowed": risk + 2 * float(np.sqrt(risk * (1 - risk) / draws)),
        "gap": float(np.mean(gaps)),
        "largest_gap": float(np.max(gaps)),
        "accuracy_below_target_0": float(np.mean(costs)),
    }


def population(graph: str) -> People:
    """Labelled nodes outside the test set, with out-of-fold scores."""
    scores = fit_scores(graph, SPLIT, (NEIGHBOURS,))
    return _people(
        scores.held_logits,
        scores.group_logits[NEIGHBOURS][scores.held],
        scores.nodes.data,
        scores.held,
    )


def _people(logits: Any, group_logits: Any, data: Any, nodes: Any) -> People:
    p, a = (softmax(part.double().numpy(), axis=1) for part in (logits, group_logits))
    margin = np.log(p[:, 1]) - np.log(p[:, 0])
    return People(p, a, data.sens[nodes].numpy(), data.y[nodes].numpy(), margin)


@dataclass(frozen=True)
class Joining:
    """People a rule is certified on, and those who join the graph later."""

    members: People
    joined: People


def join_later(graph: str) -> Joining:
    """Fit without the nodes of fewest neighbours, and predict them when they have joined."""
    data = load(graph)
    links = degree(data.edge_index[0], data.num_nodes)
    order = torch.argsort(links, stable=True)
    late = torch.zeros(data.num_nodes, dtype=torch.bool)
    late[order[: int(JOINING * data.num_nodes)]] = True
    kept = (~late).nonzero()[:, 0]
    before = copy.copy(data)
    before.edge_index, _ = subgraph(
        kept, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
    )
    for name in ("x", "y", "sens"):
        before[name] = data[name][kept]
    before.num_nodes = len(kept)
    before = with_split(before, seed=SPLIT)
    model = FairClassifier(FMP(lambda_s="learned"), group_free=True, time_budget=1e9)
    model.fit(before, seed=0, bootstrap=0, progress=False)
    data.origin = kept
    grown = graph_of(data)
    rows = (late & (data.y >= 0) & (data.sens >= 0)).nonzero()[:, 0]
    with torch.no_grad():
        logits, group_logits = (
            network(data.x, grown, None)[rows] for network in (model.network_, model.group_network_)
        )
    held = model.held_out_.nodes.nonzero()[:, 0]
    members = _people(model.held_out_.logits, model.group_logits_[held], before, held)
    return Joining(members, _people(logits, group_logits, data, rows))


def measure_joining(method: Method, joining: Joining, criterion: str) -> dict[str, Any]:
    """The gap of nodes that join later, by a rule that was certified without them."""
    target = choose_target(method, joining.members, criterion)
    if target is None:
        return {"target": None}
    try:
        rule = method.certify(joining.members, criterion, target, 0)
    except InputError:
        return {"target": target, "promised": False}
    joined = joining.joined
    decided = method.decide(rule, joined)
    compared = joined.rows(joined.compared(criterion))
    rate = float(decided[joined.compared(criterion)].mean())
    return {
        "target": target,
        "promised": True,
        "gap": gap_of(decided, joined, criterion),
        "gap_uncorrected": gap_of(1.0 * (joined.margin > 0), joined, criterion),
        "floor": sampling_floor(np.bincount(compared.group).tolist(), rate),
        "accuracy": accuracy_of(decided, joined),
        "accuracy_uncorrected": accuracy_of(1.0 * (joined.margin > 0), joined),
    }


def cached(path: Path, fit: Callable[[], list[People]]) -> list[People]:
    """Scores from a file, or fitted and written there."""
    if not path.exists():
        fitted = enumerate(fit())
        np.savez(path, **{f"{k}{name}": v for k, each in fitted for name, v in vars(each).items()})
    with np.load(path) as arrays:
        names = [field.name for field in fields(People)]
        count = len(arrays.files) // len(names)
        return [People(*(arrays[f"{k}{name}"] for name in names)) for k in range(count)]


def measure_graph(parts: Path, draws: int, graph: str) -> list[dict[str, Any]]:
    """All rules and criteria on one graph."""
    (people,) = cached(parts / f"{graph}.npz", lambda: [population(graph)])
    joining = Joining(
        *cached(parts / f"{graph}-joining.npz", lambda: list(vars(join_later(graph)).values()))
    )
    lines = []
    for criterion in CRITERIA:
        for name, method in METHODS.items():
            line: dict[str, Any] = {"graph": graph, "criterion": criterion, "rule": name}
            line["code"] = code_hash("models")
            line["people"] = np.bincount(people.group[people.compared(criterion)]).tolist()
            line |= coverage(method, people, criterion, draws)
            line["joining"] = measure_joining(method, joining, criterion)
            lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", nargs="+", default=list(TITLES), choices=TITLES)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="processes, one graph each")
    parser.add_argument("--parts", type=Path, default=Path("build/promises"))
    parser.add_argument("--out", type=Path, default=RESULTS / "promises.json")
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    jobs = [name for name in options.graph if not (options.parts / f"{name}.json").exists()]
    measure = partial(measure_graph, options.parts, options.draws)
    with WorkerPool(measure, options.jobs) as pool:
        for graph, lines in pool.map(jobs[::-1]):
            (options.parts / f"{graph}.json").write_text(json.dumps(lines, allow_nan=False))
            for line in lines:
                print(line, flush=True)
    files = [options.parts / f"{graph}.json" for graph in TITLES]
    done = [path for path in files if path.exists()]
    records = [line for path in done for line in json.loads(path.read_text())]
    record = {
        "command": typed_command(),
        "code": one_code(records),
        "confidence": CONFIDENCE,
        "split": SPLIT,
        "versions": versions(),
        "records": records,
    }
    options.out.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
