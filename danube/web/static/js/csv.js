// What is exported: CSV and JSON lines, and how a file is handed to the browser.

const FORMULA = /^[=+\-@\t\r]/;
const NUMBER = /^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$/;

/** One cell. Text that a spreadsheet would run as a formula gets a leading apostrophe; plain numbers do not. */
export function cell(value) {
  let text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  if (FORMULA.test(text) && !NUMBER.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A table as CSV (RFC 4180). */
export function csv(head, rows) {
  return [head, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/** One JSON object a line. */
export function jsonLines(rows) {
  return rows.map((row) => JSON.stringify(row) + "\n").join("");
}

/** Offers text or bytes as a download. */
export function download(name, content, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "-").replace(/^-+/, "");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
