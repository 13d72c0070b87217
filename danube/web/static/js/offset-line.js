// The picture of a subscription's offset line: what is done, acknowledged out of order, in flight, waiting, and the end.

import { count, shortCount } from "./format.js";
import { html } from "./lib.js";
import { stretches } from "./offsets.js";

const WIDTH = 1000;

/** Widths in which what is left to do stays visible beside a long history: each stretch that is not empty gets its share. */
function widths(parts) {
  const total = parts.reduce((sum, part) => sum + part.messages, 0);
  if (!total) return parts.map(() => 0);
  const least = WIDTH * 0.02;
  const wanted = parts.map((part) => (part.messages ? Math.max(least, (part.messages / total) * WIDTH) : 0));
  const scale = WIDTH / wanted.reduce((sum, width) => sum + width, 0);
  return wanted.map((width) => width * scale);
}

export function OffsetLine({ row, start }) {
  const parts = stretches(row, start);
  const sizes = widths(parts);
  const [floor, end] = [Number(row.floor), Number(row.end_offset)];
  let x = 0;
  const bars = parts.map((part, index) => {
    const bar = { ...part, x, width: sizes[index] };
    x += sizes[index];
    return bar;
  });
  const marks = [
    { at: 0, label: "start", value: start, anchor: "start" },
    { at: sizes[0], label: "floor", value: floor },
    { at: WIDTH, label: "end", value: end, anchor: "end" },
  ];
  if (!(sizes[0] > 90)) marks[0].value = null;
  if (sizes[0] > WIDTH - 90) marks[1].anchor = "end", (marks[1].at = WIDTH), (marks[1].label = "floor = end"), (marks[2].value = null);
  else if (sizes[0] < 90) marks[1].anchor = "start";
  const told = bars.filter((bar) => bar.messages).map((bar) => `${count(bar.messages)} ${bar.label}`).join(", ");
  return html`<figure class="offset-line">
    <svg viewBox=${`0 0 ${WIDTH} 26`} preserveAspectRatio="none" role="img" aria-label=${`From offset ${start} to ${end}: ${told || "no messages"}`}>
      <rect class="rail" x="0" y="4" width=${WIDTH} height="18" rx="3" />
      ${bars.map((bar) => bar.width > 0 && html`<rect class=${`part ${bar.id}`} x=${bar.x} y="4" width=${Math.max(1, bar.width - 1.5)} height="18"><title>${count(bar.messages)} ${bar.label}</title></rect>`)}
      ${floor < end && html`<line class="floor" x1=${sizes[0]} x2=${sizes[0]} y1="0" y2="26" vector-effect="non-scaling-stroke" />`}
    </svg>
    <div class="marks" aria-hidden="true">${marks.map((mark) => mark.value !== null && html`<span class=${mark.anchor ?? "middle"} style=${{ left: `${mark.at / 10}%` }}>${mark.label} <b>${count(mark.value)}</b></span>`)}</div>
    <ul class="legend">${bars.filter((bar) => bar.messages || ["done", "flight", "behind"].includes(bar.id)).map((bar) => html`<li class=${bar.id}>${shortCount(bar.messages)} ${bar.label}</li>`)}</ul>
  </figure>`;
}
