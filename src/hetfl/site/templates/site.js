"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const data = (id) => JSON.parse($(`#${id}`).textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Sorting: numbers descending first, words ascending; places without a value stay last.
function sortable(table) {
  const heads = $$("thead tr:last-child th", table), body = $("tbody", table);
  heads.forEach((head, column) => $(".sort", head)?.addEventListener("click", () => {
    const value = (row) => row.cells[column].dataset.value ?? "";
    const rows = [...body.rows], numeric = rows.every((row) => value(row) === "" || !isNaN(value(row)));
    const before = head.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !numeric;
    const order = (a, b) => (numeric ? a - b : a.localeCompare(b)) * (ascending ? 1 : -1);
    rows.sort((a, b) => (value(a) === "") - (value(b) === "") || order(value(a), value(b)));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows);
  }));
}

// Filtering: every word must be in a row's name.
function filter(form) {
  const rows = $$("table[data-rows] tbody tr[data-name]");
  const shown = $$("table[data-rows]")[0] ? $$("table.results tbody tr").length || rows.length : 0;
  const apply = () => {
    const words = form.elements.text.value.toLowerCase().split(/\s+/), kind = form.elements.kind?.value ?? "";
    for (const row of rows)
      row.hidden = !words.every((word) => row.dataset.name.includes(word)) || Boolean(kind && row.dataset.kind !== kind);
    const counted = $$("table.results tbody tr").length ? $$("table.results tbody tr") : rows;
    const left = counted.filter((row) => !row.hidden).length;
    $("output", form).textContent = left === shown ? `${shown} rows` : `${left} of ${shown} rows`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
}

// What a cell says when it is pointed at or has the focus.
function tips() {
  const tip = $("#tip");
  const hide = () => { tip.hidden = true; };
  const show = (event) => {
    const anchor = event.target.closest?.("[data-tip]");
    if (!anchor) return hide();
    tip.innerHTML = $(`#${CSS.escape(anchor.dataset.tip)}`).innerHTML;
    tip.hidden = false;
    const at = anchor.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${Math.max(8, Math.min(at.right - width, innerWidth - width - 8))}px`;
    tip.style.top = `${at.bottom + height + 12 < innerHeight ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  };
  for (const anchor of $$("[data-tip]")) anchor.setAttribute("aria-describedby", anchor.dataset.tip);
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, show);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true, capture: true });
}

const SHAPES = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right"];
const MARKS = 8;
// Times that an axis may name, by the seconds of their unit.
const TIMES = [[0.001, [1, 2, 5, 10, 20, 50, 100, 200, 500]], [1, [1, 2, 5, 10, 20, 30]], [60, [1, 2, 5, 10, 20, 30]], [3600, [1, 2, 5, 10]], [86400, [1, 2, 5, 10, 20, 50, 100, 200, 500]]];
const DURATION = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].map(([size, unit]) => `datum.value >= ${size} ? format(datum.value / ${size}, '.3~r') + ' ${unit}' : `).join("") + "format(1000 * datum.value, '.3~r') + ' ms'";

// Lines with marks, a band, and a label for each row at the end of its longest line; labels that would cover one
// another move apart. A row may have a line for each seed. A cross is the last round before a run diverges, and what
// comes after it may leave the chart. What fine-tuning reaches stands apart, behind a dotted line.
function chart(place, lines, { x, y, xTitle, title, log, height = 300, lower = 0 }) {
  const size = 11.5;
  const sound = (line) => { const before = line.points.filter((p) => line.diverged == null || p.round < line.diverged); return before.length ? before : line.points; };
  const values = lines.flatMap((line) => [...sound(line), ...(line.tuned ? [line.tuned] : [])].flatMap((p) => [p[y], p.low ?? p[y], p.high ?? p[y]]));
  const low = Math.max(lower, Math.min(...values)), high = Math.max(...values);
  // Close to 100 % the errors tell rows apart: the axis is then logarithmic in them.
  const { start, ticks: percents, least } = data("near-hundred"), spread = high >= start;
  const level = spread ? (percent) => -Math.log10(Math.max(100 - percent, least)) : (percent) => percent;
  const levels = (p) => ({ ...p, level: level(p[y]), below: level(p.low ?? p[y]), above: level(p.high ?? p[y]) });
  const pad = (level(high) - level(low) || 1) * 0.04;
  const domain = [Math.max(level(lower), level(low) - pad), level(high) + pad], perPixel = (domain[1] - domain[0]) / height;
  const last = Math.max(...lines.flatMap((line) => line.points.map((p) => p[x])));
  const first = Math.min(...lines.flatMap((line) => line.points.map((p) => p[x])).filter((v) => !log || v > 0));
  const rows = [], crosses = [], tuned = [], longest = new Map();
  lines.forEach((line, number) => {
    const mine = line.points.filter((p) => !log || p[x] > 0), silent = mine.length === 0;
    const steady = line.tuned ?? line.points.at(-1);
    const drawn = silent ? [first, last].map((v) => ({ ...steady, [x]: v })) : mine;
    const every = Math.ceil(drawn.length / MARKS);
    drawn.forEach((p, i) => rows.push({ ...levels(p), row: line.row, line: number, seed: line.seed, marked: !silent && (i % every === 0 || i === drawn.length - 1) }));
    if (line.diverged != null) crosses.push({ ...levels(sound(line).at(-1)), row: line.row });
    let end = drawn.at(-1), text = silent ? `${line.row} (sends nothing)` : line.row;
    if (line.tuned && !silent) {
      const before = end;
      text = `${line.row}, fine-tuned`;
      end = { [x]: x === "round" ? before.round + Math.max(0.5, 0.03 * before.round) : line.tuned[x], [y]: line.tuned[y] };
      tuned.push({ row: line.row, text, seed: line.seed, [x]: before[x], level: level(before[y]), to: end[x], reached: level(end[y]), [y]: end[y] });
    }
    // What comes after a divergence is the same for all rows, so a label stands at the height of the last sound round.
    const known = longest.get(line.row), stands = level((line.diverged == null ? end : sound(line).at(-1))[y]);
    if (!known || known[x] < end[x]) longest.set(line.row, { row: line.row, text, [x]: end[x], level: Math.max(domain[0], stands) });
  });
  const ends = [...longest.values()], limit = Math.min(165, 12 + 6.4 * Math.max(...ends.map(({ text }) => text.length)));
  const width = Math.max(150, Math.min(place.clientWidth || 320, 900) - 65 - limit);
  // From the top down, each label at least its height below the one before; then back up from the bottom.
  ends.sort((a, b) => b.level - a.level);
  let place_ = Infinity;
  for (const end of ends) end.label = place_ = Math.min(end.level, place_ - size * perPixel);
  place_ = domain[0] - size * perPixel / 2;
  for (const end of [...ends].reverse()) end.label = place_ = Math.max(end.label, place_ + size * perPixel);
  const named = [...new Map(lines.map((line) => [line.row, line])).values()], names = named.map((line) => line.row), ink = colour("ink"), muted = colour("muted");
  const scale = { domain: names, range: named.map((line) => colour(`series-${line.series}`)) };
  const near = { condition: { param: "near", value: 1 }, value: 0.16 };
  const few = last / first > 300, ticks = TIMES.flatMap(([unit, counts]) => counts.filter((count) => !few || [1, 10, 100].includes(count)).map((count) => count * unit)).filter((time) => first <= time && time <= last);
  const xs = { field: x, type: "quantitative", title: xTitle, scale: log ? { type: "log", nice: false } : { zero: false, nice: false }, axis: { tickCount: 5, labelOverlap: true, format: log ? "~s" : undefined, values: x === "time" && ticks.length > 1 ? ticks : undefined, labelExpr: x === "time" ? DURATION : undefined, tickMinStep: x === "round" ? 1 : undefined } };
  const shown = spread && percents.map((percent) => [percent, level(percent)]).filter(([, at]) => domain[0] <= at && at <= domain[1]);
  const ys = { field: "level", type: "quantitative", title: spread ? "Accuracy, %, log scale of the errors" : "Accuracy, %", scale: { domain, nice: false, zero: false }, axis: spread ? { values: shown.map(([, at]) => at), labelExpr: "format(100 - pow(10, -datum.value), '~r')" } : {} };
  const detail = { field: "line" }, hue = { field: "row", type: "nominal", scale, legend: null };
  const hollow = new Set(lines.filter((line) => line.hollow).map((line) => line.row));
  const tooltip = [{ field: "row", title: "row" }, { field: x, title: xTitle.toLowerCase(), format: x === "round" ? "d" : ".3~s" }, { field: y, title: "accuracy, %", format: ".2f" }];
  const shape = { field: "row", type: "nominal", legend: null, scale: { domain: names, range: named.map((line) => SHAPES[line.marker]) } };
  const fill = { field: "row", type: "nominal", legend: null, scale: { domain: names, range: named.map((line) => (hollow.has(line.row) ? colour("page") : colour(`series-${line.series}`))) } };
  const mark = { type: "point", size: 44, strokeWidth: 1.5, opacity: 1, clip: true };
  const band = rows.some((p) => p.high > p.low) && !log;
  if (rows.some((p) => p.seed != null)) tooltip.splice(1, 0, { field: "seed", title: "seed" });
  if (band) tooltip.push({ field: "low", title: "lowest seed", format: ".2f" }, { field: "high", title: "highest seed", format: ".2f" });
  const aside = { value: width + 14 };
  const spec = {
    width, height, title: title && { text: title, anchor: "start", fontSize: 13 }, autosize: { type: "pad" },
    layer: [
      ...(band ? [{ data: { values: rows }, mark: { type: "area", opacity: 0.13, clip: true }, encoding: { detail, x: xs, y: { ...ys, field: "below" }, y2: { field: "above" }, color: hue, opacity: { condition: { param: "near", value: 0.13 }, value: 0.02 } } }] : []),
      { data: { values: rows }, mark: { type: "line", strokeWidth: 1.8, clip: true }, encoding: { detail, x: xs, y: ys, color: hue, opacity: near } },
      {
        data: { values: rows.filter((p) => p.marked) },
        mark,
        params: [{ name: "near", select: { type: "point", fields: ["row"], on: "pointerover", nearest: true, clear: "pointerout" } }],
        encoding: { x: xs, y: ys, color: hue, opacity: near, tooltip, shape, fill },
      },
      ...(tuned.length ? [
        { data: { values: tuned }, mark: { type: "rule", strokeDash: [1, 3], strokeWidth: 1.8, clip: true }, encoding: { x: xs, x2: { field: "to" }, y: ys, y2: { field: "reached" }, color: hue, opacity: near } },
        { data: { values: tuned }, mark, encoding: { x: { ...xs, field: "to" }, y: { ...ys, field: "reached" }, color: hue, opacity: near, shape, fill, tooltip: [{ field: "text", title: "row" }, ...tooltip.filter(({ title }) => title === "seed"), { field: y, title: "accuracy, %", format: ".2f" }] } },
      ] : []),
      ...(crosses.length ? [{ data: { values: crosses }, mark: { type: "text", text: "×", fontSize: 22, fontWeight: "bold" }, encoding: { x: xs, y: ys, color: hue, opacity: near } }] : []),
      { data: { values: ends }, mark: { type: "rule", strokeWidth: 0.8 }, encoding: { x: { ...xs }, x2: aside, y: ys, y2: { field: "label" }, color: hue, opacity: { condition: { param: "near", value: 0.7 }, value: 0.1 } } },
      { data: { values: ends }, mark: { type: "text", align: "left", dx: 3, fontSize: 11, limit }, encoding: { x: aside, y: { ...ys, field: "label" }, text: { field: "text" }, color: { value: ink }, opacity: near } },
    ],
    config: {
      background: null, font: getComputedStyle(document.body).getPropertyValue("--sans"), view: { stroke: null },
      axis: { labelColor: muted, titleColor: muted, titleFontWeight: "normal", gridColor: colour("grid"), domainColor: muted, tickColor: muted, labelFontSize: 11, titleFontSize: 11 },
      title: { color: ink }, aria: true,
    },
  };
  return vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: false, tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" } });
}

function curves(place) {
  const panels = data(place.dataset.curves), places = panels.map(() => place.appendChild(document.createElement("div")));
  const draw = () => panels.forEach((panel, i) => {
    const x = $('input[name="across"]:checked').value;
    const point = ([round, mean, low, high, megabytes]) => ({ round, mean, low, high, megabytes: megabytes * 1e6 });
    const lines = panel.lines.map((line) => ({ ...line, points: line.points.map(point), tuned: line.tuned && point(line.tuned) }));
    chart(places[i], lines, { x, y: "mean", title: panel.title, log: x === "megabytes", xTitle: x === "round" ? "Round" : "Bytes sent so far, all together" });
  });
  return redrawn(draw, $$('input[name="across"]'));
}

function redrawn(draw, inputs = []) {
  draw();
  for (const input of inputs) input.addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}

// Time to an accuracy. Up and down in Mbit/s, latency in ms, speed in GFLOP/s.
const NETWORKS = { "home, 20 / 100 Mbit/s": [20, 100, 15], "4G, 10 / 30 Mbit/s": [10, 30, 50], "LoRa-like, 0.02 / 0.02 Mbit/s": [0.02, 0.02, 500], "data centre, 10 Gbit/s": [10000, 10000, 0.2] };
const DEVICES = { "microcontroller, 0.05": 0.05, "phone, 20": 20, "laptop CPU, 200": 200, "GPU, 20,000": 20000 };

function timeline(line, { up, down, latency, speed }) {
  let time = 0, sent = 0, received = 0;
  const parts = { compute: 0, transfer: 0, latency: 0 };
  return line.rounds.map(([accuracy, bytesUp, bytesDown], i) => {
    const registration = i === 0, trips = (bytesUp > 0) + (bytesDown > 0);
    parts.compute += registration ? 0 : line.operations / (speed * 1e9);
    parts.transfer += (8 * bytesUp) / (up * 1e6) + (8 * bytesDown) / (down * 1e6);
    parts.latency += (trips * latency) / 1e3;
    time = parts.compute + parts.transfer + parts.latency;
    sent += bytesUp; received += bytesDown;
    return { accuracy: registration ? null : accuracy, time, sent, received, round: i, ...parts };
  });
}

function duration(seconds) {
  const units = [["ms", 1e-3, 1], ["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800], ["days", 86400, Infinity]];
  const [unit, size] = units.find(([, , most]) => seconds < most);
  return `${Number((seconds / size).toPrecision(3))} ${unit}`;
}

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"], at = size > 0 ? Math.min(4, Math.floor(Math.log10(size) / 3)) : 0;
  return `${Number((size / 1000 ** at).toPrecision(3))} ${units[at]}`;
}

function costs(form) {
  const tables = data("costs-data"), fields = form.elements, body = $("#times tbody");
  const fill = (select, names) => names.forEach((name, i) => select.add(new Option(name, i)));
  fill(fields.table, tables.map((table) => table.title));
  for (const [select, presets] of [[fields.network, NETWORKS], [fields.device, DEVICES]]) Object.keys(presets).forEach((name) => select.add(new Option(name, name)));
  fields.network.value = Object.keys(NETWORKS)[1];
  fields.device.value = Object.keys(DEVICES)[1];
  const presets = () => {
    if (fields.network.value) [fields.up.value, fields.down.value, fields.latency.value] = NETWORKS[fields.network.value];
    if (fields.device.value) fields.speed.value = DEVICES[fields.device.value];
  };
  const columns = () => { fields.column.length = 0; fill(fields.column, tables[fields.table.value].columns.map((column) => column.title)); fields.column.parentElement.hidden = fields.column.length === 1; };
  const lines = () => tables[fields.table.value].columns[fields.column.value].lines;
  const target = () => {
    const best = lines().map((line) => Math.max(...line.rounds.map(([accuracy]) => accuracy ?? 0))).sort((a, b) => a - b);
    // Close to 100 % half a percent is more than what tells methods apart.
    const step = (fields.target.step = best.at(-1) >= data("near-hundred").start ? 0.05 : 0.5);
    fields.target.max = Math.ceil(best.at(-1) / step) * step;
    fields.target.value = Math.floor(best[best.length >> 1]);
  };
  const draw = () => {
    const chosen = Object.fromEntries(["up", "down", "latency", "speed"].map((name) => [name, Number(fields[name].value)]));
    if (!form.checkValidity()) return;
    const goal = Number(fields.target.value);
    fields.shown.textContent = `${Number(goal.toFixed(2))}`;
    const runs = lines().map((line) => ({ line, rounds: timeline(line, chosen) }));
    for (const run of runs) run.reached = run.rounds.find(({ accuracy }) => accuracy !== null && accuracy >= goal);
    runs.sort((a, b) => (a.reached?.time ?? Infinity) - (b.reached?.time ?? Infinity));
    const longest = Math.max(...runs.map((run) => run.reached?.time ?? 0));
    body.replaceChildren(...runs.map(({ line, rounds, reached }) => {
      const row = document.createElement("tr"), name = document.createElement("th");
      name.scope = "row";
      name.textContent = line.seed == null ? line.row : `${line.row}, seed ${line.seed}`;
      for (const text of [line.kind, ...line.troubles].filter(Boolean)) name.append(Object.assign(document.createElement("span"), { className: "kind", textContent: text }));
      row.append(name);
      const cell = (text, className = "") => row.append(Object.assign(document.createElement("td"), { textContent: text, className }));
      if (!reached) {
        const best = Math.max(...rounds.map(({ accuracy }) => accuracy ?? 0));
        cell("not reached", "empty");
        cell(`best ${best.toFixed(2)} % in ${rounds.length - 1} rounds`, "text empty");
        for (let i = 0; i < 3; i++) cell("");
      } else {
        cell(duration(reached.time));
        const bar = document.createElement("td"), track = document.createElement("span");
        track.className = "time";
        track.style.width = `${(100 * reached.time) / longest}%`;
        for (const part of ["compute", "transfer", "latency"]) {
          const piece = Object.assign(document.createElement("i"), { className: `t-${part}`, title: `${part} ${duration(reached[part])}` });
          piece.style.flexGrow = reached[part];
          track.append(piece);
        }
        bar.append(track, Object.assign(document.createElement("span"), { className: "range", textContent: ["compute", "transfer", "latency"].map((part) => `${Math.round((100 * reached[part]) / reached.time) || 0} %`).join(" · ") }));
        bar.className = "text";
        row.append(bar);
        cell(reached.round);
        cell(bytes(reached.sent));
        cell(bytes(reached.received));
      }
      cell(`${Number((line.operations / 1e9).toPrecision(3))} G`);
      return row;
    }));
    const drawn = runs.map(({ line, rounds }) => ({ ...line, points: rounds.filter(({ accuracy }) => accuracy !== null) }));
    chart($("#over-time-chart"), drawn, { x: "time", y: "accuracy", log: true, xTitle: "Time", height: 380 });
    $("#over-time-chart + .foot").hidden = drawn.every((line) => line.diverged == null);
  };
  form.addEventListener("input", (event) => {
    if (event.target === fields.table) columns();
    if ([fields.table, fields.column].includes(event.target)) target();
    if ([fields.up, fields.down, fields.latency].includes(event.target)) fields.network.value = "";
    if (event.target === fields.speed) fields.device.value = "";
    presets();
    draw();
  });
  columns(); target(); presets();
  redrawn(draw);
}

addEventListener("DOMContentLoaded", () => {
  $$("table[data-rows]").forEach(sortable);
  $$("form[data-filter]").forEach(filter);
  $$("[data-curves]").forEach(curves);
  if ($("#costs")) costs($("#costs"));
  tips();
});
