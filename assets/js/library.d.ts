// Types what the server answers to the Library tab. The names are those of gui/library_routes.py and further_routes.py.
import type { RunFile, RunStatus, Sample } from "./server";

export interface LibraryRun extends Pick<RunStatus, "name" | "path" | "state" | "step" | "total_steps" | "resumable"> {
  tone: string;
  live: boolean;
  when: string | null;
  bytes: number;
  pictures: string[];
  memory: string | null;
  best: string | null;
  files: RunFile[];
  tags: string[];
  notes: string;
  notes_problem: string | null;
}
export interface Library {
  mark: string;
  // Left out where nothing changed since the last answer.
  runs?: LibraryRun[];
  matching?: number;
  total?: number;
  unread?: number;
  tags?: { name: string; count: number }[];
}
export interface ComparedLine {
  steps: number[];
  seconds: number[];
  losses: (number | null)[];
}
export interface ComparedRun extends ComparedLine {
  name: string;
  state: string;
  live: boolean;
  held_out: ComparedLine;
  samples: Sample[];
}
export interface ComparedRow {
  label: string;
  path: string;
  values: string[];
  best: number | null;
}
export interface Comparison {
  runs: ComparedRun[];
  results: ComparedRow[];
  settings: ComparedRow[];
}
export interface RunStanding {
  // Whether there is a saved state; where not, `lost` says what a new run that continues from the file lacks.
  state: boolean;
  done?: number;
  total?: number | null;
  epochs?: number | null;
  steps_per_epoch?: number | null;
  schedule?: string;
  stretches?: boolean;
  learning_rate?: number;
  changes?: Record<string, string>;
  lost?: string[];
  full?: boolean;
}
export interface FurtherPlan {
  total: number | null;
  sentences: string[];
  svg: string;
}
