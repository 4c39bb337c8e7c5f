// Makes players of clips: they wait until they are seen, and two of them can show the same moment.

import { el } from "./dom.js";

/** @type {(file: string) => boolean} */
export const isClip = (file) => file.endsWith(".mp4");

// The picture of a clip's frames, which lies beside it; of a picture itself.
/** @type {(file: string) => string} */
export const stillOf = (file) => file.replace(/\.mp4$/, ".sheet.png");

// A clip asks for nothing before it is seen, and for its frames before it is played.
const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting || !(target instanceof HTMLVideoElement)) continue;
      target.poster = target.dataset.poster || "";
      seen.unobserve(target);
    }
  },
  { rootMargin: "300px" },
);

/**
 * @param {string} src
 * @param {string | null} poster
 * @param {string} label
 * @returns {HTMLVideoElement}
 */
export const player = (src, poster, label) => {
  const video = el("video", {
    src,
    preload: "none",
    loop: true,
    controls: true,
    playsinline: true,
    disablepictureinpicture: true,
    "aria-label": label,
    "data-poster": poster,
  });
  // The attribute would only count in a page's own text.
  video.muted = true;
  return video;
};

// Gives a player its poster once it can be seen. What has been observed is let go of with the page's node.
/** @type {(video: HTMLVideoElement) => void} */
export const whenSeen = (video) => seen.observe(video);

const APART_S = 0.08;

/**
 * Lets the second clip show the moment that the first one shows.
 *
 * @param {HTMLVideoElement} first
 * @param {HTMLVideoElement} second
 */
export const keepTogether = (first, second) => {
  const follow = () => {
    if (Math.abs(second.currentTime - first.currentTime) > APART_S) second.currentTime = first.currentTime;
  };
  first.addEventListener("timeupdate", follow);
  first.addEventListener("seeked", follow);
  first.addEventListener("play", () => second.play().catch(() => {}));
  first.addEventListener("pause", () => second.pause());
};
