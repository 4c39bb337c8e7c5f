// Types what the server answers to the Queue tab. The names are those of gui/queue_routes.py and backend/queue/view.py.
export interface QueueEntry {
  id: string;
  name: string;
  gpu: string | null;
  state: string;
  text: string;
  run: string | null;
  step: number;
  total: number | null;
  begins: number | null;
  ends: number | null;
  like: string | null;
  resumable: boolean;
}
export interface QueueState {
  on: boolean;
  /** Why the queue has paused itself; empty where it has not. */
  paused_by: string;
  continue_ended: boolean;
  gpus: { id: string; name: string }[];
  entries: QueueEntry[];
}
