// Types what the server answers to the Preview tab. The names are those of gui/preview_routes.py.
export interface PreviewSource {
  name: string;
  // title: the step, and whether it is the best one or an average.
  files: { name: string; title: string }[];
  prompts: PreviewPrompt[];
  // Whether it trains now, and can be followed.
  live: boolean;
  // Control images that its family takes at most, and whether that makes clips.
  controls?: number;
  clips?: boolean;
}
export interface PreviewPrompt {
  prompt: string;
  negative_prompt: string;
  seed: number;
  width: number;
  height: number;
  steps: number;
  guidance_scale: number;
  true_cfg_scale: number;
  frames?: number | null;
}
export interface PreviewRequest {
  id: string;
  state: "waiting" | "drawing" | "done" | "cancelled" | "failed";
  phase?: "controls" | "text" | "load" | "sample" | "decode" | "wait" | "turn" | null;
  done?: number;
  total?: number | null;
  eta_s?: number | null;
  rows: { name: string; step: number | null; loss?: number | null }[];
  prompts: PreviewPrompt[];
  pictures: { row: number; column: number; file: string }[];
  notes: string[];
  why?: string | null;
  error?: { text: string; remedy: string };
  account?: {
    first_s: number;
    last_s: number;
    compile_s: number;
    cold: boolean;
    graphs: number;
    recompiles: number;
    compiled: "off" | "compiled" | "partly" | "fallback";
    why: string | null;
    peak_vram: number;
    held_vram?: number;
    estimated_vram?: number;
  };
}
// Of /preview/plan: `reason` alone where nothing can be estimated.
export interface PreviewPlan {
  reason?: string;
  verdict?: "fits" | "tight" | "does_not_fit" | "unknown";
  headline?: string;
  needed?: number;
  nearest?: { words: string; values: Record<string, string | number | boolean> } | null;
}
export interface PreviewState {
  worker: { alive: boolean; state: string | null; device: string | null; why: string | null };
  request: PreviewRequest | null;
}
