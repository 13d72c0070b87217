// The one place that names the vendored modules.
export {
  html, render, Component, useState, useEffect, useLayoutEffect, useMemo, useCallback, useRef, useReducer,
} from "../vendor/htm-preact.module.js";
