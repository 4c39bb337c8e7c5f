// Types what the server answers of a LoRA file. The names are those of gui/lora_routes.py and backend/lora_tools/.
export interface LoraState {
  number: number;
  state: "idle" | "running" | "done" | "failed" | "cancelled";
  what?: "inspect" | "check";
  name?: string;
  result?: LoraReport & LoraCheck;
  error?: string | null;
}
export interface LoraReport {
  bytes: number;
  kinds: Record<string, number>;
  family: string | null;
  styles: string[];
  keys: number;
  ranks: Record<string, number>;
  alphas: Record<string, number>;
  formats: Record<string, number>;
  layers: LoraLayer[];
  text_layers: number;
  embeddings: string[];
  others: Record<string, number>;
  problems: string[];
}
export interface LoraLayer {
  name: string;
  rank: number | null;
  norm: number | null;
}
export interface LoraCheck {
  family: string;
  programs: LoraVerdict[];
}
export interface LoraVerdict {
  program: string;
  total: number;
  loaded: number;
  ignored: string[];
  error: string | null;
  note: string;
}
