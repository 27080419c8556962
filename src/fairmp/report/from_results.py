"""Reports made again from the results that commands wrote earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmp.errors import InputError
from fairmp.report.document import LIMIT, STORY, GroupPart, Point, Story, cards, html, read, summary
from fairmp.report.from_evaluation import from_evaluations, point
from fairmp.report.page import Section, page
from fairmp.report.sections import sections
from fairmp.report.tables import COLUMNS, cells, summarise

RESULTS = (STORY, "corrected.json", "best.json", "audit.json", "records.jsonl")
"""The files a report can be made from, the best first."""


def story_of(results: Path) -> Story:
    """Read the story of a folder of results, or of one file of them.

    Args:
        results: what ``--out`` named: of train, audit, demo, debias, tune or compare.

    Raises:
        InputError: If there is nothing to tell from.
    """
    if results.is_file():
        return _told(results)
    if not results.is_dir():
        raise InputError("RESULTS", f"there is no {results}", "give a folder a command wrote to")
    for name in RESULTS:
        if (results / name).is_file():
            story = _told(results / name)
            if name != STORY and (results / "topology.svg").is_file():
                story["picture"] = "topology.svg"
            return story
    raise InputError(
        "RESULTS", f"{results} has none of {', '.join(RESULTS)}", "give a folder a command wrote to"
    )


def _told(path: Path) -> Story:
    if path.name == STORY:
        return read(path.parent)
    try:
        if path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            return from_records([json.loads(line) for line in lines if line])
        found = json.loads(path.read_text(encoding="utf-8"))
        if "decisions_before" in str(found.get("criteria")):
            return from_mended(found)
        return from_best(found) if "chosen" in found else from_audit(found)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            str(path),
            f"it is damaged, of another version, or no result of fairmp's ({error!r})",
            "run the command again",
        ) from None


def together(folders: list[Path]) -> str:
    """Make one page of several folders' results, a chapter each."""
    stories = [(path if path.is_dir() else path.parent, story_of(path)) for path in folders]
    if len(stories) == 1:
        return html(stories[0][1], stories[0][0])
    for pictures in (True, False):
        parts: list[Section] = []
        for folder, story in stories:
            figures = [f"{card.label}: {card.value}" for card in cards(story)]
            parts.append(
                Section(story["title"], text=[summary(story)], bullets=figures, chapter=True)
            )
            parts += sections(story, folder if pictures else None)
        text = page(f"{len(stories)} reports", "", parts)
        if len(text.encode()) <= LIMIT:
            break
    return text


def from_records(records: list[dict[str, Any]]) -> Story:
    """Tell what records of trained classifiers say: ``fairmp train``, ``demo`` and ``compare``."""
    good = [record for record in records if "failed" not in record]
    if not good:
        raise InputError("records.jsonl", "no run ended well", "there is nothing to tell")
    names = list(dict.fromkeys(str(record["dataset"]) for record in good))
    lines = []
    for data in names:
        own = [record for record in good if str(record["dataset"]) == data]
        lines += [(data, line) for line in summarise(own)]
    several = len(names) > 1
    repeated = any(line.splits > 1 for _, line in lines)
    title = f"{names[0]}: a trained classifier" if len(lines) == 1 else "A comparison of methods"
    story: Story = {
        "title": title,
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
        asked = propagation.get("target") if propagation.get("solver") == "projection" else None
        told = from_evaluations(run["test"], within=asked)
        return {**told, **story, "points": [point("this model", "chosen", run["test"])]}
    if not several:
        story["points"] = [
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
    return story


def from_audit(found: Mapping[str, Any]) -> Story:
    """Tell what an audit says."""
    verdict = list(found.get("verdict", []))
    return {
        "title": f"{found['name']}: what its topology does",
        "summary": verdict[1] if len(verdict) > 1 else "".join(verdict[:1]),
        "graph": dict(found),
        "notes": list(found.get("notes", [])),
        "assumptions": list(found.get("assumptions", [])),
        "read": list(found.get("read", [])),
        "command": str(found.get("command", "")),
    }


def from_mended(found: Mapping[str, Any]) -> Story:
    """Tell what mending did, from :meth:`fairmp.postprocessing.result.DebiasResult.to_dict`.

    ``title``, ``command``, ``assumptions``, ``curve`` and ``versions`` are told too where the
    record has them.
    """
    several = len({group["attribute"] for group in found["groups"]}) > 1
    story: Story = {
        "title": str(found.get("title") or f"{found.get('data', 'Predictions')}, mended"),
        "classes": [str(name) for name in found["classes"]],
        "measured": f"{found['nodes']:,} nodes",
        "changed": [int(found["changed"]), int(found["nodes"])],
        "correction": "Before are the predictions as they were given; after are the mended ones.",
        "groups": [],
        "criteria": [],
        "notes": list(found.get("warnings", [])),
    }
    if found.get("labelled"):
        story["criteria"].append(
            {
                "name": "accuracy",
                "label": "right decisions (accuracy)",
                "meaning": f"how many of 100 are right, on {found['labelled']:,} labelled nodes.",
                "unit": "%",
                "before": found["accuracy_before"],
                "after": found["accuracy_after"],
            }
        )
    for held in found["criteria"]:
        name = str(held["criterion"]).replace("_", " ")
        if several or held["attribute"] not in (held["criterion"], "sens"):
            name += f", {held['attribute']}"
        groups = sum(
            group["attribute"] == held["attribute"] and group["group"] != "unknown"
            for group in found["groups"]
        )
        story["criteria"].append(
            {
                "name": name,
                "label": f"gap: {name}" if groups < 3 else f"gap from the whole: {name}",
                "meaning": f"the largest gap of decisions between groups, on {held['where']}."
                if groups < 3
                else "how far the decisions of a group are at most from those of the whole, on "
                f"{held['where']}; two groups may be up to twice as far apart.",
                "before": held["decisions_before"],
                "after": held["decisions_after"],
                "target": held["target"],
            }
        )
    for group in found["groups"]:
        label = f"{group['attribute']}: {group['group']}" if several else str(group["group"])
        part: GroupPart = {
            "name": label,
            "nodes": group["nodes"],
            "before": list(group["decided_before"]),
            "after": list(group["decided_after"]),
            "changed": group["changed"],
        }
        moves = _moves(group)
        if moves is not None:
            part["moves"] = moves
        story["groups"].append(part)
    told = [_resting(part) for part in found.get("group_uncertainty", [])]
    story["assumptions"] = [
        *found.get("assumptions", []),
        *(line for line in told if line),
        "The correction uses the group of everyone it reaches.",
        "Which gap to close, and how far, is a decision, not a measurement: closing one can open "
        "another.",
        *["The labels are taken for the truth."] * bool(found.get("labelled")),
    ]
    for key in ("command", "curve", "points", "versions", "read"):
        if found.get(key):
            story[key] = found[key]
    return story


def _moves(group: Mapping[str, Any]) -> list[list[Any]] | None:
    """From which class to which decisions went, where the shares tell: two classes, one way."""
    if len(group["decided_after"]) != 2:
        return None
    count = round((group["decided_after"][1] - group["decided_before"][1]) * group["nodes"])
    if abs(count) != group["changed"]:
        return None
    return [[int(count < 0), int(count > 0), abs(count)]] if count else []


def _resting(part: Mapping[str, Any]) -> str:
    if not part.get("nodes"):
        left = part.get("left_out")
        return (
            f"{left:,} nodes of unknown {part['attribute']} are left as they were." if left else ""
        )
    text = (
        f"{part['attribute']}: the group of {part['nodes']:,} nodes is probable, not known; "
        f"{100 * part['share']:.1f} % of what is measured rests on it."
    )
    if part.get("accuracy") is not None:
        text += (
            f" The estimate is right for {100 * part['accuracy']:.1f} % of held-out known nodes."
        )
    return text


def from_best(found: Mapping[str, Any]) -> Story:
    """Tell what a search chose, from the ``best.json`` of ``fairmp tune``."""
    chosen, goal = found["chosen"], found["goal"]
    key = goal["criterion"]
    test = chosen["model_test"]
    told = from_evaluations(test, None, goal.get("limit") if key == "dp" else None)
    curve: list[Point] = [
        {"accuracy": entry["test"]["accuracy"], "gap": entry["test"][key]}
        for entry in found.get("front", [])
        if (entry.get("test") or {}).get(key) is not None
    ]
    story: Story = {
        **told,
        "title": f"{found['data']}: a searched-for classifier",
        "points": [point("chosen", "chosen", test, key)],
        "gap": {"dp": "ΔDP", "eo": "ΔEO", "odds": "Δodds"}.get(key, key),
        "curve": sorted(curve, key=lambda p: p["gap"]),
        "curve_note": "The curve joins the trials that no other beats on the validation nodes, as "
        "they do on the test nodes.",
        "assumptions": [
            "The choice was made on validation nodes, so the test nodes need not agree with it."
        ],
        "command": str(chosen.get("train_command") or ""),
        "setting": chosen["config"],
        "versions": found["versions"],
    }
    return story
