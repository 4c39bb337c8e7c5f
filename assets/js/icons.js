// Draws icons as paths, since fonts differ in which arrows and signs they have.

const ICONS = {
  up: "M8 12.5V3.5M4 7.5l4-4 4 4",
  down: "M8 3.5v9M4 8.5l4 4 4-4",
  copy: "M6 6h7v7H6zM3.5 10V3.5H10",
  remove: "M4 4l8 8M12 4l-8 8",
  undo: "M6 3.5L3 6.5l3 3M3 6.5h6a3.5 3.5 0 010 7H7",
  redo: "M10 3.5l3 3-3 3M13 6.5H7a3.5 3.5 0 000 7h2",
  theme: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 2.5v11M8 5l3 .8M8 8h5M8 11l3-.8",
  globe: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM2.5 8h11M8 2.5c-3.4 3-3.4 8 0 11c3.4-3 3.4-8 0-11z",
  down_small: "M4.5 6.5L8 10l3.5-3.5",
};
/** @param {keyof typeof ICONS} name */
export const drawIcon = (name) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};
