"""Reports from result directories that commands wrote earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from fairmp.errors import InputError
from fairmp.metrics.counts import gap_interval
from fairmp.report.document import (
    DOCUMENT,
    MAX_BYTES,
    cards,
    from_evaluations,
    html,
    page,
    point,
    read,
    summary,
)
from fairmp.report.formats import is_known, points, wilson_interval, with_interval
from fairmp.report.sections import (
    Document,
    Ends,
    GroupSummary,
    Metric,
    Point,
    Section,
    flags,
    sections,
)

RESULTS = (DOCUMENT, "corrected.json", "best.json")
"""Files that a report can be made from, in order of preference."""
NAMES = {
    "demographic_parity": ("ΔDP", "gap between groups (ΔDP)"),
    "equal_opportunity": ("ΔEO", "gap at equal labels (ΔEO)"),
    "equalized_odds": ("Δodds", "gap in errors (Δodds)"),
}


def document_of(path: Path) -> Document:
    """Report of a result directory (the ``--out`` of a command), or of one of its files."""
    if path.is_file():
        return _read_file(path)
    for name in RESULTS:
        if (path / name).is_file():
            return _read_file(path / name)
    problem = f"has none of {', '.join(RESULTS)}" if path.is_dir() else "does not exist"
    raise InputError("RESULTS", f"{path} {problem}", "give a result directory")


def _read_file(path: Path) -> Document:
    if path.name == DOCUMENT:
        return read(path.parent)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return from_best(found) if "chosen" in found else from_corrected(found)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"is damaged, of another version, or not a result of fairmp ({error!r})"
        raise InputError(str(path), problem, "run the command again") from None


def together(folders: list[Path]) -> str:
    """Render one page of several result directories: a comparison, then one chapter each."""
    documents = [(path if path.is_dir() else path.parent, document_of(path)) for path in folders]
    if len(documents) == 1:
        return html(documents[0][1], documents[0][0])
    assumptions = [line for _, document in documents for line in document.get("assumptions", [])]
    for pictures in (True, False):
        parts = [part] if (part := _overview([document for _, document in documents])) else []
        graphs: list[str] = []
        for folder, document in documents:
            # What several reports share is said once.
            own = cast(Document, {k: v for k, v in document.items() if k != "assumptions"})
            name = str(own.get("graph", {}).get("name"))
            if name in graphs:
                own.pop("graph", None)
            graphs.append(name)
            head = {"text": [summary(document)], "flags": flags(document), "cards": cards(document)}
            parts.append(Section(document["title"], chapter=True, **head))  # type: ignore[arg-type]
            with suppress(InputError):  # nothing but assumptions
                parts += sections(own, folder if pictures else None)
        if assumptions:
            unique = list(dict.fromkeys(assumptions))
            parts.append(Section("Assumptions", bullets=unique, chapter=True))
        text = page(f"{len(documents)} reports", "", parts)
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def _overview(documents: list[Document]) -> Section | None:
    """One row per report with metrics."""
    names = ("accuracy", "ΔDP", "ΔEO")
    rows = []
    for document in documents:
        found = {metric["name"]: metric for metric in document.get("metrics", [])}
        if not any(name in found for name in names):
            continue
        row = [document["title"]]
        for name in names:
            own = found.get(name, {})
            before = f"{points(own['before'])} → " if is_known(own.get("before")) else ""
            row.append(before + with_interval(own.get("after"), own.get("after_interval")))
        rows.append(row)
    if len(rows) < 2:
        return None
    header = ["report", "accuracy %", "ΔDP, points", "ΔEO, points"]
    caption = "Before → after, with 95 % intervals in brackets."
    return Section("Comparison", header=header, rows=rows, caption=caption, chapter=True)


def from_corrected(found: Mapping[str, Any]) -> Document:
    """Report of ``debias``, from :meth:`fairmp.postprocessing.result.DebiasResult.to_dict`."""
    several = len({group["attribute"] for group in found["groups"]}) > 1
    criteria = [*found["criteria"], *found.get("others", [])]
    metrics = [_criterion(one, found, several) for one in criteria]
    labelled = found.get("labelled") or 0
    if labelled:
        meaning = f"share of correct decisions on {labelled:,} labelled nodes."
        accuracy: Any = {"name": "accuracy", "meaning": meaning, "unit": "%"}
        for when in ("before", "after"):
            share = accuracy[when] = found[f"accuracy_{when}"]
            accuracy[f"{when}_interval"] = list(wilson_interval(share * labelled, labelled))
        metrics.insert(0, accuracy)
    document: Document = {
        "title": f"{found.get('data', 'Predictions')}, corrected",
        "classes": [str(name) for name in found["classes"]],
        "measured": f"{found['nodes']:,} nodes",
        "changed": [int(found["changed"]), int(found["nodes"])],
        "correction": "Before: the predictions as given. After: the corrected predictions.",
        "groups": [_group(group, several) for group in found["groups"]],
        "metrics": metrics,
        "notes": list(found.get("warnings", [])),
        "assumptions": [
            *filter(None, map(_uncertainty, found.get("group_uncertainty", []))),
            "The correction uses the group of every node it applies to.",
            "Which gap to close, and how far, is a decision rather than a measurement: closing one "
            "gap can open another.",
            *["The labels are correct."] * bool(labelled),
        ],
    }
    optional = ("command", "read", "panel", "reliability")
    return cast(Document, document | {key: found[key] for key in optional if found.get(key)})


def _criterion(one: Mapping[str, Any], found: Mapping[str, Any], several: bool) -> Metric:
    attribute, title = one["attribute"], str(one["criterion"]).replace("_", " ")
    name, label = NAMES.get(one["criterion"], (title, f"gap: {title}"))
    if several:
        name, label = f"{name}, {attribute}", f"{label}, {attribute}"
    groups = [g for g in found["groups"] if g["attribute"] == attribute and g["group"] != "unknown"]
    return {
        "name": name,
        "label": label,
        "meaning": f"{title}: the largest gap of decisions between two groups, on {one['where']}.",
        "before": one["decisions_before"],
        "after": one["decisions_after"],
        "before_interval": _gap_interval(one["criterion"], groups, "before"),
        "after_interval": _gap_interval(one["criterion"], groups, "after"),
        "target": one["target"],
    }


def _gap_interval(criterion: str, groups: Sequence[Mapping[str, Any]], when: str) -> Ends:
    """95 % interval of a criterion's gap, from the rates of the groups."""
    rates, sizes = [], []
    for group in groups:
        use = slice(1, 2) if len(group[f"decided_{when}"]) == 2 else slice(None)
        labelled = np.array(group.get("labelled") or [], dtype=float)
        if criterion == "demographic_parity":
            own, behind = np.array(group[f"decided_{when}"])[use], np.array([group["nodes"]])
        elif len(labelled):
            own, behind = np.array(group[f"tpr_{when}"], dtype=float)[use], labelled[use]
            if criterion == "equalized_odds":
                fpr = np.array(group[f"fpr_{when}"], dtype=float)[use]
                own, behind = np.append(own, fpr), np.append(behind, labelled.sum() - behind)
        else:
            return None
        rates.append(own)
        sizes.append(np.broadcast_to(behind, own.shape))
    if criterion not in NAMES or len(rates) < 2:
        return None
    return list(gap_interval(np.array(rates), np.array(sizes)))


def _group(group: Mapping[str, Any], several: bool) -> GroupSummary:
    before, after = list(group["decided_before"]), list(group["decided_after"])
    name = f"{group['attribute']}: {group['group']}" if several else str(group["group"])
    part: GroupSummary = {"name": name, "nodes": group["nodes"], "before": before, "after": after}
    part["changed"] = group["changed"]
    # With two classes the shares give the direction, if all changes go the same way.
    count = round((after[1] - before[1]) * group["nodes"]) if len(after) == 2 else None
    if count is not None and abs(count) == group["changed"]:
        part["moves"] = [[int(count < 0), int(count > 0), abs(count)]] if count else []
    return part


def _uncertainty(part: Mapping[str, Any]) -> str:
    left = part.get("left_out")
    if not part.get("nodes"):
        return f"{left:,} nodes of unknown {part['attribute']} are not corrected." if left else ""
    text = (
        f"{part['attribute']}: the group of {part['nodes']:,} nodes is estimated rather than "
        f"observed, {100 * part['share']:.1f} % of the population."
    )
    if part.get("accuracy") is not None:
        text += f" On held-out nodes the estimate is {100 * part['accuracy']:.1f} % accurate."
    return text


def from_best(found: Mapping[str, Any]) -> Document:
    """Report of a search, from the ``best.json`` of ``fairmp tune``."""
    chosen, goal = found["chosen"], found["goal"]
    key, test = goal["criterion"], chosen["model_test"]
    tests = [entry.get("test") or {} for entry in found.get("front", [])]
    curve: list[Point] = [
        {"accuracy": own["accuracy"], "gap": own[key]} for own in tests if own.get(key) is not None
    ]
    return {
        **from_evaluations(test, None, goal.get("limit") if key == "dp" else None),
        "title": f"{found['data']}: best classifier of a search",
        "points": [point("chosen", "chosen", test, key)],
        "gap": {"dp": "ΔDP", "eo": "ΔEO", "odds": "Δodds"}.get(key, key),
        "curve": sorted(curve, key=lambda p: p["gap"]),
        "panel": found.get("panel"),
        "reliability": found.get("reliability", []),
        "curve_note": "The curve joins the test results of the trials that are Pareto-optimal on "
        "the validation nodes.",
        "assumptions": [
            "The choice was made on validation nodes; the test nodes need not agree with it."
        ],
        "command": str(chosen.get("train_command") or ""),
        "setting": chosen["config"],
        "versions": found["versions"],
    }
