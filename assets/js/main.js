// Starts the page: each module below watches for the elements that it fills, whenever they come.

import "./field_marks.js";
import "./field_help.js";
import "./untouched_fields.js";
import "./settings_level.js";
import "./color_theme.js";
import "./bar.js";
import "./problem_summary.js";
import "./keys.js";
import "./welcome.js";
import "./model_check.js";
import "./dataset_scan.js";
import "./captioning.js";
import "./setting_notes.js";
import "./finish_time.js";
import "./tune_panel.js";
import "./kernel_cache.js";
import "./doctor.js";
import "./memory_estimate.js";
import "./run_list.js";
import "./run_tab.js";
import "./run_notices.js";
import "./queue_tab.js";
import "./preview_tab.js";
import "./library_tab.js";
