// Filters and sorts the samples of a section, and says when the page of a running stage is overdue.
for (const box of document.querySelectorAll(".samples")) {
  const names = JSON.parse(box.dataset.values), figures = JSON.parse(box.dataset.figures);
  const rows = [...box.children].map((item, place) => ({
    item, place, values: JSON.parse(item.dataset.values), figures: JSON.parse(item.dataset.figures),
  }));
  const add = (to, tag, text) => to.appendChild(Object.assign(document.createElement(tag), {textContent: text || ""}));
  const bar = document.createElement("form");
  bar.className = "pick";
  const control = (tag, name) => add(add(bar, "label", name), tag);
  const search = control("input", "text");
  search.type = "search";
  const selects = names.map((name, k) => {
    const found = [...new Set(rows.map((row) => row.values[k]))].sort();
    const select = control("select", name);
    add(select, "option", "any").value = "";
    found.forEach((value, at) => (add(select, "option", value).value = at));
    select.parentNode.hidden = found.length < 2;
    return () => (select.value === "" ? null : found[select.value]);
  });
  const order = control("select", "sort by");
  add(order, "option", "as listed").value = "";
  figures.forEach((name, k) => {
    add(order, "option", name + ", highest first").value = k + " -1";
    add(order, "option", name + ", lowest first").value = k + " 1";
  });
  const count = add(bar, "output");
  const pick = () => {
    const text = search.value.toLowerCase(), wanted = selects.map((of) => of());
    const [k, way] = order.value.split(" ").map(Number);
    const figure = (row) => row.figures[k] ?? Infinity * way;  // those without one come last
    const by = (a, b) => (order.value && way * (figure(a) - figure(b))) || a.place - b.place;
    let shown = 0;
    for (const row of [...rows].sort(by)) {
      row.text ??= row.item.textContent.toLowerCase();
      row.item.hidden = !row.text.includes(text) || wanted.some((v, n) => v !== null && v !== row.values[n]);
      shown += !row.item.hidden;
      box.append(row.item);
    }
    count.textContent = shown.toLocaleString("en") + " of " + rows.length.toLocaleString("en");
  };
  bar.addEventListener("input", pick);
  bar.addEventListener("submit", (event) => event.preventDefault());
  if (rows.length > 1) box.before(bar);
  pick();
}
for (const line of document.querySelectorAll("[data-due]")) {
  const late = Math.round((Date.now() / 1000 - line.dataset.due) / 60);
  if (late >= 1) line.textContent += " It is " + late + " min overdue: the run may have stopped. The same command goes on with it.";
}
