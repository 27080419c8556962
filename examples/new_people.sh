#!/usr/bin/env bash
# From tables to daily use, in an empty folder: train, predict people who joined later, gate a
# release, post-process, report. Run: examples/new_people.sh FOLDER [NUMBER OF PEOPLE]
set -euo pipefail
mkdir -p "$1"
cd "$1"
n=${2:-15000}

# The tables of an organisation: everyone, who knows whom, and who joined since. Labels are words,
# there are three groups, and some values are missing.
python - "$n" <<'PYTHON'
import sys

import numpy as np
import pandas as pd

rng, n = np.random.default_rng(0), int(sys.argv[1])
region = rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
skill = rng.normal(size=n) + 0.4 * (region == "north")
people = pd.DataFrame({"person": [f"p{k:05}" for k in range(n)], "region": region})
people["years"] = np.round(5 + 2 * skill + rng.normal(size=n), 1)
people["degree"] = rng.choice(["none", "first", "second"], n)
people["hired"] = np.where(skill + 0.5 * rng.normal(size=n) > 0.3, "yes", "no")
people.loc[rng.random(n) < 0.05, "years"] = np.nan
people.loc[rng.random(n) < 0.02, "region"] = np.nan
# People mostly know people of their own region.
order = np.lexsort([rng.random(n), region])
near = order[np.clip(np.argsort(order)[:, None] + rng.integers(-20, 21, (n, 6)), 0, n - 1)]
pairs = np.column_stack([np.repeat(np.arange(n), 6), near.reshape(-1)])
edges = pd.DataFrame(people["person"].to_numpy()[pairs], columns=["a", "b"])
joined = rng.random(n) < 0.1
people[~joined].to_csv("people.csv", index=False)
people[joined].drop(columns="hired").to_csv("joined.csv", index=False)
people[joined].to_csv("joined-labelled.csv", index=False)
edges.to_csv("edges.csv", index=False)
new = set(people["person"][joined])
among = edges[edges["a"].isin(new) == edges["b"].isin(new)]
among.to_csv("edges-apart.csv", index=False)
PYTHON

fairmp train --nodes people.csv --edges edges.csv --id person --label hired --sensitive region \
    --backbone mlp --lambda-s 3 --out run --splits 1 --epochs "${EPOCHS:-100}" --no-picture

# New people use their edges to those who were there before, and the gap is closed among them.
fairmp predict run --nodes joined.csv --edges edges.csv --out predictions.csv
fairmp predict run --nodes joined.csv --edges edges-apart.csv --out apart.csv
python - <<'PYTHON'
import pandas as pd

found, apart = pd.read_csv("predictions.csv"), pd.read_csv("apart.csv")
changed = (found["p(yes)"] - apart["p(yes)"]).abs().max()
assert changed > 1e-3, "edges to the training graph are not used"
rates = (found["decision"] == "yes").groupby(found["region"]).mean()
assert rates.max() - rates.min() < 0.01, rates
print(f"without their edges to others, a probability changes by up to {changed:.2f}")
PYTHON

# A release is stopped where the gap is too large: status 3.
fairmp predict run --nodes joined-labelled.csv --edges edges.csv --out labelled.csv --fail-above 0.02
fairmp train --nodes people.csv --edges edges.csv --id person --label hired --sensitive region \
    --solver plain --backbone mlp --lambda-s 3 --out unfair --splits 1 \
    --epochs "${EPOCHS:-100}" --no-picture
status=0
fairmp predict unfair --nodes joined-labelled.csv --edges edges.csv --out unfair.csv \
    --fail-above 0.02 || status=$?
test "$status" = 3

# Predictions of any model can be corrected afterwards, for another criterion too.
fairmp debias unfair.csv --sensitive region --label hired --criterion equal_opportunity --out fair
fairmp report run fair --out report.html
ls -l report.html
