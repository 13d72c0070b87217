// Applies the chosen theme before the first paint. Without a choice the system decides.
(() => {
  let theme = "";
  try {
    theme = localStorage.getItem("danube.theme") || "";
  } catch {
    // Storage may be forbidden; then the system decides.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
