"""A trainer that ignores its control file, SIGINT and SIGTERM, and has helpers that do the same.

    python stubborn.py RUN

One helper stays in its session, one leaves it and loses its parent, as a daemon does. Their pids go to RUN/pids.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEAF = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
SLEEP = DEAF + "print('deaf', flush=True); time.sleep(600)"
ORPHAN = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, "
    "stdout=subprocess.PIPE); p.stdout.readline(); print(p.pid, flush=True)"
)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
near = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE)
near.stdout.readline()
far = subprocess.run([sys.executable, "-c", ORPHAN, SLEEP], stdout=subprocess.PIPE, check=True, text=True)
pids = Path(sys.argv[1]) / "pids"
part = pids.with_suffix(".part")
part.write_text(f"{os.getpid()} {near.pid} {int(far.stdout)}")
part.rename(pids)
time.sleep(600)
