"use strict";
for (const root of document.querySelectorAll(".panel")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const find = (name) => root.querySelector(name);
  const make = (name, kind, text) => {
    const element = document.createElement(name);
    if (kind) element.className = kind;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (name, values, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const points = (share) => share === null || share === undefined ? "n/a" : (100 * share).toFixed(1);
  const slider = find("input[type=range]"), before = data.before, noun = data.noun;
  const current = () => data.criteria[Number(find("input[type=radio]:checked").value)];
  const cards = {}, bars = [];
  const titles = {accuracy: ["accuracy", "%"], dp: ["gap between groups (ΔDP)", "points"],
    eo: ["gap at equal labels (ΔEO)", "points"], fpr: ["gap in false positives (ΔFPR)", "points"],
    odds: ["gap in errors (Δodds)", "points"]};
  const card = (key, label, note) => {
    const item = make("li"), value = make("span", "value");
    value.dataset.figure = key;
    item.append(make("span", "label", label), value, make("span", "note", note));
    find(".cards").append(item);
    cards[key] = value;
    return item;
  };
  for (const [key, [label, unit]] of Object.entries(titles))
    if (before[key] !== null && before[key] !== undefined) card(key, label, `${points(before[key])} ${unit} before${data.sample ? `; ${data.sample}` : ""}`);
  const who = card("changed", "decisions changed", "").lastChild;
  data.groups.forEach((group, g) => data.classes.forEach((name, c) => {
    const row = make("div", "bar"), track = make("div", "track"), fill = make("div", "fill"), was = make("div", "was");
    const value = make("span");
    value.dataset.rate = `${g}-${c}`;
    row.append(make("span", "", data.classes.length > 1 ? `${group}: ${name}` : group), value, track);
    track.append(fill, was);
    was.style.left = `${100 * before.rates[g][c]}%`;
    find(".bars").append(row);
    bars.push({g, c, fill, value});
  }));

  const frame = {left: 50, right: 345, top: 12, bottom: 185};
  let dot, place;
  const curve = (criterion) => {
    const svg = find("svg"), key = criterion.gap;
    const cost = before.accuracy !== null ? (step) => step.accuracy : (step) => 1 - (step.total || 0) / data.total;
    const all = [...criterion.steps, before];
    const high = Math.max(...all.map((step) => step[key])) || 1e-9;
    const ys = all.map(cost), top = Math.max(...ys), lowest = Math.min(...ys);
    // At least five points high: smaller differences are noise, and should look small.
    const room = Math.max(top - lowest, 0.05), low = top - room;
    place = (step) => [frame.left + (frame.right - frame.left) * step[key] / high,
      frame.bottom - 10 - (frame.bottom - frame.top - 20) * (cost(step) - low) / room];
    const path = criterion.steps.map((step) => place(step).join(",")).join(" ");
    const [x, y] = place(before);
    dot = draw("circle", {class: "dot", r: 7});
    const axis = (x1, y1, x2, y2) => draw("line", {class: "axis", x1, y1, x2, y2});
    const yname = before.accuracy !== null ? "accuracy, %" : "decisions unchanged, %";
    svg.replaceChildren(axis(frame.left, frame.bottom, frame.right, frame.bottom), axis(frame.left, frame.top, frame.left, frame.bottom),
      draw("text", {x: frame.left, y: 202, "text-anchor": "middle"}, "0"),
      draw("text", {x: frame.right, y: 202, "text-anchor": "end"}, points(high)),
      draw("text", {x: 197, y: 222, "text-anchor": "middle"}, `${titles[key][0]}, points`),
      draw("text", {x: 44, y: place({[key]: 0, accuracy: top, total: (1 - top) * data.total})[1] + 4, "text-anchor": "end"}, points(top)),
      draw("text", {x: 44, y: frame.bottom - 6, "text-anchor": "end"}, points(top - room)),
      draw("text", {x: 12, y: 98, "text-anchor": "middle", transform: "rotate(-90 12 98)"}, yname),
      draw("polyline", {class: "line", points: path}), draw("rect", {class: "start", x: x - 5, y: y - 5, width: 10, height: 10}), dot);
  };
  const show = () => {
    const criterion = current(), step = criterion.steps[Number(slider.value)];
    const target = `${Number((100 * step.target).toFixed(2))} points`;
    find("output").textContent = target;
    slider.setAttribute("aria-valuetext", target);
    for (const key of Object.keys(titles)) if (cards[key]) cards[key].textContent = `${points(step[key])} ${titles[key][1]}`;
    const byGroup = data.groups.map((name, g) => `${step.changed[g].toLocaleString("en")} in ${name}`).join(", ");
    cards.changed.textContent = step.total.toLocaleString("en");
    who.textContent = `of ${data.total.toLocaleString("en")} ${noun}: ${byGroup}${data.sample ? `; ${data.sample}` : ""}`;
    for (const {g, c, fill, value} of bars) {
      fill.style.width = `${100 * step.rates[g][c]}%`;
      value.textContent = `${points(step.rates[g][c])} %`;
    }
    const [x, y] = place(step);
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
    const command = criterion.command.replace("{target}", String(step.target));
    find(".copy").hidden = !command;
    find(".copy pre").textContent = command;
    find("svg").setAttribute("aria-label", `Accuracy against the ${titles[criterion.gap][0]}: now ${points(step.accuracy)} % at ${points(step[criterion.gap])} points`);
  };
  let waiting, copied;
  const say = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const step = current().steps[Number(slider.value)];
      find(".quiet").textContent = `Accuracy ${points(step.accuracy)} %, ΔDP ${points(step.dp)}, ${step.total} decisions changed`;
    }, 400);
  };
  const choose = () => {
    slider.max = String(current().steps.length - 1);
    slider.value = String(current().start || 0);
    curve(current());
    show();
  };
  for (const radio of root.querySelectorAll("input[type=radio]")) radio.addEventListener("change", () => { choose(); say(); });
  slider.addEventListener("input", () => { show(); say(); });
  find("button").addEventListener("click", async () => {
    const text = find(".copy pre");
    let done = true;
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      getSelection().selectAllChildren(text);
      done = document.execCommand("copy");
    }
    find(".copy span").textContent = done ? "Copied" : "Press Ctrl+C to copy the selected command.";
    clearTimeout(copied);
    copied = setTimeout(() => { find(".copy span").textContent = ""; }, 4000);
  });
  find(".live").hidden = false;
  find("details").open = false;
  choose();
}
