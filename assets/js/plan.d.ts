// Types of what the server answers about the form's settings before a start: memory and time.

export interface MemoryPart {
  name: string;
  title: string;
  bytes: number;
}
export interface MemoryStage {
  name: string;
  title: string;
  parts: MemoryPart[];
  outside: number;
  total: number;
  allocated: number;
}
export interface MemoryFacts {
  reason?: string;
  on_card: boolean;
  room: number | null;
  stages: MemoryStage[];
  peak: string;
  verdict: "fits" | "tight" | "does_not_fit" | "unknown";
  headline: string;
  nearest: { fits: boolean; words: string; costs: string[]; values: Record<string, unknown> } | null;
  problems: string[];
  ram_verdict: string;
  ram_words: string;
  sizes: string;
  rough: boolean;
}

export interface FinishState {
  text: string;
  cost: string;
  state: string;
  failure: string;
  // what a probe is at, and how much of it is done
  at: string;
  share: number;
}

export interface TuneTrial {
  number: number;
  name: string;
  factor: string;
  values: Record<string, unknown>;
  // what is learnt otherwise; empty for nothing
  changes: string[];
  state: "measured" | "reused" | "does_not_fit" | "out_of_memory" | "failed";
  reason: string;
  // bytes
  estimated: number | null;
  peak: number | null;
  // seconds
  step: number | null;
  compiling: number | null;
  finish: number | null;
  compiled_anew: boolean;
  took: string;
  // finish time by that of the present settings, less 1
  against: number | null;
  pareto: boolean;
}
export interface TuneResult {
  machine: string;
  text: string;
  notes: string[];
  ended: string;
  best: number | null;
  // of the choice, by path
  values: Record<string, unknown>;
  trials: TuneTrial[];
}
export interface TuneState {
  state: string;
  failure: string;
  at: string;
  share: number;
  probes: number;
  planned: number;
  left: string;
  result: TuneResult | null;
  svg: string;
  rows: { path: string; label: string; tab: string; before: string; after: string }[];
  // the form's settings are not those that were tuned
  other: boolean;
}
