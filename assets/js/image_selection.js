// Keeps which images of a scan are chosen: they stay chosen while pages are turned and filters change.

let scan = 0;
/** @type {Set<number>} */
let selected = new Set();
let last = null;
let onChange = () => {};

// callback: called when another image is chosen, or none is any more.
export const whenSelected = (callback) => (onChange = callback);

export const selectedImages = () => [...selected];
export const isSelected = (index) => selected.has(index);

// Images are known by their number in a scan: those of another scan are others.
export const startSelection = (number) => {
  if (number === scan) return;
  [scan, selected, last] = [number, new Set(), null];
  onChange();
};

export const clearSelection = () => {
  [selected, last] = [new Set(), null];
  for (const box of document.querySelectorAll("#thumbs .thumb-choose input")) {
    /** @type {HTMLInputElement} */ (box).checked = false;
  }
  onChange();
};

/**
 * Chooses or lets go of an image; with Shift also all between the one before and this one.
 *
 * @param {number} index
 * @param {boolean} on
 * @param {number[]} shown the images of the page, in their order
 * @param {boolean} range
 */
export const selectImage = (index, on, shown, range) => {
  const [from, to] = [shown.indexOf(last), shown.indexOf(index)].sort((a, b) => a - b);
  const all = range && from >= 0 ? shown.slice(from, to + 1) : [index];
  all.forEach((each) => (on ? selected.add(each) : selected.delete(each)));
  last = index;
  onChange();
  return all;
};
