"""A module that nobody may fork with: importing it starts a thread."""

from __future__ import annotations

import threading
import time

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
