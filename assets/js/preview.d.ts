// Types what the server answers to the Preview tab. The names are those of gui/preview_routes.py.
export interface PreviewSource {
  name: string;
  files: { name: string; step: number | null }[];
  prompts: PreviewPrompt[];
  // Whether it trains now, and can be followed.
  live: boolean;
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
}
export interface PreviewRequest {
  id: string;
  state: "waiting" | "drawing" | "done" | "cancelled" | "failed";
  phase?: "text" | "load" | "sample" | "decode" | "wait" | "turn" | null;
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
