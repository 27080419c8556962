"""Reports from result directories that commands wrote earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmp.errors import InputError
from fairmp.report.document import (
    DOCUMENT,
    MAX_BYTES,
    Document,
    GroupSummary,
    Metric,
    Point,
    cards,
    html,
    read,
    summary,
)
from fairmp.report.from_evaluation import from_evaluations, point
from fairmp.report.page import Section, page
from fairmp.report.sections import sections
from fairmp.report.tables import COLUMNS, cells, summarise

RESULTS = (DOCUMENT, "corrected.json", "best.json", "audit.json", "records.jsonl")
"""Files that a report can be made from, in order of preference."""


def document_of(results: Path) -> Document:
    """Read the report of a result directory, or of one of its files.

    Args:
        results: the ``--out`` of train, audit, demo, debias, tune or compare.

    Raises:
        InputError: If there are no results.
    """
    if results.is_file():
        return _read_file(results)
    if not results.is_dir():
        raise InputError("RESULTS", f"{results} does not exist", "give a result directory")
    for name in RESULTS:
        if (results / name).is_file():
            document = _read_file(results / name)
            if name != DOCUMENT and (results / "topology.svg").is_file():
                document["picture"] = "topology.svg"
            return document
    raise InputError(
        "RESULTS", f"{results} has none of {', '.join(RESULTS)}", "give a result directory"
    )


def _read_file(path: Path) -> Document:
    if path.name == DOCUMENT:
        return read(path.parent)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return from_records([json.loads(line) for line in text.splitlines() if line])
        found = json.loads(text)
        if "decisions_before" in str(found.get("criteria")):
            return from_corrected(found)
        return from_best(found) if "chosen" in found else from_audit(found)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"is damaged, of another version, or not a result of fairmp ({error!r})"
        raise InputError(str(path), problem, "run the command again") from None


def together(folders: list[Path]) -> str:
    """Render one page of several result directories, one chapter each."""
    documents = [(path if path.is_dir() else path.parent, document_of(path)) for path in folders]
    if len(documents) == 1:
        return html(documents[0][1], documents[0][0])
    for pictures in (True, False):
        parts: list[Section] = []
        for folder, document in documents:
            figures = [f"{card.label}: {card.value}" for card in cards(document)]
            text = [summary(document)]
            parts.append(Section(document["title"], text=text, bullets=figures, chapter=True))
            parts += sections(document, folder if pictures else None)
        text_of_page = page(f"{len(documents)} reports", "", parts)
        if len(text_of_page.encode()) <= MAX_BYTES:
            break
    return text_of_page


def from_records(records: list[dict[str, Any]]) -> Document:
    """Report of trained classifiers, from the records of ``train``, ``demo`` and ``compare``."""
    good = [record for record in records if "failed" not in record]
    if not good:
        raise InputError("records.jsonl", "every run failed", "run the command again")
    names = list(dict.fromkeys(str(record["dataset"]) for record in good))
    lines = [
        (data, line)
        for data in names
        for line in summarise(record for record in good if str(record["dataset"]) == data)
    ]
    several, repeated = len(names) > 1, any(line.splits > 1 for _, line in lines)
    document: Document = {
        "title": "Comparison of methods",
        "lines": {
            "title": "Over several splits" if repeated else "On one split",
            "header": [*(["data"] * several), "method", *COLUMNS.values()],
            "rows": [[*([data] * several), line.name, *cells(line)] for data, line in lines],
            "caption": "Test nodes; ± is half of a 95 % interval of the mean over splits."
            if repeated
            else "Test nodes of one split.",
        },
        "versions": good[0]["run"]["versions"],
    }
    if len(lines) == 1:
        run = good[0]["run"]
        propagation = run["config"].get("propagation") or {}
        target = propagation.get("target") if propagation.get("solver") == "projection" else None
        document["title"] = f"{names[0]}: trained classifier"
        document["points"] = [point("this model", "chosen", run["test"])]
        return {**from_evaluations(run["test"], within=target), **document}
    if not several:
        document["points"] = [
            {
                "name": line.name,
                "kind": "other",
                "accuracy": line.figures["accuracy"].mean,
                "gap": line.figures["dp"].mean,
                "accuracy_interval": list(line.figures["accuracy"][1:3]),
                "gap_interval": list(line.figures["dp"][1:3]),
            }
            for _, line in lines
        ]
    return document


def from_audit(found: Mapping[str, Any]) -> Document:
    """Report of an audit, from ``audit.json``."""
    verdict = list(found.get("verdict", []))
    return {
        "title": f"{found['name']}: audit of the topology",
        "summary": verdict[1] if len(verdict) > 1 else "".join(verdict[:1]),
        "graph": dict(found),
        "notes": list(found.get("notes", [])),
        "read": list(found.get("read", [])),
    }


def from_corrected(found: Mapping[str, Any]) -> Document:
    """Report of ``debias``, from :meth:`fairmp.postprocessing.result.DebiasResult.to_dict`.

    ``title``, ``command``, ``assumptions``, ``curve`` and ``versions`` are optional.
    """
    several = len({group["attribute"] for group in found["groups"]}) > 1
    metrics: list[Metric] = []
    if found.get("labelled"):
        metrics.append(
            {
                "name": "accuracy",
                "meaning": f"share of correct decisions on {found['labelled']:,} labelled nodes.",
                "unit": "%",
                "before": found["accuracy_before"],
                "after": found["accuracy_after"],
            }
        )
    metrics += [_criterion(one, found["groups"], several) for one in found["criteria"]]
    uncertain = [_uncertainty(part) for part in found.get("group_uncertainty", [])]
    document: Document = {
        "title": str(found.get("title") or f"{found.get('data', 'Predictions')}, corrected"),
        "classes": [str(name) for name in found["classes"]],
        "measured": f"{found['nodes']:,} nodes",
        "changed": [int(found["changed"]), int(found["nodes"])],
        "correction": "Before: the predictions as given. After: the corrected predictions.",
        "groups": [_group(group, several) for group in found["groups"]],
        "metrics": metrics,
        "notes": list(found.get("warnings", [])),
        "assumptions": [
            *found.get("assumptions", []),
            *(line for line in uncertain if line),
            "The correction uses the group of every node it applies to.",
            "Which gap to close, and how far, is a decision rather than a measurement: closing one "
            "gap can open another.",
            *["The labels are correct."] * bool(found.get("labelled")),
        ],
    }
    for key in ("command", "curve", "points", "versions", "read"):
        if found.get(key):
            document[key] = found[key]
    return document


def _criterion(one: Mapping[str, Any], groups: list[Mapping[str, Any]], several: bool) -> Metric:
    attribute = one["attribute"]
    name = str(one["criterion"]).replace("_", " ")
    if several or attribute not in (one["criterion"], "sens"):
        name += f", {attribute}"
    known = [g for g in groups if g["attribute"] == attribute and g["group"] != "unknown"]
    meaning = f"largest gap of decisions between groups, on {one['where']}."
    if len(known) > 2:
        meaning = (
            f"largest distance of a group's decisions from the overall rate, on "
            f"{one['where']}; two groups may be twice as far apart."
        )
    return {
        "name": name,
        "label": f"gap: {name}" if len(known) < 3 else f"gap from the overall rate: {name}",
        "meaning": meaning,
        "before": one["decisions_before"],
        "after": one["decisions_after"],
        "target": one["target"],
    }


def _group(group: Mapping[str, Any], several: bool) -> GroupSummary:
    before, after = group["decided_before"], group["decided_after"]
    part: GroupSummary = {
        "name": f"{group['attribute']}: {group['group']}" if several else str(group["group"]),
        "nodes": group["nodes"],
        "before": list(before),
        "after": list(after),
        "changed": group["changed"],
    }
    # With two classes the shares give the direction, if all changes go the same way.
    count = round((after[1] - before[1]) * group["nodes"]) if len(after) == 2 else None
    if count is not None and abs(count) == group["changed"]:
        part["moves"] = [[int(count < 0), int(count > 0), abs(count)]] if count else []
    return part


def _uncertainty(part: Mapping[str, Any]) -> str:
    if not part.get("nodes"):
        left = part.get("left_out")
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
    curve: list[Point] = [
        {"accuracy": entry["test"]["accuracy"], "gap": entry["test"][key]}
        for entry in found.get("front", [])
        if (entry.get("test") or {}).get(key) is not None
    ]
    return {
        **from_evaluations(test, None, goal.get("limit") if key == "dp" else None),
        "title": f"{found['data']}: best classifier of a search",
        "points": [point("chosen", "chosen", test, key)],
        "gap": {"dp": "ΔDP", "eo": "ΔEO", "odds": "Δodds"}.get(key, key),
        "curve": sorted(curve, key=lambda p: p["gap"]),
        "curve_note": "The curve joins the test results of the trials that are Pareto-optimal on "
        "the validation nodes.",
        "assumptions": [
            "The choice was made on validation nodes; the test nodes need not agree with it."
        ],
        "command": str(chosen.get("train_command") or ""),
        "setting": chosen["config"],
        "versions": found["versions"],
    }


from_mended = from_corrected
