// Types of what a scan of the dataset answers.
import type { Finding } from "./server";

export interface ScanResult {
  counts: {
    images: number;
    // Clips that are trained on, and the windows that are taken of them.
    clips: number;
    windows: number;
    with_caption: number;
    validation: number;
    sizes: number;
    ignored: number;
  };
  problems: Finding[];
  stale?: string;
  headline: string;
  steps: string;
  modes: ShapeMode[];
  recommended: string;
  legend?: string;
  lines: string[];
  lists: { title: string; items: { name: string; note: string }[] }[];
  histogram: string;
}
// Times are in seconds after a clip's first frame.
export interface ScannedClip {
  seconds: number;
  rate: number;
  taken_rate: number;
  used: number;
  lengths: number[];
  count: number;
  windows: { start: number; end: number; frames: number }[];
  dropped: { start: number; end: number }[];
}
// What a run measured of an image, and what follows from it.
export interface ImageLosses {
  losses: { moment: "start" | "middle" | "end"; loss: number | null }[];
  // Share of the first loss; negative where it fell.
  change: number | null;
  verdict: "learnt" | "not_learnt" | "rose" | "memorised" | null;
  word: string;
}
// The part of an image that is trained, in shares of its sides; lost: share of its area.
export interface Crop {
  box: { left: number; top: number; width: number; height: number };
  lost: number;
}
export interface ScannedItems {
  scan: number;
  pages: number;
  // Images that the filter shows, on all pages.
  of: number;
  // Runs that measured these images, and the one whose losses are shown.
  runs: string[];
  run: string | null;
  // The images by their number, where they are sorted or filtered.
  order: number[] | null;
  items: {
    index: number;
    name: string;
    caption: string;
    width: number;
    height: number;
    bucket: string | null;
    crop: Crop | null;
    validation: boolean;
    clip: ScannedClip | null;
    masked: boolean;
    captions: number;
    losses: ImageLosses | null;
  }[];
}
// Value, words and count of what there is to filter by.
export type Facet = [string, string, number][];
export interface ImageFacets {
  status: Facet;
  shape: Facet;
  bucket: Facet;
  // Tags with their counts, and how many different ones there are.
  tags: [string, number][];
  of: number;
}
export interface BulkPreview {
  preview: number;
  what: string;
  changes: number;
  files: number;
  pages: number;
  rows: { index: number; name: string; file: string; is_new: boolean; parts: ["same" | "old" | "new", string][] }[];
  skipped: { name: string; note: string }[];
  skipped_count: number;
}
export interface CaptionWork {
  state: "idle" | "running" | "done" | "failed" | "cancelled";
  number: number;
  done: number;
  total: number;
  text: string;
  // Id of the changes that it made; empty for none.
  made: string;
  seconds_left: number | null;
  undo: { id: string; what: string; files: number; at: number; cut_off: boolean } | null;
}
export interface NearState {
  state: "idle" | "running" | "done" | "failed" | "cancelled";
  scan: number;
  done: number;
  total: number;
  text: string;
  groups: number;
  images: number;
  page: number;
  pages: number;
  shown: {
    number: number;
    count: number;
    // Whether all but the best one can be left out; else they are.
    out: boolean;
    items: {
      index: number;
      name: string;
      path: string;
      width: number;
      height: number;
      caption: string;
      same: boolean;
      // The one that stays when the others are left out.
      best: boolean;
      left: boolean;
    }[];
  }[];
}
export interface ShapeMode {
  name: string;
  chosen: boolean;
  recommended: boolean;
  note: string;
  graphs: number | string;
  training: number | string;
  no_grad: number | string;
  buckets: number | string;
  left: number | string;
  padding: string;
  crop: string;
}
export interface ScanState {
  state: "idle" | "running" | "done" | "failed";
  scan: number;
  done: number;
  total: number;
  problems: Finding[];
  result: ScanResult;
}
