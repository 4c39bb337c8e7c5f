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
export interface ScannedItems {
  scan: number;
  pages: number;
  // Runs that measured these images, and the one whose losses are shown.
  runs: string[];
  run: string | null;
  // All images by their number, where they are sorted.
  order: number[] | null;
  items: {
    index: number;
    name: string;
    caption: string;
    width: number;
    height: number;
    bucket: string | null;
    validation: boolean;
    clip: ScannedClip | null;
    masked: boolean;
    captions: number;
    losses: ImageLosses | null;
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
