// The explainer on the home page: sliders, a drawing of the network, and three charts. The numbers come
// from explainer-model.js; without JavaScript the page keeps a still picture.
(function () {
  "use strict";

  const SLIDERS = [
    {name: "homophily", label: "Friendships within a group", min: 50, max: 98, step: 1, value: 90, unit: " %"},
    {name: "degree", label: "Friends per person", min: 2, max: 16, step: 1, value: 8, unit: ""},
    {name: "steps", label: "Steps of averaging over friends", min: 0, max: 5, step: 1, value: 2, unit: ""},
    {name: "share", label: "Share of group B", min: 10, max: 50, step: 1, value: 50, unit: " %"},
  ];
  const MAX_STEPS = 5;
  const GROUPS = ["A", "B"];
  const SVG = "http://www.w3.org/2000/svg";

  function element(tag, attributes = {}, ...children) {
    const isSvg = ["svg", "g", "path", "line", "circle", "rect", "text", "title"].includes(tag);
    const made = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const percent = (share) => `${Math.round(100 * share)}`;

  // --- The state: settings, and everything that follows from them. ---

  function readSettings(inputs, seed) {
    const value = (name) => Number(inputs[name].value);
    return {
      homophily: value("homophily") / 100,
      degree: value("degree"),
      share: value("share") / 100,
      steps: value("steps"),
      seed,
    };
  }

  function compute(settings) {
    const model = window.fairmpExplainer;
    const people = model.network(settings);
    const own = model.rates(people.score.map((score) => score > 0), people.group);
    const plainMargins = model.propagate(people, settings.steps);
    const fair = model.fairDecisions(people, settings.steps);
    const allSteps = Array.from({length: MAX_STEPS + 1}, (_, k) => k);
    return {
      people,
      averaged: model.averaged(people, settings.steps),
      measured: allSteps.map((k) => model.predictability(model.averaged(people, k), people.group)),
      predicted: allSteps.map((k) => model.predictedPredictability(settings, k)),
      rates: {own, plain: model.rates(plainMargins.map((m) => m > 0), people.group), fair: model.rates(fair, people.group)},
      fair,
    };
  }

  // --- The network: friends attract, everyone repels. ---

  function firstPlaces(count) {
    const golden = Math.PI * (3 - Math.sqrt(5));
    return Array.from({length: count}, (_, i) => {
      const radius = Math.sqrt((i + 0.5) / count);
      return [radius * Math.cos(i * golden), radius * Math.sin(i * golden)];
    });
  }

  function relax(places, edges, rounds) {
    const spacing = 0.9 / Math.sqrt(places.length);
    for (let round = 0; round < rounds; round++) {
      const push = places.map(([x, y]) => [-0.4 * x, -0.4 * y]);  // towards the middle
      for (let i = 0; i < places.length; i++) {
        for (let j = 0; j < i; j++) {
          const dx = places[i][0] - places[j][0];
          const dy = places[i][1] - places[j][1];
          const force = (spacing * spacing) / (dx * dx + dy * dy + 1e-4);
          push[i][0] += dx * force; push[i][1] += dy * force;
          push[j][0] -= dx * force; push[j][1] -= dy * force;
        }
      }
      for (const [i, j] of edges) {
        const dx = places[i][0] - places[j][0];
        const dy = places[i][1] - places[j][1];
        const force = 0.12 * Math.hypot(dx, dy) / spacing * 0.5;
        push[i][0] -= dx * force; push[i][1] -= dy * force;
        push[j][0] += dx * force; push[j][1] += dy * force;
      }
      const limit = 0.12 * (1 - round / rounds) + 0.005;
      places.forEach((place, i) => {
        const length = Math.hypot(...push[i]) || 1;
        const move = Math.min(length, limit) / length;
        place[0] += push[i][0] * move;
        place[1] += push[i][1] * move;
      });
    }
  }

  function drawNetwork(svg, places, {people, fair}) {
    const [xs, ys] = [0, 1].map((axis) => places.map((place) => place[axis]));
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const scale = Math.min(364 / (Math.max(...xs) - left), 264 / (Math.max(...ys) - top));
    const x = (i) => (18 + (xs[i] - left) * scale).toFixed(1);
    const y = (i) => (18 + (ys[i] - top) * scale).toFixed(1);
    const lines = people.edges.map(([i, j]) => `M${x(i)} ${y(i)}L${x(j)} ${y(j)}`).join("");
    const marks = people.group.map((g, i) => {
      const attributes = {class: `person group-${GROUPS[g]}${fair[i] ? " yes" : ""}`};
      return g
        ? element("rect", {...attributes, x: x(i) - 4.5, y: y(i) - 4.5, width: 9, height: 9})
        : element("circle", {...attributes, cx: x(i), cy: y(i), r: 5});
    });
    svg.replaceChildren(element("path", {d: lines, class: "edge"}), ...marks);
  }

  // --- Charts. ---

  function drawScores(svg, {people, averaged}) {
    const bins = 27;
    const limit = 1.05 * Math.max(...averaged.map(Math.abs));
    const counts = [new Array(bins).fill(0), new Array(bins).fill(0)];
    averaged.forEach((value, i) => {
      const place = Math.floor((value + limit) / (2 * limit) * bins);
      counts[people.group[i]][Math.min(Math.max(place, 0), bins - 1)] += 1;
    });
    const tallest = Math.max(...counts[0], ...counts[1]);
    const width = 380 / bins;
    const bars = counts.flatMap((row, g) => row.map((count, k) => {
      const height = 84 * count / tallest;
      const y = g ? 100 : 100 - height;
      return element("rect", {class: `bar group-${GROUPS[g]}`, x: 10 + k * width, y, width: width - 1, height});
    }));
    const axis = element("line", {class: "axis", x1: 10, x2: 390, y1: 100, y2: 100});
    svg.replaceChildren(
      ...bars, axis,
      element("text", {x: 10, y: 14}, "group A"),
      element("text", {x: 10, y: 194}, "group B"),
      element("text", {x: 390, y: 194, "text-anchor": "end"}, "averaged score →"),
    );
  }

  function drawTheory(svg, settings, {measured, predicted}) {
    const x = (k) => 46 + k * 66;
    const y = (share) => 160 - 140 * share;
    const grid = [0, 0.5, 1].flatMap((share) => [
      element("line", {class: "grid", x1: 40, x2: 390, y1: y(share), y2: y(share)}),
      element("text", {x: 36, y: y(share) + 4, "text-anchor": "end"}, percent(share)),
    ]);
    const curve = predicted.map((share, k) => `${k ? "L" : "M"}${x(k)} ${y(share)}`).join("");
    const points = measured.map((share, k) => element("circle", {
      class: k === settings.steps ? "point chosen" : "point", cx: x(k), cy: y(share), r: k === settings.steps ? 7 : 4.5,
    }));
    const labels = measured.map((_, k) => element("text", {x: x(k), y: 178, "text-anchor": "middle"}, `${k}`));
    svg.replaceChildren(
      ...grid, element("path", {class: "theory", d: curve}), ...points, ...labels,
      element("text", {x: 215, y: 196, "text-anchor": "middle"}, "steps of averaging"),
    );
  }

  function drawRates(svg, rates) {
    const rows = [["own data", rates.own], ["plain propagation", rates.plain], ["FMP", rates.fair]];
    const marks = rows.flatMap(([label, pair], row) => {
      const top = 12 + row * 64;
      const bars = pair.map((rate, g) => [
        element("rect", {class: `bar group-${GROUPS[g]}`, x: 10, y: top + 12 + 18 * g, width: Math.max(1, 300 * rate), height: 15}),
        element("text", {x: 18 + 300 * rate, y: top + 24 + 18 * g}, `${percent(rate)} %`),
      ]).flat();
      return [element("text", {x: 10, y: top + 6, class: "row"}, label), ...bars];
    });
    svg.replaceChildren(...marks);
  }

  // --- Words, for everyone and for screen readers. ---

  function gapInWords([first, second]) {
    const gap = Math.round(100 * second) - Math.round(100 * first);
    if (gap === 0) return "no gap";
    return `group ${gap > 0 ? "B" : "A"} is ahead by ${Math.abs(gap)} points`;
  }

  function story(settings, {measured, rates}) {
    const own = percent(measured[0]);
    const after = percent(measured[settings.steps]);
    const friends = settings.steps
      ? `; after ${settings.steps === 1 ? "one step" : `${settings.steps} steps`} of averaging over friends, ${after}`
      : "";
    return [
      `Telling the groups apart: ${own} points from a person's own score${friends} (0 is chance, 100 is certainty).`,
      `Positive decisions: ${gapInWords(rates.own)} on own data, ${gapInWords(rates.plain)} with plain propagation, `
        + `${gapInWords(rates.fair)} with FMP (target 0).`,
    ];
  }

  // --- The page. ---

  function slider({name, label, min, max, step, value, unit}) {
    const id = `explainer-${name}`;
    const input = element("input", {type: "range", id, name, min, max, step, value});
    const output = element("output", {for: id}, `${value}${unit}`);
    input.addEventListener("input", () => { output.textContent = `${input.value}${unit}`; });
    return {input, row: element("div", {class: "slider"}, element("label", {for: id}, label, " "), output, input)};
  }

  function figure(title, label, height) {
    const svg = element("svg", {viewBox: `0 0 400 ${height}`, role: "img", "aria-label": label});
    return {svg, block: element("figure", {}, element("figcaption", {}, title), svg)};
  }

  function build(container) {
    const sliders = SLIDERS.map(slider);
    const inputs = Object.fromEntries(sliders.map(({input}) => [input.name, input]));
    const again = element("button", {type: "button", class: "md-button"}, "Draw other people");
    const network = figure("200 people", "The network: circles are group A, squares group B; an outline marks a positive decision by FMP", 300);
    const scores = figure("What averaging does to their scores", "Histogram of averaged scores, group A above the axis and group B below", 200);
    const theory = figure("How well the scores tell the group (points)", "Points: this network; line: what the theory predicts for each number of steps", 200);
    const rates = figure("Positive decisions", "Share of positive decisions by group: own data, plain propagation, FMP", 200);
    const words = element("div", {class: "words", "aria-live": "polite"});
    const legend = element("p", {class: "legend"},
      element("span", {class: "key group-A"}), " group A ", element("span", {class: "key square group-B"}), " group B · ",
      "outlined: positive decision by FMP · line: theory, dots: this network");
    container.replaceChildren(
      element("form", {class: "controls", "aria-label": "Settings of the network"}, ...sliders.map(({row}) => row), again),
      words,
      element("div", {class: "charts"}, network.block, scores.block, theory.block, rates.block),
      legend,
    );

    let seed = 7;
    let places = firstPlaces(window.fairmpExplainer.PEOPLE);
    let isFirst = true;
    let waiting = false;
    const update = () => {
      waiting = false;
      const settings = readSettings(inputs, seed);
      const state = compute(settings);
      relax(places, state.people.edges, isFirst ? 150 : 40);
      isFirst = false;
      drawNetwork(network.svg, places, state);
      drawScores(scores.svg, state);
      drawTheory(theory.svg, settings, state);
      drawRates(rates.svg, state.rates);
      words.replaceChildren(...story(settings, state).map((line) => element("p", {}, line)));
      container.dataset.state = JSON.stringify({settings, measured: state.measured, predicted: state.predicted, rates: state.rates});
    };
    const schedule = () => {
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(update);
      }
    };
    for (const {input} of sliders) input.addEventListener("input", schedule);
    again.addEventListener("click", () => {
      seed += 1;
      places = firstPlaces(window.fairmpExplainer.PEOPLE);
      isFirst = true;
      schedule();
    });
    update();
  }

  function start() {
    const container = document.getElementById("explainer");
    if (container && !container.dataset.state) build(container);
  }
  if (typeof document$ !== "undefined") document$.subscribe(start);
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
