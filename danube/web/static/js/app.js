// The frame of the console: navigation, search, theme, keys, and the page that the address names.

import { askWho, logOut, may, whenUnauthenticated, whoIs } from "./api.js";
import { HelpDialog, LoginDialog, SearchDialog } from "./dialogs.js";
import { duration } from "./format.js";
import { href, useKey, useMenus, useRoute, useWho } from "./hooks.js";
import { Component, html, render, useEffect, useRef, useState } from "./lib.js";
import { ClusterPage } from "./pages/cluster.js";
import { ConfigurationPage } from "./pages/configuration.js";
import { ConnectionsPage } from "./pages/connections.js";
import { JobsPage } from "./pages/jobs.js";
import { OverviewPage } from "./pages/overview.js";
import { SchemasPage, SubjectPage } from "./pages/schemas.js";
import { SecurityPage } from "./pages/security.js";
import { StoragePage } from "./pages/storage.js";
import { SubscriptionPage } from "./pages/subscription.js";
import { SubscriptionsPage } from "./pages/subscriptions.js";
import { TopicPage } from "./pages/topic.js";
import { TopicsPage } from "./pages/topics.js";
import { urgency } from "./states.js";
import { useFigures } from "./store.js";
import { Button, Icon, Notices, notify, ProblemBox } from "./ui.js";

const PAGES = [
  ["overview", "Overview"],
  ["topics", "Topics"],
  ["subscriptions", "Subscriptions"],
  ["schemas", "Schemas"],
  null,
  ["storage", "Storage"],
  ["jobs", "Jobs"],
  ["connections", "Connections"],
  ["configuration", "Configuration"],
  ["cluster", "Cluster"],
  ["security", "Security", (who) => who?.secured && may("ManageSecurity")],
];
const SIMPLE = {
  schemas: SchemasPage,
  storage: StoragePage,
  jobs: JobsPage,
  connections: ConnectionsPage,
  configuration: ConfigurationPage,
  cluster: ClusterPage,
  security: SecurityPage,
};

/** The page of an address, with the parts of its title. */
function pageOf({ parts, query }) {
  const [place = "overview", ...rest] = parts;
  if (place === "topics" && rest.length >= 2) {
    const topic = `/${rest.slice(0, 2).join("/")}`;
    return { place, crumbs: [topic], page: html`<${TopicPage} key=${topic} topic=${topic} query=${query} />` };
  }
  if (place === "topics" && !rest.length) return { place, crumbs: [], page: html`<${TopicsPage} query=${query} />` };
  if (place === "subscriptions" && rest.length === 3) {
    const topic = `/${rest.slice(0, 2).join("/")}`;
    const page = html`<${SubscriptionPage} key=${`${topic} ${rest[2]}`} topic=${topic} subscription=${rest[2]} query=${query} />`;
    return { place, crumbs: [topic, rest[2]], page };
  }
  if (place === "subscriptions" && !rest.length) return { place, crumbs: [], page: html`<${SubscriptionsPage} />` };
  if (place === "schemas" && rest.length === 1) return { place, crumbs: rest, page: html`<${SubjectPage} key=${rest[0]} subject=${rest[0]} />` };
  if (place === "overview" && !rest.length) return { place, crumbs: [], page: html`<${OverviewPage} />` };
  if (SIMPLE[place] && !rest.length) return { place, crumbs: [], page: html`<${SIMPLE[place]} query=${query} />` };
  return { place: "", crumbs: [], page: html`<${NoPage} />` };
}

function NoPage() {
  return html`<div class="page"><h1>There is no such page</h1><p>The address may be from another version. <a href="#/">Back to the overview</a></p></div>`;
}

/** Shows what a page threw, so that one page that fails does not take the frame with it. */
class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  componentDidUpdate(previous) {
    if (this.state.error && previous.at !== this.props.at) this.setState({ error: null });
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return html`<${ProblemBox} what="This page has failed" error=${error} retry=${() => this.setState({ error: null })} />`;
  }
}

function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "");
  const next = { "": "light", light: "dark", dark: "" }[theme];
  const change = () => {
    setTheme(next);
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    try {
      if (next) localStorage.setItem("danube.theme", next);
      else localStorage.removeItem("danube.theme");
    } catch {
      // Storage may be forbidden; then the choice lasts as long as the page.
    }
    dispatchEvent(new Event("danube-theme"));
  };
  return [theme, change];
}

/** Who is logged in, and the way out. */
function Who() {
  const who = useWho();
  const leave = async () => {
    try {
      await logOut();
      location.reload();
    } catch (error) {
      notify(`The logout failed: ${error.message}`, "bad");
    }
  };
  if (!who?.secured) return null;
  return html`<p class="who" title=${`proven by ${who.proof}`}>${who.subject}</p>
    ${who.csrf && html`<p><${Button} small kind="plain" onClick=${leave}>Log out<//></p>`}`;
}

function Side({ place, open, figures, theme, onTheme }) {
  const unwell = (figures.subscriptions ?? []).filter((row) => urgency(row) >= 3).length;
  const broker = figures.broker;
  const who = useWho();
  const pages = PAGES.filter((page) => !page?.[2] || page[2](who));
  return html`<section class="side ${open ? "open" : ""}" id="side" aria-label="Console">
    <a class="brand" href="#/"><img src="static/logo.svg" alt="" />Danube</a>
    <nav aria-label="Pages">${pages.map((page) =>
      page
        ? html`<a href=${page[0] === "overview" ? "#/" : href(page[0])} aria-current=${page[0] === place ? "page" : undefined}>
            <${Icon} name=${page[0]} />${page[1]}
            ${page[0] === "subscriptions" && unwell > 0 && html`<span class="count" title="that need attention">${unwell}<span class="hidden-text"> need attention</span></span>`}
          </a>`
        : html`<span class="gap"></span>`,
    )}</nav>
    <div class="foot">
      ${broker && html`<p>${location.host}</p><p>version ${broker.version} · up ${duration(broker.uptime_s)}</p>`}
      <p><${Button} small kind="plain" icon=${theme === "light" ? "sun" : theme === "dark" ? "moon" : "auto"}
        onClick=${onTheme}>${theme ? `Theme: ${theme}` : "Theme: system"}<//></p>
      <${Who} />
    </div>
  </section>`;
}

function App() {
  const route = useRoute();
  const figures = useFigures();
  const [theme, changeTheme] = useTheme();
  const [dialog, setDialog] = useState("");
  const [menu, setMenu] = useState(false);
  const main = useRef();
  const { place, crumbs, page } = pageOf(route);
  const address = route.parts.join("/");
  useKey("/", () => setDialog("search"));
  useKey("?", () => setDialog("help"));
  useMenus();
  useEffect(() => {
    whenUnauthenticated(() => setDialog("login"));
    if (!whoIs()) askWho().catch((error) => notify(`It cannot be told who you are: ${error.message}`, "bad"));
  }, []);
  useEffect(() => {
    setMenu(false);
    scrollTo(0, 0);
  }, [address]);
  const title = PAGES.find((each) => each?.[0] === place)?.[1] ?? "";
  const close = () => setDialog("");
  return html`
    <nav aria-label="Skip"><a class="skip" href=${route.hash} onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a></nav>
    <div class="frame">
      <${Side} place=${place} open=${menu} figures=${figures} theme=${theme} onTheme=${changeTheme} />
      ${menu && html`<button type="button" class="shade" aria-label="Close the menu" onClick=${() => setMenu(false)}></button>`}
      <div>
        <header class="top">
          <span class="menu-button"><${Button} kind="plain" icon="menu" label="Menu" aria-expanded=${menu} aria-controls="side" onClick=${() => setMenu(!menu)} /></span>
          <div class="crumbs">${crumbs.length
            ? html`<a href=${href(place)}>${title}</a><span aria-hidden="true">/</span>
                ${crumbs.length > 1 && html`<a href=${`#/topics${crumbs[0]}`}>${crumbs[0]}</a><span aria-hidden="true">/</span>`}
                <span class="here">${crumbs.at(-1)}</span>`
            : html`<span class="here">${title}</span>`}</div>
          <button type="button" class="button search-button" aria-label="Search" onClick=${() => setDialog("search")}>
            <${Icon} name="search" /><span>Search</span><kbd aria-hidden="true">/</kbd></button>
          <${Button} kind="plain" icon="help" label="Help and keys" onClick=${() => setDialog("help")} />
        </header>
        ${figures.error && html`<div class="offline" role="status">${figures.error.message}${figures.error.remedy ? `; ${figures.error.remedy}` : ""}
          ${figures.broker ? " · the figures below are older" : ""}</div>`}
        <main ref=${main} tabindex="-1"><${Guard} at=${address}>${page}<//></main>
      </div>
    </div>
    ${dialog === "search" && html`<${SearchDialog} figures=${figures} onClose=${close} />`}
    ${dialog === "help" && html`<${HelpDialog} onClose=${close} />`}
    ${dialog === "login" && html`<${LoginDialog} onClose=${close} onDone=${() => location.reload()} />`}
    <${Notices} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
