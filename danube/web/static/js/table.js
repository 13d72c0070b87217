// The table of all lists: sorted by a click, filtered by a word, columns chosen, exported as CSV.

import { csv, download } from "./csv.js";
import { useStored } from "./hooks.js";
import { html, useMemo, useState } from "./lib.js";
import { plural } from "./format.js";
import { Button, Empty } from "./ui.js";

const STEP = 200;

/**
 * A table of rows.
 *
 * `columns`: {id, label, value(row) to sort, filter and export, cell(row) to show, right, hidden, wide}.
 * `sort`: the first order, "id" or "-id". `name`: under which the choice of columns is remembered, and of the CSV file.
 */
export function Table({ name, label, columns, rows, rowKey, sort, empty, children, filterable = true, noun = "row" }) {
  const [order, setOrder] = useState(sort ?? columns[0].id);
  const [word, setWord] = useState("");
  const [shownIds, setShownIds] = useStored(`columns.${name}`, null);
  const [limit, setLimit] = useState(STEP);
  const shown = columns.filter((column) => (shownIds ? shownIds.includes(column.id) : !column.hidden));
  const found = useMemo(() => sorted(filtered(rows, columns, word), columns, order), [rows, columns, word, order]);
  const choose = (id, on) => {
    const ids = shown.map((column) => column.id);
    setShownIds(on ? [...ids, id] : ids.filter((each) => each !== id));
  };
  const save = () =>
    download(`${name}.csv`, csv(shown.map((c) => c.label), found.map((row) => shown.map((c) => c.value(row)))), "text/csv");
  const tools = filterable || children;
  return html`<div class="card table-card">
    ${tools && html`<div class="toolbar">
      ${filterable && html`<input type="search" class="filter" placeholder=${`Filter ${label.toLowerCase()}`} aria-label=${`Filter ${label.toLowerCase()}`}
        value=${word} onInput=${(event) => setWord(event.target.value)} />`}
      ${children}
      <span class="grow"></span>
      <span class="muted small" role="status">${word ? `${found.length} of ${plural(rows.length, noun)}` : plural(rows.length, noun)}</span>
      ${columns.some((column) => column.hidden) && html`<details class="menu">
        <summary class="button small" aria-label="Columns">Columns</summary>
        <div>${columns.map((column) => html`<label key=${column.id}><input type="checkbox" checked=${shown.includes(column)} disabled=${column === columns[0]}
          onChange=${(event) => choose(column.id, event.target.checked)} />${column.label}</label>`)}</div>
      </details>`}
      <${Button} small icon="download" onClick=${save} disabled=${!found.length}>CSV<//>
    </div>`}
    ${rows.length === 0
      ? (empty ?? html`<${Empty} title="Nothing here" />`)
      : html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
          <thead><tr>${shown.map((column) => html`<${Head} key=${column.id} column=${column} order=${order} onOrder=${setOrder} />`)}</tr></thead>
          <tbody>${found.slice(0, limit).map((row) => html`<tr key=${rowKey(row)}>${shown.map(
            (column) => html`<td key=${column.id} class=${column.right ? "right" : ""}>${column.cell ? column.cell(row) : column.value(row)}</td>`,
          )}</tr>`)}</tbody>
        </table></div>`}
    ${rows.length > 0 && found.length === 0 && html`<${Empty} title="Nothing matches">No ${noun} contains ${JSON.stringify(word)}.<//>`}
    ${found.length > limit && html`<div class="more"><${Button} small onClick=${() => setLimit(limit + STEP)}>
      Show ${Math.min(STEP, found.length - limit)} more of ${found.length - limit}<//></div>`}
  </div>`;
}

function Head({ column, order, onOrder }) {
  const up = order === column.id;
  const down = order === `-${column.id}`;
  if (column.unsorted) return html`<th scope="col" class=${column.right ? "right" : ""}><span>${column.label}</span></th>`;
  return html`<th scope="col" class=${column.right ? "right" : ""} aria-sort=${up ? "ascending" : down ? "descending" : undefined}>
    <button type="button" class="sort" onClick=${() => onOrder(up || (!down && column.right) ? `-${column.id}` : column.id)}>
      ${column.label}<i aria-hidden="true">${up ? "▲" : down ? "▼" : ""}</i></button></th>`;
}

function filtered(rows, columns, word) {
  const wanted = word.trim().toLowerCase();
  if (!wanted) return rows;
  return rows.filter((row) => columns.some((column) => String(column.value(row) ?? "").toLowerCase().includes(wanted)));
}

/** Rows in an order; values are compared as numbers where they are, as text in natural order otherwise. */
export function sorted(rows, columns, order) {
  const column = columns.find((each) => each.id === order.replace(/^-/, ""));
  if (!column) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  const key = column.sortValue ?? column.value;
  return [...rows].sort((left, right) => sign * compare(key(left), key(right)));
}

function compare(left, right) {
  if (typeof left === "number" && typeof right === "number") return left - right;
  return String(left ?? "").localeCompare(String(right ?? ""), "en", { numeric: true });
}
