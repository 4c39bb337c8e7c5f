// Types what the server answers about captions by a model. The names are those of gui/caption_job.py.
export interface CaptionOptions {
  model: string;
  task: "caption" | "detailed" | "more_detailed";
  prompt: string;
  max_tokens: number | null;
  beams: number | null;
  batch: number | null;
  precision: string;
  device: string;
  megapixels: number;
  existing: "leave" | "replace" | "append";
  prefix: string;
  suffix: string;
  trigger: string;
}
export interface CaptionModel {
  title: string;
  // What text it takes: a task of a list, the words that a caption starts with, or any instruction.
  prompt: "task" | "start" | "instruction";
  tokens: number;
  beams: number;
  sentence: string;
  warning: string;
  gpu: boolean;
}
export interface CaptioningState {
  state: "idle" | "running" | "done" | "failed" | "cancelled";
  number: number;
  phase?: string;
  notes?: string[];
  done?: number;
  total?: number;
  left_s?: number | null;
  problem?: string | null;
  // Of the newest request, also after the page was started again; null where there was none.
  options: CaptionOptions | null;
  images: number;
  captioned: number;
  failed: string[];
  failures: number;
  scanned: number;
}
export interface CaptionDifference {
  page: number;
  pages: number;
  scan: number;
  count: number;
  chosen: number;
  problems: string[];
  rows: CaptionRow[];
}
export interface CaptionRow {
  number: number;
  // Of the newest scan; null where that has not this image.
  item: number | null;
  name: string;
  old: string;
  new: string;
  left: boolean;
  edited: boolean;
}
