// Rates over time as a picture of lines (SVG), in the colours of the theme; the pointer reads values.

import { shortCount } from "./format.js";
import { html, useEffect, useRef, useState } from "./lib.js";

const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

/** A round number at or above a value, so that the lines of the grid have round labels. */
function ceiling(value) {
  if (value <= 4) return 4;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].map((each) => each * step).find((each) => each >= value);
}

const clock = (ms, seconds) => new Date(ms).toTimeString().slice(0, seconds ? 8 : 5);

/** The width of an element, as it changes. */
function useWidth(ref) {
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(ref.current.clientWidth));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/**
 * Lines over time. `points` are {at: ms, ...}, oldest first; `lines` are [field, label]; the axis of time spans at least
 * `span` ms, up to the last point. `told` says in words what is seen.
 */
export function Chart({ points, lines, height = 190, span = 120_000, told }) {
  const box = useRef();
  const width = useWidth(box);
  const [pointed, setPointed] = useState(null);
  const last = points.at(-1)?.at ?? Date.now();
  const first = Math.min(points[0]?.at ?? last, last - span);
  const most = ceiling(Math.max(1, ...points.flatMap((point) => lines.map(([field]) => point[field]))));
  const x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - 4);
  const y = (value) => TOP + (1 - value / most) * (height - TOP - BOTTOM);
  const path = (field) => points.map((point, index) => `${index ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point[field]).toFixed(1)}`).join("");
  const point = (event) => {
    const at = event.clientX - box.current.getBoundingClientRect().left;
    const near = points.reduce((best, each) => (best && Math.abs(x(best.at) - at) <= Math.abs(x(each.at) - at) ? best : each), null);
    setPointed(near);
  };
  const marks = Math.max(2, Math.floor(width / 150));
  const ticks = Array.from({ length: marks }, (_, index) => first + ((last - first) * (index + 0.5)) / marks);
  return html`<div class="chart" ref=${box} onPointerMove=${point} onPointerLeave=${() => setPointed(null)}>
    <svg width=${width} height=${height} role="img" aria-label=${told}>
      ${[0, 0.25, 0.5, 0.75, 1].map((share) => html`<line class="grid" x1=${LEFT} x2=${width - 4} y1=${y(share * most)} y2=${y(share * most)} />
        <text class="tick" x=${LEFT - 8} y=${y(share * most) + 4} text-anchor="end">${shortCount(share * most)}</text>`)}
      ${ticks.map((at) => html`<text class="tick" x=${x(at)} y=${height - 4} text-anchor="middle">${clock(at, last - first < 300_000)}</text>`)}
      ${points.length > 1 && html`<path class="area" d=${`${path(lines[0][0])}L${x(last).toFixed(1)} ${y(0)}L${x(points[0].at).toFixed(1)} ${y(0)}Z`} />`}
      ${lines.map(([field], index) => html`<path class=${`line series-${index + 1}`} d=${path(field)} />`)}
      ${pointed && html`<line class="pointer" x1=${x(pointed.at)} x2=${x(pointed.at)} y1=${TOP} y2=${height - BOTTOM} />`}
    </svg>
    ${pointed && html`<p class="readout" aria-hidden="true">${clock(pointed.at, true)}${lines.map(([field, label]) => ` · ${label} ${shortCount(pointed[field])}`)}</p>`}
  </div>`;
}
