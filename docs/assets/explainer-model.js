// The numbers of the explainer: a network of people, averaging over friends, plain propagation, fair
// message passing, and what the theory predicts. The formulas are those of fairmp.analysis.theory and
// fairmp.nn.solvers; tests/docs/test_explainer.py compares them.
(function (root) {
  "use strict";

  const PEOPLE = 200;
  const DIFFERENCE = 0.6;  // between the groups' mean scores, in standard deviations
  const LAMBDA_S = 3;

  // A seeded generator of uniform numbers in [0, 1).
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  function normal(uniform) {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    return radius * Math.cos(2 * Math.PI * uniform());
  }

  // Lemma 2: probability of an edge within a group and between groups.
  function connectionProbabilities({degree, homophily, share}) {
    const density = degree / (PEOPLE - 1);
    const within = share ** 2 + (1 - share) ** 2;
    return {p: density * homophily / within, q: density * (1 - homophily) / (2 * share * (1 - share))};
  }

  // People, their groups and scores, and who knows whom. The same random numbers serve all settings,
  // so that a small move of a slider is a small change of the network.
  function network(settings) {
    const {p, q} = connectionProbabilities(settings);
    const uniform = generator(settings.seed);
    const noise = Array.from({length: PEOPLE}, () => normal(uniform));
    const second = Math.round(settings.share * PEOPLE);
    const group = noise.map((_, i) => (i < second ? 1 : 0));
    const score = noise.map((value, i) => value + (group[i] - 0.5) * DIFFERENCE);
    const edges = [];
    const neighbours = noise.map(() => []);
    for (let i = 0; i < PEOPLE; i++) {
      for (let j = 0; j < i; j++) {
        if (uniform() < (group[i] === group[j] ? p : q)) {
          edges.push([i, j]);
          neighbours[i].push(j);
          neighbours[j].push(i);
        }
      }
    }
    return {group, score, edges, neighbours};
  }

  // Each person's score becomes the mean over the person and their friends, so many times.
  function averaged({score, neighbours}, steps) {
    let values = score;
    for (let step = 0; step < steps; step++) {
      const before = values;
      values = before.map((value, i) => {
        const sum = neighbours[i].reduce((total, j) => total + before[j], value);
        return sum / (neighbours[i].length + 1);
      });
    }
    return values;
  }

  function mean(values) {
    return values.reduce((total, value) => total + value, 0) / values.length;
  }

  function byGroup(values, group) {
    return [0, 1].map((g) => values.filter((_, i) => group[i] === g));
  }

  // Difference between groups in the share above the midpoint of the groups' means: how well the best
  // threshold tells the groups apart.
  function predictability(values, group) {
    const parts = byGroup(values, group);
    const means = parts.map(mean);
    const middle = (means[0] + means[1]) / 2;
    const sign = means[1] >= means[0] ? 1 : -1;
    const [low, high] = parts.map((part) => mean(part.map((v) => (sign * (v - middle) > 0 ? 1 : 0))));
    return high - low;
  }

  // γX + (1 − γ)ÃF with the symmetric Ã = D̂^-½(A + I)D̂^-½.
  function aggregate(f, x, neighbours, gamma) {
    const root = neighbours.map((friends) => Math.sqrt(friends.length + 1));
    return f.map((value, i) => {
      let sum = value / root[i];
      for (const j of neighbours[i]) sum += f[j] / root[j];
      return gamma * x[i] + (1 - gamma) * sum / root[i];
    });
  }

  const sigmoid = (margin) => 1 / (1 + Math.exp(-margin));

  // Margins shifted along Δᵀ: by −w/n₁ in group 1 and +w/n₀ in group 0.
  function shifted(margins, group, sizes, w) {
    return margins.map((m, i) => m - (group[i] ? w / sizes[1] : -w / sizes[0]));
  }

  // The smallest shift at which the groups' mean probabilities are within the target: bisection, since
  // the gap falls with w.
  function closestWithin(margins, group, sizes, target) {
    const gap = (w) => {
      const [first, second] = byGroup(shifted(margins, group, sizes, w).map(sigmoid), group).map(mean);
      return second - first;
    };
    const before = gap(0);
    if (Math.abs(before) <= target) return 0;
    const side = Math.sign(before);
    let low = 0;
    let high = 1;
    while (side * gap(side * high) > target) high *= 2;
    for (let halving = 0; halving < 80; halving++) {
      const middle = (low + high) / 2;
      if (side * gap(side * middle) > target) low = middle;
      else high = middle;
    }
    return side * high;
  }

  // The loop of fairmp.nn.solvers: propagate, find the closest predictions within the target, shift
  // each group. Without a target it is plain propagation.
  function propagate({score, group, neighbours}, steps, target = null) {
    const sizes = byGroup(score, group).map((part) => part.length);
    const gamma = 1 / (1 + LAMBDA_S);
    let f = score;
    for (let step = 0; step < steps; step++) {
      f = aggregate(f, score, neighbours, gamma);
      if (target !== null) f = shifted(f, group, sizes, closestWithin(f, group, sizes, target));
    }
    return f;
  }

  // Decisions at the smallest shift that leaves the smallest gap: people change sides in order.
  function equalDecisions(margins, group) {
    const sizes = byGroup(margins, group).map((part) => part.length);
    const decided = margins.map((m) => m > 0);
    const weight = group.map((g) => (g ? 1 / sizes[1] : -1 / sizes[0]));
    const gap = decided.reduce((total, yes, i) => total + (yes ? weight[i] : 0), 0);
    const side = Math.sign(gap);
    const changes = margins
      .map((m, i) => ({i, at: m / (side * weight[i]), moves: (side * weight[i] > 0) === decided[i]}))
      .filter((change) => change.moves)
      .sort((a, b) => a.at - b.at);
    let left = Math.abs(gap);
    for (const {i} of changes) {
      const after = left - Math.abs(weight[i]);
      if (Math.abs(after) >= left) break;
      decided[i] = !decided[i];
      left = after;
      if (left <= 0) break;
    }
    return decided;
  }

  // What fairmp predicts: the fair loop, then equal decisions.
  function fairDecisions(people, steps) {
    const margins = steps ? propagate(people, steps, 0) : people.score;
    return equalDecisions(margins, people.group);
  }

  // Share of positive decisions in each group.
  function rates(decided, group) {
    return byGroup(decided.map(Number), group).map(mean);
  }

  // --- Theory: moments after so many steps of averaging, of scores with one dimension. ---

  // Abscissae and weights of Gauss's quadrature on [−1, 1], by Newton's method on Legendre polynomials.
  function quadrature(order) {
    const points = [];
    for (let k = 1; k <= order; k++) {
      let x = Math.cos(Math.PI * (k - 0.25) / (order + 0.5));
      let slope = 1;
      for (let round = 0; round < 100; round++) {
        let [previous, value] = [1, x];
        for (let l = 2; l <= order; l++) {
          [previous, value] = [value, ((2 * l - 1) * x * value - (l - 1) * previous) / l];
        }
        slope = order * (x * value - previous) / (x * x - 1);
        const step = value / slope;
        x -= step;
        if (Math.abs(step) < 1e-15) break;
      }
      points.push({x, weight: 2 / ((1 - x * x) * slope * slope)});
    }
    return points;
  }
  const POINTS = quadrature(128);

  // Moments of d^−κ (κ = 1 or 2) for d = fixed + Σ_h a_h, a_h ~ Bin(trials_h, chance_h).
  function degreeMoments(trials, chance, fixed) {
    const rate = trials[0] * chance[0] + trials[1] * chance[1];
    const end = Math.sqrt(rate > 31 ? -Math.log1p(-30 / rate) : 30);
    const nodes = POINTS.map(({x, weight}) => {
      const v = end * (x + 1) / 2;
      const s = v * v;
      const less = chance.map((p) => Math.log1p(p * Math.expm1(-s)));
      const log = trials[0] * less[0] + trials[1] * less[1] - fixed * s;
      const ratio = chance.map((p, h) => trials[h] * p * Math.exp(-s - less[h]));
      return {v, ratio, density: end * weight / 2 * Math.exp(log)};
    });
    const weightOf = (node, kappa) => 2 * node.v ** (2 * kappa - 1) * node.density;  // Γ(1) = Γ(2) = 1
    const sum = (kappa, value) => nodes.reduce((total, n) => total + weightOf(n, kappa) * value(n), 0);
    return {
      inverse: (kappa) => sum(kappa, () => 1),
      first: (kappa, h) => sum(kappa, (n) => n.ratio[h]),
      second: (kappa, h, l) => sum(kappa, (n) => n.ratio[h] * n.ratio[l]
        + (h === l ? n.ratio[h] - n.ratio[h] ** 2 / Math.max(trials[h], 1) : 0)),
    };
  }

  // Mean and variance of each group after one step, exactly.
  function oneStep({trials, chances}, mu) {
    return [0, 1].map((g) => {
      const degree = degreeMoments(trials[g], chances[g], 1);
      const average = degree.inverse(1) * mu[g] + degree.first(1, 0) * mu[0] + degree.first(1, 1) * mu[1];
      const noise = degree.inverse(2) + degree.first(2, 0) + degree.first(2, 1);
      let square = degree.inverse(2) * mu[g] ** 2;
      square += 2 * mu[g] * (degree.first(2, 0) * mu[0] + degree.first(2, 1) * mu[1]);
      for (const h of [0, 1]) for (const l of [0, 1]) square += degree.second(2, h, l) * mu[h] * mu[l];
      return {mean: average, variance: noise + square - average ** 2};
    });
  }

  // Distance from its start of a lazy walk on a tree, after so many steps.
  function distances(stayAtRoot, stay, steps) {
    let law = new Array(steps + 2).fill(0);
    law[0] = 1;
    for (let step = 0; step < steps; step++) {
      const next = law.map((chance) => stay * chance);
      next[0] = stayAtRoot * law[0] + stay * law[1];
      next[1] += (1 - stayAtRoot) * law[0];
      for (let k = 1; k <= steps; k++) next[k] += stay * law[k + 1];
      for (let k = 2; k <= steps + 1; k++) next[k] += (1 - 2 * stay) * law[k - 1];
      law = next;
    }
    return law.slice(0, steps + 1);
  }

  // The tree approximation of a sparse graph, for several steps.
  function tree({trials, chances}, mu, steps) {
    const rate = [0, 1].map((g) => trials[g][0] * chances[g][0] + trials[g][1] * chances[g][1]);
    const mix = [0, 1].map((g) => [0, 1].map((h) => trials[g][h] * chances[g][h] / rate[g]));
    const product = (a, b) => a.map((row) => [0, 1].map((h) => row[0] * b[0][h] + row[1] * b[1][h]));
    const apply = (a, vector) => a.map((row) => row[0] * vector[0] + row[1] * vector[1]);
    const powers = [[[1, 0], [0, 1]]];
    for (let k = 0; k < steps; k++) powers.push(product(powers[k], mix));
    return [0, 1].map((g) => {
      const stayAtRoot = degreeMoments(trials[g], chances[g], 1).inverse(1);
      const stay = degreeMoments(trials[g], chances[g], 2).inverse(1);
      const law = distances(stayAtRoot, stay, steps);
      const shell = law.map((_, k) => Math.max(rate[g], 1) ** k);
      let average = 0;
      let spread = 0;
      for (let k = 0; k <= steps; k++) {
        average += law[k] * apply(powers[k], mu)[g];
        spread += law[k] ** 2 / shell[k];
      }
      for (let k = 1; k <= steps; k++) {
        // What a node at distance k and its subtree contribute, by the node's group.
        const y = [0, 0];
        for (let m = k; m <= steps; m++) {
          apply(powers[m - k], mu).forEach((value, h) => { y[h] += law[m] * value; });
        }
        const expected = apply(mix, y);
        const second = apply(mix, y.map((value) => value * value));
        const innovation = second.map((value, t) => value - expected[t] ** 2);
        spread += (powers[k - 1][g][0] * innovation[0] + powers[k - 1][g][1] * innovation[1]) / shell[k];
      }
      return {mean: average, variance: spread};
    });
  }

  // Mean and variance of each group's scores after so many steps of averaging.
  function predictedMoments(settings, steps) {
    const {p, q} = connectionProbabilities(settings);
    const sizes = [(1 - settings.share) * PEOPLE, settings.share * PEOPLE];
    const model = {
      trials: [0, 1].map((g) => sizes.map((size, h) => size - (g === h ? 1 : 0))),
      chances: [[p, q], [q, p]],
    };
    const mu = [-DIFFERENCE / 2, DIFFERENCE / 2];
    if (steps === 0) return mu.map((value) => ({mean: value, variance: 1}));
    const exact = oneStep(model, mu);
    if (steps === 1) return exact;
    const approximate = tree(model, mu, steps);
    const atOne = tree(model, mu, 1);
    // The tree neglects the variance of the degrees: agree with the exact variance at one step.
    return approximate.map((moments, g) => (
      {...moments, variance: moments.variance * exact[g].variance / atOne[g].variance}));
  }

  // The normal distribution function, to 1e-15: a series near 0, a continued fraction far from it.
  function normalCdf(z) {
    const size = Math.abs(z);
    const density = Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
    let upper;
    if (size < 4) {
      let term = size;
      let sum = size;
      for (let k = 1; k < 200 && term > 1e-17 * sum; k++) {
        term *= size * size / (2 * k + 1);
        sum += term;
      }
      upper = 0.5 - density * sum;
    } else {
      let fraction = 0;
      for (let k = 100; k > 0; k--) fraction = k / (size + fraction);
      upper = density / (size + fraction);
    }
    return z > 0 ? 1 - upper : upper;
  }

  function predictedPredictability(settings, steps) {
    const [first, second] = predictedMoments(settings, steps);
    const middle = (first.mean + second.mean) / 2;
    const rate = ({mean: m, variance}) => normalCdf((m - middle) / Math.sqrt(variance));
    return Math.abs(rate(second) - rate(first));
  }

  root.fairmpExplainer = {
    PEOPLE, DIFFERENCE, LAMBDA_S, network, averaged, predictability, propagate, fairDecisions, rates,
    connectionProbabilities, predictedMoments, predictedPredictability, normalCdf,
  };
})(typeof window === "undefined" ? globalThis : window);
