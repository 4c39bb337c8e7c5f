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
