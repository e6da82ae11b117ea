/** Which columns the list has: a tick for each. */

/** @import { Column, TableColumn } from "./columns.js" */

/**
 * @param {HTMLElement} box
 * @param {readonly TableColumn[]} table
 * @param {ReadonlyMap<string, Column>} columns all there are
 * @param {readonly Column[]} shown
 * @param {(ids: string[]) => void} pick
 */
export function chooser(box, table, columns, shown, pick) {
  let ids = shown.map((one) => one.id);
  box.replaceChildren(...[...columns.values()].map((column) => {
    const label = document.createElement("label"), tick = document.createElement("input");
    const name = document.createElement("b"), about = document.createElement("span");
    tick.type = "checkbox";
    tick.checked = ids.includes(column.id);
    const empty = table.find((one) => one.name === column.id)?.empty;
    const said = column.about.replaceAll("`", "");
    about.textContent = empty ? `${said} (nothing in this dataset)` : said;
    name.textContent = column.title;
    label.append(tick, name, about);
    tick.addEventListener("change", () => {
      ids = ids.filter((id) => id !== column.id);
      if (tick.checked) ids.push(column.id);
      if (ids.length) pick(ids);
    });
    return label;
  }));
}
