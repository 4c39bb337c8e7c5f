// Draws over an image which part of it is trained: what the bucket cuts off is darkened.

import { el } from "./dom.js";
import { formatFixed } from "./format.js";
import { t } from "./locale.js";
/** @import { Crop } from "./scan" */

/**
 * An image of `width` x `height` px with the frame of its crop.
 *
 * @param {HTMLImageElement} image
 * @param {number} width
 * @param {number} height
 * @param {Crop | null} crop
 */
export const withCrop = (image, width, height, crop) => {
  const box = el("span", { class: "crop-box" }, image);
  // As high as its place at most, in the image's own shape: the frame lies where the image does.
  box.style.setProperty("--shape", String(width / height));
  if (crop) {
    const frame = el("span", { class: "crop-frame" });
    for (const [name, share] of Object.entries(crop.box)) frame.style.setProperty(name, `${100 * share}%`);
    box.append(frame);
  }
  return el("span", { class: "crop-place" }, box);
};

/** @type {(crop: Crop) => string} */
export const cropSentence = (crop) => t`${formatFixed(100 * crop.lost, 1)} % cut off`;
