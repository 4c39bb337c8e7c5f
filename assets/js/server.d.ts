// Types what the page's own server answers and sends. The names are those of the Python modules in gui/.

import type { CaptionDifference, CaptionModel, CaptioningState } from "./captioning";
import type { Comparison, FurtherPlan, Library, RunStanding } from "./library";
import type { LoraState } from "./lora";
import type { FinishState, MemoryFacts, TuneState } from "./plan";
import type { PreviewPlan, PreviewSource, PreviewState } from "./preview";
import type { QueueState } from "./queue";
import type { BulkPreview, CaptionWork, ImageFacets, ImageLosses, NearState, ScanState, ScannedItems } from "./scan";
export interface Problem {
  path: string;
  id: string | null;
  tab: string | null;
  label: string | null;
  text: string;
  remedy: string;
  line: number | null;
  severity: "error" | "warning" | "note";
}
export interface Finding extends Omit<Problem, "path" | "line"> {
  count: number;
  files: string[];
}
export interface Draft {
  preset: string;
  changed: string[];
  changedFromDefault: string[];
  family: string;
  families: Record<string, string>;
  lacking: string[];
  lackingColumns: string[];
  parts: Record<string, string>;
  level: Level;
  canUndo: boolean;
  canRedo: boolean;
}
export type Level = "basic" | "all"; // which settings are shown
export interface Preset {
  name: string;
  builtin: boolean;
  description: string;
  family?: string;
}
export interface Column {
  name: string;
  label: string;
  help: string;
  kind: string;
  default: unknown;
  choices: string[];
  advanced: boolean;
}
export interface Setting {
  path: string;
  id: string;
  tab: string;
  group: string;
  folds: string[];
  basic: boolean;
  name: string;
  label: string;
  help: string;
  aliases: string[];
  kind: string;
  columns: Column[];
}
export interface PageState {
  draft: Partial<Draft>;
  problems: Problem[];
  presets: Preset[];
  settings: Setting[];
  runs: RunStatus[];
}

export interface DifferenceRow {
  label: string;
  before: string;
  after: string;
}
export interface Difference {
  name: string;
  builtin: boolean;
  rows: DifferenceRow[];
  kept: string[];
  problems: Problem[];
}
export interface ForeignSettings {
  name: string;
  kind: string;
  rows: DifferenceRow[];
  groups: { title: string; notes: { line: number | null; about: string; name: string; why: string }[] }[];
  off: string[];
  wantsDataset: boolean;
  rest: string;
  own: boolean; // a file of ours, which can be saved as a preset
}
export interface Notice {
  text: string;
  kind: string;
  action: string | null;
  request: { what: string; [detail: string]: unknown } | null;
}
// One message of the server; what did not change is left out.
export interface Message extends Partial<Omit<PageState, "draft" | "runs">> {
  number: number;
  draft?: Draft;
  notice?: Notice;
  behind?: boolean;
  difference?: Difference;
  foreign?: ForeignSettings;
  importFailed?: { name: string; problems: Problem[] };
  started?: { run: string };
  queued?: { entry: string };
  refused?: boolean;
}
// What the modules of the page tell each other.
export interface News {
  captions: null;
  draft: Draft;
  presets: Preset[];
  settings: Setting[];
  problems: Problem[];
  difference: Difference;
  foreign: ForeignSettings;
  importFailed: { name: string; problems: Problem[] };
  started: { run: string };
  queued: { entry: string };
  refused: Problem[];
  run: string;
  runs: RunStatus[];
  active: RunStatus | null;
  theme: "light" | "dark";
}

export interface RunStatus {
  name: string;
  path: string;
  state: string;
  active: boolean;
  phase: string | null;
  step: number | null;
  total_steps: number | null;
  done: number | null;
  total: number | null;
  eta_s: number | null;
  s_per_step: number | null;
  elapsed_s: number | null;
  generation: number | null;
  resumable: boolean;
  text?: string;
  error: { text: string; cause?: string; remedy?: string; exception?: string } | null;
  hang?: { text: string; cause?: string; remedy?: string; exception?: string } | null;
}
// A row of the run's metrics: a number, or null where nothing was measured.
export interface MetricsRow {
  step?: number;
  generation?: number;
  loss?: number | null;
  loss_smooth?: number | null;
  lr?: number | null;
  s_per_step?: number | null;
  graphs?: number | null;
  recompiles?: number | null;
  breaks?: number | null;
  compile_seconds?: number | null;
  cache_hits?: number | null;
  cache_misses?: number | null;
  limit_hits?: number | null;
  syncs?: number | null;
  layers_scaled?: number | null;
  swap_wait?: number | null;
  vram_reserved?: number | null;
  vram_total?: number | null;
  vram_free?: number | null;
  vram_others?: number | null;
  ram?: number | null;
  ram_total?: number | null;
  ram_available?: number | null;
}
export interface MetricColumn {
  mean: (number | null)[];
  min?: (number | null)[];
  max?: (number | null)[];
}
export interface Series {
  from?: number;
  first: number[];
  step: number[];
  loss: MetricColumn;
  norm_max?: MetricColumn;
  vram_allocated?: MetricColumn;
  [column: string]: MetricColumn | number[] | number | undefined;
}
export interface CompiledGraph {
  graph: number;
  block: string;
  image_tokens?: number;
  text_tokens?: number;
  batch?: number;
  gradients: boolean;
  seconds: number;
  cached: boolean;
}
export interface CompileReason {
  block?: string;
  reason?: string;
  file?: string;
  line?: number;
  setting?: string;
}
export interface RunFile {
  name: string;
  path: string;
  step: number | null;
  size: number;
  final: boolean;
  role: "best" | "average" | null;
  // A whole model in diffusers layout, which can't be downloaded as one.
  folder: boolean;
  // A whole model, which what reads LoRA files does not take.
  model: boolean;
}
export interface Sample {
  file: string;
  // What shows without a player: the file itself, or of a clip its frames.
  picture: string | null;
  step: number;
  prompt_index: number;
  prompt: string;
}
export interface Validation {
  set: string;
  step: number;
  loss: number;
  sigma_losses?: Record<string, number>;
  // Of training pictures, measured for comparison.
  trained: boolean;
}
export interface ProcessPlace {
  device: string;
  memory: number;
  total: number;
}
export interface RunFacts {
  plan: { compile?: boolean; graphs?: { planned: number }; steps?: { epochs: number } } | null;
  compile: {
    state?: string;
    reason?: string;
    planned?: number;
    share?: number;
    compiling?: string;
    graphs?: number;
    made?: CompiledGraph[];
  };
  recompiles: CompileReason[];
  breaks: CompileReason[];
  attention: {
    route: string;
    detail: string;
    how: string;
    milliseconds?: Record<string, number> | null;
    left_out?: Record<string, string> | null;
    form?: string;
  } | null;
  recorded: {
    state: string;
    reason?: string;
    shapes: number;
    kept: number;
    plain_ms?: number | null;
    replay_ms?: number | null;
  } | null;
  warnings: { text: string; remedy: string }[];
  validation: Validation[];
  best: { step: number; loss: number; words: string } | null;
  early_stop: { step: number; words: string } | null;
  average: { words: string } | null;
  // Images that need a look first, once each was measured twice.
  pictures: (ImageLosses & { name: string })[];
  samples: Sample[];
  checkpoints: RunFile[];
  memory: { headline?: string; words?: string; ram_peak?: number; ram_estimated?: number } | null;
  swap: { blocks: number; of: number; host: number; step_limit_seconds: number } | null;
  // Of several that train together; none where one trains by itself.
  processes: ProcessPlace[];
}
export interface PublishState {
  state: "idle" | "running" | "done" | "failed";
  error?: string;
  // Where it is done: the folder, its files, what the load check found, what is left to a person.
  folder?: string;
  files?: string[];
  checked?: string;
  notes?: string[];
}

// What each route answers; `getJson` and `postJson` are typed by it.
export interface LiveRun {
  status: RunStatus;
  last: MetricsRow | null;
  key: string;
  seen: string;
  series?: Series;
  facts?: RunFacts;
  log?: { text: string; offset: number; reset: boolean };
}
export interface Answers {
  "/runs": { runs: RunStatus[] };
  "/live": LiveRun | { missing: true };
  "/log": { text: string; offset: number; reset: boolean };
  "/payback": { text: string };
  "/finish": FinishState;
  "/finish/run": { text: string };
  "/finish/cancel": object;
  "/tune": TuneState;
  "/tune/cancel": object;
  "/profile": { text: string };
  "/library": Library;
  "/notes": { tags: string[]; notes: string };
  "/compare": Comparison;
  "/further": RunStanding & { run?: string };
  "/further/plan": FurtherPlan;
  "/lora": LoraState;
  "/lora-metadata": { metadata: Record<string, string> };
  "/publish": PublishState;
  "/delete": { token: string };
  "/restore": object;
  "/control": object;
  "/resume": object;
  "/fs": { entries: { name: string; path: string; folder: boolean; separator: string; note?: string }[] };
  "/model": {
    path: string;
    title: string;
    total: number;
    problems: Problem[];
    parts: { name: string; place: string; bytes: number | null }[];
    facts: string[];
    fits?: { title: string; change: Record<string, unknown> } | null;
  };
  "/plot/timesteps": { svg: string };
  "/plot/lr": { svg: string };
  "/machine": { tiles: { value: string; label: string }[]; rows: [string, string][]; notes: string[] };
  "/memory": MemoryFacts;
  "/level": { level: Level };
  "/doctor": {
    state: string;
    text?: string;
    checks?: { name: string; state: "ok" | "warn" | "fail"; text: string; remedy: string }[];
  };
  "/cache": { path: string; bytes: number; files: number };
  "/cache/clear": { bytes: number };
  "/scan": ScanState;
  "/scan/stop": object;
  "/scan/items": ScannedItems;
  "/scan/tags": ImageFacets;
  "/scan/bulk": CaptionWork;
  "/scan/bulk/preview": BulkPreview;
  "/scan/bulk/apply": CaptionWork;
  "/scan/bulk/undo": CaptionWork;
  "/scan/bulk/stop": CaptionWork;
  "/scan/near": NearState;
  "/scan/near/leave": { change: Record<string, unknown> };
  "/scan/near/stop": NearState;
  "/scan/losses": { losses: ImageLosses | null };
  "/scan/caption": {
    name: string;
    file: string;
    text: string;
    note: string;
    of: number;
    token: string;
    caption: string;
  };
  "/scan/caption/undo": { caption: string };
  "/captioning": CaptioningState;
  "/captioning/model": CaptionModel | { problem: string };
  "/captioning/cancel": object;
  "/captioning/difference": CaptionDifference;
  "/captioning/choose": object;
  "/captioning/write": CaptionWork;
  "/queue": QueueState;
  "/queue/set": object;
  "/queue/entry": object;
  "/queue/remove": { token: number };
  "/queue/restore": object;
  "/queue/clear": object;
  "/preview/sources": {
    runs: PreviewSource[];
    base: string | null;
    class_images: number | null;
    controls?: number;
    clips?: boolean;
  };
  "/preview/state": PreviewState;
  "/preview/draw": { request: string };
  "/preview/class_images": { request: string };
  "/preview/plan": PreviewPlan;
  "/preview/cancel": object;
  "/preview/end": { ended: boolean };
}
