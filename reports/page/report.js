// The report's own script: light and dark, tables that sort and filter, charts. It gets its numbers from the page.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "";
  const setTheme = theme => { root.dataset.theme = theme; };
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!chosen) { setTheme(dark.matches ? "dark" : "light"); drawAll(); } });
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosen);
    drawAll();
  });
  // Paper is white.
  let before = "";
  addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); drawAll(); });
  addEventListener("afterprint", () => { setTheme(before); drawAll(); });

  // --- tables
  const narrow = matchMedia("(max-width: 640px)");
  // A phone begins with tables closed.
  const closing = () => { for (const rows of document.querySelectorAll(".rows")) rows.open = !narrow.matches; };
  narrow.addEventListener("change", closing);
  if (narrow.matches) closing();
  addEventListener("beforeprint", () => { for (const rows of document.querySelectorAll(".rows")) rows.open = true; });

  const keyOf = cell => (cell.dataset.s === undefined ? cell.textContent : cell.dataset.s);
  for (const article of document.querySelectorAll(".answer")) {
    const body = article.querySelector("tbody");
    const heads = [...article.querySelectorAll("th")];
    heads.forEach(head => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const column = [...head.parentNode.cells].indexOf(head); // a phone has another order
        const number = head.classList.contains("n");
        const was = head.getAttribute("aria-sort");
        const down = was ? was === "ascending" : number;
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        const rows = [...body.rows].map(row => [keyOf(row.cells[column]), row]);
        const plain = number && rows.every(([key]) => key === "" || !Number.isNaN(Number(key)));
        rows.sort(([a], [b]) => {
          if (a === "" || b === "") return (a === "") - (b === ""); // what is absent comes last
          return sign * (plain ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
    // A phone shows numbers first; the first of the names stays in sight at the right edge.
    const names = heads.map((head, at) => [head, at]).filter(([head]) => !head.matches(".n, .spread")).map(([, at]) => at);
    const weight = at => heads[at].matches(".measure") ? 0 : 1; // what is measured before times and ids
    const numbers = heads.map((_, at) => at).filter(at => !names.includes(at)).sort((a, b) => weight(a) - weight(b) || a - b);
    if (names.length && numbers.length) {
      const lines = [heads, ...[...body.rows].map(row => [...row.cells])];
      for (const cells of lines) cells[names[0]].classList.add("who");
      const arrange = () => {
        const order = narrow.matches ? [...numbers, ...names] : heads.map((_, at) => at);
        for (const cells of lines) cells[0].parentNode.append(...order.map(at => cells[at]));
      };
      narrow.addEventListener("change", arrange);
      if (narrow.matches) arrange();
    }
    // What does not fit says that there is more.
    const wrap = article.querySelector(".wrap");
    const rightward = article.querySelector(".rightward");
    const tell = () => {
      const edge = wrap.getBoundingClientRect().right + 4; // a column that is cut by less can be read
      const hidden = heads.filter(head => !(narrow.matches && head.classList.contains("who"))
        && head.getBoundingClientRect().right > edge).length;
      rightward.hidden = !hidden;
      rightward.textContent = hidden === 1 ? "1 more column to the right →" : hidden + " more columns to the right →";
      wrap.classList.toggle("on", hidden > 0);
    };
    wrap.addEventListener("scroll", tell, { passive: true });
    new ResizeObserver(tell).observe(wrap);

    const search = article.querySelector("input[type=search]");
    if (search) search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
      }
    });
  }

  // --- where we are
  const links = new Map([...document.querySelectorAll("nav a")].map(link => [link.hash.slice(1), link]));
  const spy = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach(link => link.classList.remove("here"));
      const link = links.get(entry.target.id);
      if (link) link.classList.add("here");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach(section => spy.observe(section));

  // --- charts
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const plots = new Map();
  const color = name => getComputedStyle(root).getPropertyValue(name).trim();
  const short = value => {
    const size = Math.abs(value);
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + " G";
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + " M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + " k";
    return String(size >= 100 ? Math.round(value) : +value.toPrecision(3));
  };
  const units = {
    "ms": value => value >= 1000 ? short(value / 1000) + " s" : value >= 1 ? short(value) + " ms" : short(value * 1000) + " µs",
    "B/s": value => short(value) + (Math.abs(value) >= 1e4 ? "B/s" : " B/s"),
    "/s": value => short(value) + " /s",
    "": value => short(value),
  };

  // What has one name has one colour in all charts.
  const paints = new Map([["other", "--c8"]]);
  const paintOf = label => {
    if (!paints.has(label)) paints.set(label, "--c" + ((paints.size - 1) % 7 + 1));
    return color(paints.get(label));
  };
  // Times as everybody reads them, whatever the reader's country.
  const day = "\n{YYYY}-{MM}-{DD}";
  const dates = [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
    [0.001, "{ss}.{fff}", day + " {HH}:{mm}", null, day + " {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
  ];

  function draw(name) {
    const chart = charts[name];
    const figure = document.getElementById("chart-" + name);
    if (!figure) return;
    const place = figure.querySelector(".plot");
    const old = plots.get(name);
    if (old) old.destroy();
    const select = figure.querySelector("select");
    const series = chart.choices[select ? select.value : ""];
    const show = units[chart.unit];
    const stacked = chart.kind === "stacked";
    // An interval is drawn from its begin to its end: the last one needs an end too.
    const times = chart.times.concat(chart.times[chart.times.length - 1] + chart.step);
    const raw = series.map(one => one.values.concat(stacked ? one.values[one.values.length - 1] : null));
    const drawn = stacked ? raw.map(() => []) : raw;
    if (stacked) times.forEach((_, at) => {
      let sum = 0;
      for (let i = raw.length - 1; i >= 0; i--) { sum += raw[i][at] || 0; drawn[i][at] = sum; }
    });
    const axis = {
      stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 },
      font: "12px " + color("--body"),
    };
    const lone = series.map(one => one.values.filter(value => value !== null).length < 3);
    const options = {
      width: Math.max(place.clientWidth, 200), height: 260, legend: { live: true },
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      scales: {
        x: { time: true },
        y: stacked ? { range: (_, low, high) => [0, high > 0 ? high * 1.06 : 1] } : { distr: 3 },
      },
      axes: [{ ...axis, space: 80, values: dates }, { ...axis, size: 76, values: (_, values) => values.map(value => value === null ? "" : show(value)) }],
      series: [
        { label: "time", value: (_, at) => at === null ? "–" : new Date(at * 1e3).toISOString().slice(11, chart.step < 1 ? 23 : 19) },
        ...series.map((one, i) => {
          const paint = stacked ? paintOf(one.label) : color("--c" + (i + 1));
          return {
            label: one.label, stroke: paint, width: stacked ? 1 : i === 1 ? 2 : 1.25, spanGaps: !stacked,
            fill: stacked ? paint + "cc" : undefined, dash: !stacked && i === 2 ? [4, 3] : undefined,
            paths: stacked ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
            points: { show: !stacked && (lone[i] || times.length < 60), size: 4, fill: paint },
            value: (_, value, at, index) => index === null || raw[i][index] === null ? "–" : show(raw[i][index]),
          };
        }),
      ],
      // Each series is filled down to the next one's line, so that colours do not mix.
      bands: stacked ? series.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : [],
    };
    const plot = new uPlot(options, [times, ...drawn], place);
    plots.set(name, plot);
    // Where nothing is pointed at, the legend has the last values.
    const last = Math.max(0, ...raw.map(values => values.slice(0, -1).findLastIndex(value => value !== null)));
    const rest = () => plot.setLegend({ idx: last });
    setTimeout(rest);
    plot.over.addEventListener("mouseleave", () => setTimeout(rest));
  }
  const drawAll = () => { for (const name of Object.keys(charts)) draw(name); };

  for (const [name, chart] of Object.entries(charts)) {
    const figure = document.getElementById("chart-" + name);
    if (!figure) continue;
    const select = figure.querySelector("select");
    if (select) {
      for (const choice of Object.keys(chart.choices)) select.add(new Option(choice, choice));
      select.addEventListener("change", () => draw(name));
    }
    new ResizeObserver(() => {
      const plot = plots.get(name);
      const width = figure.querySelector(".plot").clientWidth;
      if (plot && width && Math.abs(plot.width - width) > 1) plot.setSize({ width, height: 260 });
    }).observe(figure);
  }
  drawAll();
})();
