// Opens tabs, knows which one is open, and remembers it for a refreshed page.

const SELECTOR = "#tabs button[role=tab]";
/** @type {() => HTMLElement[]} */
const allTabs = () => Array.from(document.querySelectorAll(SELECTOR));
const tabOf = (event) => event.target.closest?.(SELECTOR);
// The English name, by which scripts know a tab; it shows that of the page's language ("tab-model-button").
export const tabTitle = (tab) => {
  const key = /^tab-(\w+)-button$/.exec(tab.id)?.[1] || "";
  return key.charAt(0).toUpperCase() + key.slice(1);
};

export const openTab = (title) => {
  const tab = allTabs().find((b) => tabTitle(b) === title);
  if (tab && tab.getAttribute("aria-selected") !== "true") tab.click();
  return Boolean(tab);
};
// A refreshed page shows the tab that it showed. Where storage is refused, it starts with the first tab.
const TAB = "monotile-tab";
export const keptTab = () => {
  try {
    return sessionStorage.getItem(TAB);
  } catch {
    return null;
  }
};
document.addEventListener("click", (event) => {
  const tab = tabOf(event);
  try {
    if (tab) sessionStorage.setItem(TAB, tabTitle(tab));
  } catch {
    // As above.
  }
});
export const currentTab = () => {
  const tab = document.querySelector("#tabs button[role=tab][aria-selected=true]");
  return tab ? tabTitle(tab) : undefined;
};

// Calls back when a tab has been opened. title: of the tab, or null for any.
export const onTabOpened = (title, callback) =>
  document.addEventListener("click", (event) => {
    const tab = tabOf(event);
    if (tab && (title === null || tabTitle(tab) === title)) setTimeout(callback, 60);
  });
